"""What a pass leaves behind: its record, and its plan once more from what it knew."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple
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
from scheduling.models import PassRecord, SchedulerState, Workload

SNAPSHOTS_KEPT = 500
RECORDS_KEPT = 20_000


@dataclass(frozen=True)
class Timings:
    """Milliseconds of the steps before the commit."""

    started_at: datetime
    load_ms: float
    plan_ms: float


# --- Writing it down ---------------------------------------------------------------------------------------


class Proof(NamedTuple):
    """What a replay goes by: the snapshot, compressed, and the digest of the plan."""

    snapshot: bytes
    plan_digest: str


def pass_proof(loaded: Loaded, plan: Plan) -> Proof:
    """Asks the database nothing, so that it can be made while the database works."""
    return Proof(zlib.compress(to_json(loaded.snapshot).encode(), level=1), plan_digest(plan))


def pass_record(
    loaded: Loaded,
    plan: Plan,
    timings: Timings,
    *,
    started: int,
    refused: Mapping[UUID, str],
    proof: Proof,
) -> None:
    """Keeps what the pass knew and did; part of its commit. What was refused in the end does not count as done."""
    number = loaded.pass_number + 1
    snapshot, digest = proof
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
        stopped=sum(not _is_refused(stop, refused) for stop in plan.stops),
        grown=sum(UUID(grow.workload_id) not in refused for grow in plan.grows),
        refused=[{"workload": public_ids[key], "reason": why} for key, why in refused.items()],
        snapshot=snapshot,
        snapshot_bytes=len(snapshot),
        now_us=loaded.now_us,
        policy=policy_values(loaded.policy),
        engine_version=engine_version(),
        plan_digest=digest,
    )
    SchedulerState.objects.filter(pk=1).update(shares=_shares(plan))
    old = PassRecord.objects.filter(number__lte=number - SNAPSHOTS_KEPT, snapshot__isnull=False)
    old.update(snapshot=None)
    PassRecord.objects.filter(number__lte=number - RECORDS_KEPT).delete()


def _shares(plan: Plan) -> dict[str, dict[str, int]]:
    by_tier: dict[str, dict[str, int]] = {}
    for share in plan.shares:
        by_tier.setdefault(share.tier_id, {})[share.team_id] = share.units
    return by_tier


def _is_refused(stop: Stop, refused: Mapping[UUID, str]) -> bool:
    """A victim stays where its claimant was refused."""
    return stop.for_workload_id is not None and UUID(stop.for_workload_id) in refused


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
    def starts(self) -> int:
        return len(self.plan.starts)

    @property
    def claims(self) -> int:
        return len(self.plan.claims)

    @property
    def stops(self) -> int:
        return len(self.plan.stops)

    @property
    def grown(self) -> int:
        return len(self.plan.grows)

    @property
    def verdicts(self) -> int:
        return len(self.plan.verdicts)

    @property
    def counts(self) -> str:
        """`12 starts, 1 claim, 40 verdicts`: what the plan holds."""
        parts = [
            (ngettext("%(n)s start", "%(n)s starts", self.starts), self.starts),
            (ngettext("%(n)s claim", "%(n)s claims", self.claims), self.claims),
            (ngettext("%(n)s stop", "%(n)s stops", self.stops), self.stops),
            (ngettext("%(n)s grown", "%(n)s grown", self.grown), self.grown),
            (ngettext("%(n)s verdict", "%(n)s verdicts", self.verdicts), self.verdicts),
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
