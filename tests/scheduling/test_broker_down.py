"""Without a broker a request is stored all the same, quickly, and the next pass finds it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from scheduling.models import Workload
from scheduling.passes import pass_turns
from tests import factories as make
from tests.databases import url

_SUBMIT = """
import sys, time
from gpuyard.core.models import User
from scheduling.services import workload_submit
from tenants.models import Team
began = time.monotonic()
workload = workload_submit(actor=User.objects.get(username=sys.argv[1]), team=Team.objects.get(name=sys.argv[2]),
    name="without-broker", kind="training", preemptible=True, spec={"command": ["true"], "time_limit_s": 60, "request":
    {"replicas_min": 1, "replicas_max": 1, "gpus_per_replica": 1, "tiers": [sys.argv[3]], "cpu_m": 1, "memory_mib": 1}})
print(workload.public_id, time.monotonic() - began)
"""


def _dead_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.django_db(transaction=True)
def test_a_request_is_stored_while_the_broker_is_down_and_scheduled_later() -> None:
    tier = make.tier()
    make.node(tier, 1)
    team = make.team()
    make.approval_policy(team)
    member = make.user("member", team)
    began = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import django; django.setup(){_SUBMIT}",
            member.username,
            team.name,
            tier.name,
        ],
        env={
            **os.environ,
            "DATABASE_URL": url("default"),
            "REDIS_URL": f"redis://127.0.0.1:{_dead_port()}",
            "PYTHONPATH": os.pathsep.join([".", "platform"]),
            "DJANGO_SETTINGS_MODULE": "gpuyard.settings.base",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    public_id, submit_s = done.stdout.split()
    assert float(submit_s) < 10, f"not bounded: {submit_s} s of {time.monotonic() - began:.1f} s"
    assert "broker did not take" in done.stderr
    assert Workload.objects.get(public_id=public_id).state == "waiting"
    pass_turns()
    assert Workload.objects.get(public_id=public_id).state == "starting"
