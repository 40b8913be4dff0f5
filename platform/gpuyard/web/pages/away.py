"""Who decides for whom, and when."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.http import QueryDict
from django.utils import timezone
from django.utils.translation import gettext as _

from gpuyard.core import clock, hooks
from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.case_contexts import AwayPage, AwayRow
from gpuyard.web.contexts import Choice
from tenants.delegations import delegation_list
from tenants.models import Delegation, Team
from tenants.selectors import companies_visible

MOST_ROWS = 100
MOST_PEOPLE = 500


def build(actor: User, sent: QueryDict, *, error: str = "") -> AwayPage:
    as_of = clock.now()
    companies = list(companies_visible(actor).order_by("name"))
    picked = sent.get("company", companies[0].public_id if companies else "")
    rows = list(delegation_list(actor)[:MOST_ROWS])
    names = dict(
        Team.objects.filter(pk__in={key for row in rows for key in row.teams}).values_list("pk", "name")
    )
    return AwayPage(
        as_of=as_of,
        rows=[_row(actor, one, {str(key): name for key, name in names.items()}, as_of) for one in rows],
        companies=[
            Choice(value=one.public_id, label=one.name, selected=one.public_id == picked) for one in companies
        ],
        people=_people(actor, companies, sent.get("delegate", "")),
        kinds=[
            Choice(value=one, label=str(wording.KINDS.get(one, one)), selected=one in sent.getlist("kinds"))
            for one in hooks.case_kinds()
        ],
        begins=sent.get("starts_at", _typed(as_of)),
        ends=sent.get("ends_at", _typed(as_of + timedelta(days=14))),
        reason=sent.get("reason", ""),
        error=error,
    )


def _typed(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%Y-%m-%dT%H:%M}"


def _people(actor: User, companies: list[Team], picked: str) -> list[Choice]:
    """Those with a role in one of the reader's companies."""
    found = User.objects.filter(is_active=True, memberships__team__company__in=companies).exclude(pk=actor.pk)
    return [
        Choice(value=one.public_id, label=one.username, selected=one.public_id == picked)
        for one in found.distinct().order_by("username")[:MOST_PEOPLE]
    ]


def _row(actor: User, delegation: Delegation, names: dict[str, str], as_of: datetime) -> AwayRow:
    begins, ends = delegation.span.lower, delegation.span.upper
    is_over = delegation.revoked_at is not None or ends <= as_of
    covers = [str(wording.KINDS.get(one, one)) for one in delegation.kinds]
    covers += [names.get(str(key), "") for key in delegation.teams]
    return AwayRow(
        id=str(delegation.pk),
        person=delegation.person.username,
        delegate=delegation.delegate.username,
        company=delegation.company.name,
        begins_at=begins,
        ends_at=delegation.revoked_at or ends,
        covers=", ".join(one for one in covers if one) or _("everything"),
        reason=delegation.reason,
        state=_("over") if is_over else _("later") if begins > as_of else _("now"),
        may_end=not is_over,
    )
