"""What a pass leaves behind: its record, and its plan once more from what it knew."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.errors import Conflict
from scheduling import engine
from scheduling.engine.decisions import Plan, Stop, plan_to_json, policy_of, policy_values
from scheduling.engine.plan import plan as engine_plan
from scheduling.engine.snapshot import from_json, to_json
from scheduling.loader import Loaded
from scheduling.models import PassRecord, Workload

SNAPSHOTS_KEPT = 500
RECORDS_KEPT = 20_000


@dataclass(frozen=True)
class Timings:
    """Milliseconds of the steps before the commit."""

    started_at: datetime
    load_ms: float
    plan_ms: float


# --- Writing it down ---------------------------------------------------------------------------------------


def pass_record(
    loaded: Loaded,
    plan: Plan,
    timings: Timings,
    *,
    started: int,
    refused: Mapping[UUID, str],
) -> None:
    """Keeps what the pass knew and did; part of its commit. What was refused in the end does not count as done."""
    number = loaded.pass_number + 1
    stops = list(_not_refused(plan.stops, refused))
    snapshot = zlib.compress(to_json(loaded.snapshot).encode(), level=1)
    public_ids = dict(Workload.objects.filter(id__in=refused).values_list("id", "public_id"))
    spent_ms = timings.load_ms + timings.plan_ms
    PassRecord.objects.create(
        number=number,
        started_at=timings.started_at,
        load_ms=timings.load_ms,
        plan_ms=timings.plan_ms,
        commit_ms=max(0.0, (clock.now() - timings.started_at).total_seconds() * 1000 - spent_ms),
        waiting=len(loaded.snapshot.requests),
        started=started,
        claimed=sum(UUID(claim.workload_id) not in refused for claim in plan.claims),
        stopped=len(stops),
        grown=sum(UUID(grow.workload_id) not in refused for grow in plan.grows),
        refused=[{"workload": public_ids[key], "reason": why} for key, why in refused.items()],
        stops=[_stop_row(stop) for stop in stops],
        snapshot=snapshot,
        snapshot_bytes=len(snapshot),
        now_us=loaded.now_us,
        policy=policy_values(loaded.policy),
        engine_version=engine_version(),
        plan_digest=plan_digest(plan),
    )
    old = PassRecord.objects.filter(number__lte=number - SNAPSHOTS_KEPT, snapshot__isnull=False)
    old.update(snapshot=None)
    PassRecord.objects.filter(number__lte=number - RECORDS_KEPT).delete()


def _not_refused(stops: Iterable[Stop], refused: Mapping[UUID, str]) -> Iterable[Stop]:
    """A victim stays where its claimant was refused."""
    for stop in stops:
        if stop.for_workload_id is None or UUID(stop.for_workload_id) not in refused:
            yield stop


def _stop_row(stop: Stop) -> dict[str, Any]:
    return {
        "workload_id": stop.workload_id,
        "reason": stop.reason,
        "for_workload_id": stop.for_workload_id,
        "replicas": stop.replicas,
        "why": dict(stop.why),
    }


def plan_digest(plan: Plan) -> str:
    return hashlib.blake2b(plan_to_json(plan).encode(), digest_size=16).hexdigest()


@cache
def engine_version() -> str:
    """A digest of the engine's own source: the same version gives the same plan for the same snapshot."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(engine.__path__[0]).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# --- Replaying it ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """`is_same`: to the byte. `is_other_engine`: the engine was changed since, so that the plan may differ."""

    number: int
    plan: Plan
    is_same: bool
    is_other_engine: bool
    stored_digest: str
    digest: str
    took_ms: float

    @property
    def counts(self) -> str:
        """`12 starts, 1 claim, 40 verdicts`: what the plan holds."""
        plan = self.plan
        parts = [
            (ngettext("%(n)s start", "%(n)s starts", len(plan.starts)), len(plan.starts)),
            (ngettext("%(n)s claim", "%(n)s claims", len(plan.claims)), len(plan.claims)),
            (ngettext("%(n)s stop", "%(n)s stops", len(plan.stops)), len(plan.stops)),
            (ngettext("%(n)s growth", "%(n)s growths", len(plan.grows)), len(plan.grows)),
            (ngettext("%(n)s verdict", "%(n)s verdicts", len(plan.verdicts)), len(plan.verdicts)),
        ]
        return ", ".join(words % {"n": count} for words, count in parts if count) or _("nothing to do")


def pass_replay(record: PassRecord) -> Replay:
    """Plans again from the stored snapshot, policy and time, and compares; changes nothing.

    `Conflict` if the snapshot is gone or cannot be read any more.
    """
    if record.snapshot is None or record.policy is None or record.now_us is None:
        raise Conflict(
            "snapshot_gone",
            _("The snapshot of pass %(number)s is not kept any more.") % {"number": record.number},
            remedy=_("Choose one of the last %(kept)s passes.") % {"kept": SNAPSHOTS_KEPT},
        )
    began = time.monotonic()
    try:
        snapshot = from_json(zlib.decompress(record.snapshot).decode())
    except (TypeError, ValueError) as exc:  # a version of the engine that had other fields
        raise Conflict(
            "snapshot_unreadable",
            _("The snapshot of pass %(number)s is of an older engine.") % {"number": record.number},
            remedy=_("Choose a later pass."),
        ) from exc
    found = engine_plan(snapshot, policy_of(record.policy), record.now_us)
    digest = plan_digest(found)
    return Replay(
        number=record.number,
        plan=found,
        is_same=digest == record.plan_digest,
        is_other_engine=record.engine_version != engine_version(),
        stored_digest=record.plan_digest,
        digest=digest,
        took_ms=(time.monotonic() - began) * 1000,
    )
