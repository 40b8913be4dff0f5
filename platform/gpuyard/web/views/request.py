"""Asking for GPUs: the form, its answer while one types, and sending it."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from gpuyard.api.attempts import refusal_note
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.models import User
from gpuyard.web.actor import actor_of, page
from gpuyard.web.contexts import RequestPage
from gpuyard.web.form_parts import ANY_TIER
from gpuyard.web.forms import RequestForm, request_initial
from gpuyard.web.live import respond
from gpuyard.web.pages.answer import answer_of
from gpuyard.web.pages.supply import tier_choices
from gpuyard.web.shell import team_paths, team_picked
from scheduling.bands import any_band
from scheduling.selectors import workload_get
from scheduling.services import workload_submit
from tenants.models import Role, Team
from tenants.selectors import team_ids_with, teams_visible

KINDS = (
    ("training", gettext_lazy("Train"), "graduation-cap", gettext_lazy("Runs to an end."),
     gettext_lazy("Over one or more nodes, all ranks at once")),
    ("inference", gettext_lazy("Serve"), "server", gettext_lazy("Stays up."),
     gettext_lazy("Copies with a port and a health check")),
    ("development", gettext_lazy("Develop"), "square-terminal", gettext_lazy("You work in it."),
     gettext_lazy("A session; it ends at its limit")),
)  # fmt: skip
START = {
    "kind": "training",
    "gpus_per_replica": "1",
    "replicas": "1",
    "time_limit": "1 h",
    "cpu": "4",
    "memory": "16 GiB",
}
SHOWN_FIRST = frozenset(
    {"name", "team", "kind", "tier", "gpus_per_replica", "replicas", "time_limit", "command", "reason"}
)


@require_http_methods(["GET", "POST"])
@page
def request_new(request: HttpRequest) -> HttpResponse:
    """GET: the form. POST: stores it; with `?part=answer` or `check`, only answers."""
    actor = actor_of(request)
    teams = _teams(actor)
    if request.method == "GET":
        draft = _draft(request, actor, teams)
        return _show(request, RequestForm(draft, teams=_choices(teams)), teams, draft=draft)
    form = RequestForm(request.POST, teams=_choices(teams))
    is_question = request.GET.get("part") == "answer" or "check" in request.POST
    if is_question or not form.is_valid():
        return _show(request, form, teams, status=200 if is_question else 422)
    return _send(request, actor, form, teams)


def _send(request: HttpRequest, actor: User, form: RequestForm, teams: list[Team]) -> HttpResponse:
    data = form.cleaned_data
    assert form.spec is not None
    try:
        workload = workload_submit(
            actor=actor,
            team=_team(teams, data["team"]),
            name=data["name"],
            kind=data["kind"],
            band=data["band"] or 0,
            priority=data["priority"],
            preemptible={"yes": True, "no": False}.get(data["preemptible"]),
            spec=form.spec.as_json(),
            justification=data["reason"],
            submission_key=_key(request),
        )
    except (Invalid, Conflict, Forbidden) as exc:
        if isinstance(exc, Forbidden):
            refusal_note(request, exc)
        form.refuse(exc.errors)
        if not exc.errors:
            form.add_error(None, str(exc))
        return _show(request, form, teams, status=422)
    messages.success(request, _("%s is requested.") % workload.name)
    return redirect("web:workload", public_id=workload.public_id)


def _show(
    request: HttpRequest,
    form: RequestForm,
    teams: list[Team],
    *,
    status: int = 200,
    draft: dict[str, Any] | None = None,
) -> HttpResponse:
    """`draft`: nothing was sent yet, so that an empty field is no mistake."""
    team = _team_or_none(teams, str(form["team"].value() or ""))
    answer = answer_of(actor_of(request), team, form)
    context = RequestPage(
        as_of=clock.now(),
        tiers=tier_choices(team, str(form["kind"].value() or "training"), str(form["tier"].value() or "")),
        answer=answer,
        has_bands=any_band(teams),
        idempotency_key=_key(request),
        again=request.GET.get("again", "")[:16],
        advanced_open=bool(set(form.errors) - SHOWN_FIRST - {"__all__"}) or _is_used(form),
    )
    shown = form if draft is None else RequestForm(initial=draft, teams=_choices(teams))
    response = respond(
        request,
        "request.html",
        {"page": context, "form": shown, "kinds": KINDS, "section": "request"},
        parts=("answer",),
        as_of=answer.as_of,
    )
    response.status_code = status
    return response


def _is_used(form: RequestForm) -> bool:
    """Whether something was chosen that the closed part of the form would hide."""
    names = (
        "part",
        "other_tiers",
        "least_memory",
        "node_labels",
        "level_required",
        "level_preferred",
        "array_count",
        "depends_on",
        "env",
        "image",
        "ports",
        "priority",
    )
    return str(form["tier"].value()) == ANY_TIER or any(form[name].value() for name in names)


def _draft(request: HttpRequest, actor: User, teams: list[Team]) -> dict[str, Any]:
    """What a new form starts with, or what an earlier workload had."""
    picked = team_picked(request)
    first = picked if picked in teams else teams[0] if teams else None
    data: dict[str, Any] = {**START, "team": first.public_id if first else ""}
    if again := request.GET.get("again"):
        earlier = workload_get(actor, again)
        assert earlier.spec is not None
        initial = request_initial(
            earlier.spec.document,
            name=earlier.name,
            kind=earlier.kind,
            team=earlier.team.public_id,
            reason=earlier.justification,
            band=earlier.band,
            priority=earlier.priority or "",
            preemptible="yes" if earlier.preemptible else "no",
        )
        return initial | _changes(request)
    chosen = next((one for one in tier_choices(first, "training", "") if one.selected), None)
    data["tier"] = request.GET.get("tier") or (chosen.name if chosen else "")
    return data


def _changes(request: HttpRequest) -> dict[str, Any]:
    """What a verdict suggested to change: another tier, fewer GPUs. The form checks both like typed ones."""
    asked = {"tier": request.GET.get("tier", ""), "gpus_per_replica": request.GET.get("gpus", "")}
    return {name: value[:64] for name, value in asked.items() if value}


def _teams(actor: User) -> list[Team]:
    allowed = team_ids_with(actor, Role.MEMBER, Role.MANAGER)
    return list(teams_visible(actor).filter(pk__in=allowed))


def _choices(teams: list[Team]) -> list[tuple[str, str]]:
    paths = team_paths(teams)
    return [(team.public_id, paths[team.pk]) for team in teams]


def _team_or_none(teams: list[Team], public_id: str) -> Team | None:
    return next((team for team in teams if team.public_id == public_id), None)


def _team(teams: list[Team], public_id: str) -> Team:
    team = _team_or_none(teams, public_id)
    assert team is not None, "the form offers only these teams"
    return team


def _key(request: HttpRequest) -> str:
    """What makes a form that is sent twice one workload."""
    sent = request.POST.get("idempotency_key", "")
    return sent if sent.startswith("web-") and len(sent) <= 80 else f"web-{uuid.uuid4()}"
