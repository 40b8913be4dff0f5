"""What passes did, for platform admins: a pass is about all companies at once."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, Prefetch, QuerySet
from django.utils.translation import gettext as _

from gpuyard.core.errors import Forbidden, NotFound
from gpuyard.core.models import User
from scheduling.models import Attempt, Eviction, PassRecord, Replica

MOST_SHOWN = 200  # starts and stops of one pass


def pass_list(actor: User, *, with_stops: bool = False) -> QuerySet[PassRecord]:
    """The last passes, newest first; `with_stops`: only those that took something back."""
    _admin_check(actor)
    # The large columns are read one pass at a time.
    records = PassRecord.objects.defer("snapshot", "policy").order_by("-number")
    return records.filter(stopped__gt=0) if with_stops else records


def pass_get(actor: User, number: int) -> PassRecord:
    """One pass with all that is kept of it."""
    _admin_check(actor)
    record = PassRecord.objects.filter(number=min(number, 2**62)).first()
    if record is None:
        raise NotFound("pass_unknown", _("No record of that pass is kept."))
    return record


def _admin_check(actor: User) -> None:
    if not actor.is_platform_admin:
        raise Forbidden("admin_needed", _("Only a platform admin sees the scheduler's passes."))


@dataclass(frozen=True)
class PassDecisions:
    """`claims` are starts that waited until others had left. At most `MOST_SHOWN` of each."""

    starts: tuple[Attempt, ...]
    claims: tuple[Attempt, ...]
    stops: tuple[Eviction, ...]


def pass_decisions(actor: User, record: PassRecord) -> PassDecisions:
    """What the pass started, promised and took back, in three queries."""
    _admin_check(actor)
    related = ("workload__team", "gained_by__team")
    stops = Eviction.objects.filter(pass_number=record.number).select_related(*related).order_by("at", "pk")
    replicas = Prefetch("replicas", Replica.objects.select_related("node").order_by("index"))
    placed = list(
        Attempt.objects.filter(pass_number=record.number)
        .select_related("workload__team", "workload__spec", "tier")
        .prefetch_related(replicas)
        .order_by(F("why_now__rank").asc(nulls_last=True), "pk")[:MOST_SHOWN]
    )
    shown = tuple(stops[:MOST_SHOWN])
    gainers = {one.gained_by_id for one in shown}
    return PassDecisions(
        starts=tuple(one for one in placed if one.workload_id not in gainers),
        claims=tuple(one for one in placed if one.workload_id in gainers),
        stops=shown,
    )
