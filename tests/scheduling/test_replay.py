"""Any recent pass gives the same plan again from what it stored."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command

from scheduling.engine.decisions import Plan, Policy, Stop, plan_to_json, policy_of, policy_values
from scheduling.loader import snapshot_load
from scheduling.models import PassRecord
from scheduling.passes import pass_once
from scheduling.records import Timings, engine_version, pass_proof, pass_record, pass_replay
from tests import factories as make

pytestmark = pytest.mark.django_db


def _a_pass(policy: Policy | None = None) -> PassRecord:
    tier = make.tier()
    make.node(tier, 8)
    for gpus in (1, 2, 16):
        make.workload(make.team(), tier, gpus=gpus)
    return PassRecord.objects.get(number=pass_once(policy).pass_number)


def _command(number: int) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("replay_pass", number, stdout=out)
    except SystemExit as exit_:
        return int(exit_.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_a_pass_gives_the_same_plan_again() -> None:
    record = _a_pass()
    found = pass_replay(record)
    assert (found.is_same, found.is_other_engine) == (True, False)
    assert (len(found.plan.starts), len(found.plan.verdicts)) == (2, 1)
    assert found.counts == "2 starts, 1 verdict"


def test_a_pass_is_replayed_by_the_policy_it_had() -> None:
    record = _a_pass(Policy(grow_gangs=False, reservations=0))
    assert record.policy is not None
    assert record.policy["reservations"] == 0
    assert pass_replay(record).is_same


def test_the_command_says_same_and_exits_0() -> None:
    number = _a_pass().number
    code, text = _command(number)
    assert code == 0
    assert text.startswith(f"Pass {number}: the same plan, 2 starts, 1 verdict, in ")


def test_the_command_says_different_and_exits_1() -> None:
    number = _a_pass().number
    PassRecord.objects.update(plan_digest="0" * 32, engine_version="old")
    code, text = _command(number)
    assert code == 1
    assert "a different plan" in text
    assert "The engine has been changed since that pass." in text


@pytest.mark.parametrize("gone", ["record", "snapshot"])
def test_what_is_not_kept_cannot_be_replayed(gone: str) -> None:
    number = _a_pass().number
    if gone == "record":
        PassRecord.objects.all().delete()
    PassRecord.objects.update(snapshot=None)
    with pytest.raises(CommandError) as caught:
        call_command("replay_pass", number)
    assert caught.value.returncode == 2


def test_a_pass_that_only_changed_a_verdict_is_replayed_too() -> None:
    make.workload(make.team(), make.tier(), gpus=2)
    record = PassRecord.objects.get(number=pass_once().pass_number)
    assert record.started == 0
    assert pass_replay(record).is_same


def test_what_was_taken_back_counts_unless_its_claim_was_refused() -> None:
    loser, gainer, refused = (make.workload(make.team(), make.tier()) for _ in range(3))
    stop = Stop(str(loser.pk), "return", str(gainer.pk), None, {"lost_gpu_s": 60})
    decided = Plan(stops=(stop, replace(stop, for_workload_id=str(refused.pk), replicas=(1,))))
    loaded = snapshot_load()
    timings = Timings(loaded.now, 1.0, 1.0)
    proof = pass_proof(loaded, decided)
    pass_record(loaded, decided, timings, started=0, refused={refused.pk: "node_changed"}, proof=proof)
    record = PassRecord.objects.get()
    assert (record.stopped, record.refused[0]["workload"]) == (1, refused.public_id)


def test_a_policy_comes_back_from_json_as_it_was() -> None:
    policy = Policy(reservations=7, training_run_s=None)
    stored = json.loads(json.dumps(policy_values(policy) | {"a_rule_of_long_ago": 1}))
    assert policy_of(stored) == policy


def test_plans_are_written_with_all_their_parts() -> None:
    text = plan_to_json(Plan(stops=(Stop("a", "return", None, (1, 2), {"b": 1}),)))
    assert json.loads(text)["stops"] == [
        {
            "workload_id": "a",
            "reason": "return",
            "for_workload_id": None,
            "replicas": [1, 2],
            "why": {"b": 1},
        }
    ]


def test_the_engine_has_a_version() -> None:
    assert len(engine_version()) == 12
