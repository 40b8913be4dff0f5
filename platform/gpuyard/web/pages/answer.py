"""What the request form answers while somebody types."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.errors import DomainError
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.web import wording
from gpuyard.web.contexts import AnswerPanel, Check, Money
from gpuyard.web.forms import RequestForm
from scheduling.asked import asked_text
from scheduling.selectors import RequestCheck, request_check
from scheduling.specs import Request
from scheduling.usage import QuotaCheck
from tenants.approvers import Approver, StageAsked
from tenants.models import Team


def answer_of(actor: User, team: Team | None, form: RequestForm) -> AnswerPanel:
    """The panel beside the form, also while fields are still empty or wrong."""
    form.is_valid()  # reads the fields once; what a service found wrong stays
    if team is None or form.question is None:
        return _unfinished(form)
    priority = form.cleaned_data.get("priority")
    try:
        known = request_check(
            actor,
            team,
            kind=form.cleaned_data["kind"],
            spec=form.question.as_json(),
            priority=priority if isinstance(priority, int) else 0,  # what is none is refused when it is sent
            band=form.cleaned_data.get("band") or 0,
        )
    except DomainError as exc:
        form.refuse(exc.errors)
        return _unfinished(form)
    return _answer(known)


def _unfinished(form: RequestForm) -> AnswerPanel:
    wrong = len(form.errors)
    return AnswerPanel(
        as_of=clock.now(),
        headline=_("not yet clear"),
        detail=ngettext(
            "%(n)s field is still empty or wrong.", "%(n)s fields are still empty or wrong.", wrong
        )
        % {"n": wrong}
        if wrong
        else _("Fill in the form to see when it starts and what it costs."),
        checks=[
            Check(
                tone="info",
                icon="info",
                title=str(form.fields[name].label or name),
                detail=" ".join(str(one) for one in errors),
            )
            for name, errors in form.errors.items()
            if name in form.fields
        ],
        cost=None,
        formula="",
        submit=_("Request"),
    )


def _answer(known: RequestCheck) -> AnswerPanel:
    headline, detail = _start(known)
    estimate = known.estimate
    return AnswerPanel(
        as_of=known.as_of,
        headline=headline,
        detail=detail,
        checks=[*_quota(known), _approval(known), *_supply(known)],
        cost=Money(estimate.total, estimate.currency) if estimate and estimate.total is not None else None,
        formula=_formula(known),
        submit=_("Request %s") % asked_text(known.spec.request),
    )


def _start(known: RequestCheck) -> tuple[str, str]:
    if known.never_fits:
        return _("never, as asked"), " ".join(known.never_fits)
    if not known.fits_quota:
        return _("when quota allows"), _("It may be asked for, and waits until its team uses less.")
    if later := _later(known.spec.request, known.as_of):
        return later
    if not known.fits_now:
        return _("when GPUs are free"), _("It queues now and starts as soon as there is room for it.")
    if known.approval.is_auto:
        return _("now"), _(
            "There is room: the next pass, within seconds, unless somebody’s turn is before yours."
        )
    return _("once approved"), _("There is room at this moment; approval comes first.")


def _later(request: Request, as_of: datetime) -> tuple[str, str] | None:
    """What it waits for whatever is free."""
    if request.not_before and request.not_before > as_of:
        moment = wording.clock(request.not_before, as_of)
        return _("not before %s") % moment, _("Then it queues for what is free.")
    if request.depends_on:
        names = ", ".join(request.depends_on)
        return _("after other work"), _("It queues once %s has succeeded.") % names
    return None


def _quota(known: RequestCheck) -> list[Check]:
    return [_quota_check(check) for check in known.quota]


def _quota_check(check: QuotaCheck) -> Check:
    tier, after = check.tier.name, wording.number((check.used + check.asked) / UNITS_PER_GPU)
    guaranteed = wording.number(check.guaranteed / UNITS_PER_GPU)
    if not check.is_within_limit:
        room = wording.number(max(0, check.room or 0) / UNITS_PER_GPU)
        return Check(
            tone="bad",
            icon="circle-alert",
            title=_("Over the limit for %s") % tier,
            detail=_("The limit leaves room for %s more now.") % room,
        )
    facts = {"after": after, "tier": tier, "guaranteed": guaranteed}
    if check.is_within_guarantee:
        return Check(
            tone="ok",
            icon="circle-check",
            title=_("Inside the guarantee"),
            detail=_("The team would use %(after)s of its %(guaranteed)s guaranteed %(tier)s.") % facts,
        )
    return Check(
        tone="warn",
        icon="circle-alert",
        title=_("Fits the limit, over the guarantee"),
        detail=_(
            "The team would use %(after)s %(tier)s; its guarantee is %(guaranteed)s, so this one runs borrowed."
        )
        % facts,
    )


def _approval(known: RequestCheck) -> Check:
    rule = _("Rule “%s”.") % known.approval.rule
    if known.approval.is_auto:
        return Check(tone="ok", icon="circle-check", title=_("Needs no approval"), detail=rule)
    who = [stage_text(one) for one in known.approval.stages]
    count = sum(1 if one.needs == "any" else len(one.approvers) for one in known.approval.stages)
    title = ngettext("Needs %(n)s approval: %(who)s", "Needs %(n)s approvals: %(who)s", count) % {
        "n": count,
        "who": _(", then ").join(who),
    }
    people = known.approval.approvers[0].people
    names = ", ".join(one.username for one in people[:3])
    detail = _("%(rule)s Asked: %(names)s.") % {"rule": rule, "names": names} if names else rule
    return Check(tone="info", icon="user", title=title, detail=detail)


def stage_text(stage: StageAsked) -> str:
    """`a manager of vision or one of GPU board`."""
    word = _(" or ") if stage.needs == "any" else _(" and ")
    return word.join(approver_text(one) for one in stage.approvers)


def approver_text(approver: Approver) -> str:
    if approver.group is not None:
        return _("one of %(group)s") % {"group": approver.group.name}
    if approver.team is None:
        return _("a platform admin")
    return _("a %(role)s of %(team)s") % {"role": approver.role, "team": approver.team.name}


def _supply(known: RequestCheck) -> list[Check]:
    checks = []
    for supply in known.supply:
        fits = supply.fits_now(known.spec.request)
        checks.append(
            Check(
                tone="ok" if fits else "warn",
                icon="server",
                title=_("%(free)s of %(total)s %(tier)s free now")
                % {"free": supply.free, "total": supply.total, "tier": supply.tier.name},
                detail=_("The largest free block on one node is %s.") % supply.largest_block,
            )
        )
    return checks


def _formula(known: RequestCheck) -> str:
    estimate = known.estimate
    if estimate is None:
        return _("no price is set")
    largest = max(known.size, key=lambda one: one.most)
    at_once = Decimal(largest.at_once) / UNITS_PER_GPU
    each = wording.money(estimate.hourly / at_once, estimate.currency)
    limit, array = known.spec.time_limit_s, known.spec.request.array
    if limit is None:
        return _("%(gpus)s × %(each)s an hour, no limit") % {"gpus": wording.number(at_once), "each": each}
    gpus = wording.number(Decimal(largest.most) / UNITS_PER_GPU)
    parts = [str(array.count)] if array else []
    return f" {wording.TIMES} ".join([*parts, gpus, wording.duration(limit), each])
