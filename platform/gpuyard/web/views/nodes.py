"""One node: where it stands, what it is called, and the forms by which an admin says so."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from gpuyard.core.errors import Conflict, DomainError, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from gpuyard.fleet.selectors import domain_list, node_get
from gpuyard.fleet.topology import domain_chain, domain_create, node_domain_set, node_labels_set
from gpuyard.web.actor import actor_of, page
from gpuyard.web.form_parts import words
from gpuyard.web.pages import node as node_page


@require_safe
@page
def node(request: HttpRequest, public_id: str) -> HttpResponse:
    actor = actor_of(request)
    return _show(request, actor, node_get(actor, public_id))


@require_POST
@page
def node_place(request: HttpRequest, public_id: str) -> HttpResponse:
    """Labels and domain together; or, with `new_level`, a new domain, which the node then stands in."""
    actor, sent = actor_of(request), request.POST
    found, reason = node_get(actor, public_id), sent.get("reason", "")
    try:
        with transaction.atomic():  # a wrong label leaves no new domain behind
            domain_id = _domain(actor, sent, reason)
            labels = words(sent.get("labels", ""))
            node_labels_set(actor=actor, node_id=found.pk, labels=labels, reason=reason)
            node_domain_set(actor=actor, node_id=found.pk, domain_id=domain_id, reason=reason)
    except Forbidden:
        raise
    except (Invalid, Conflict) as exc:
        return _show(request, actor, found, exc)
    messages.success(request, _("%s is changed; the next pass knows.") % found.name)
    return redirect("web:node", public_id=public_id)


def _domain(actor: User, sent: Mapping[str, str], reason: str) -> UUID | None:
    """The domain that was chosen, or a new one."""
    if not sent.get("new_level"):
        return _key(sent.get("domain", ""))
    made = domain_create(
        actor=actor,
        level=sent["new_level"].strip(),
        name=sent.get("new_name", ""),
        inside=_key(sent.get("new_inside", "")),
        reason=reason,
    )
    return made.pk


def _key(text: str) -> UUID | None:
    """None: in no domain. Nonsense is none of them: it must not take a node out of where it stands."""
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("domain_unknown", _("There is no such domain.")) from None


def _show(request: HttpRequest, actor: User, found: Node, exc: DomainError | None = None) -> HttpResponse:
    errors = [f"{one.message} {one.remedy or ''}".strip() for one in exc.errors] if exc else []
    context = {
        "node": found,
        "now": node_page.build(actor, found),
        "chain": domain_chain(found.domain),
        "domains": domain_list(actor),
        "may_edit": actor.is_platform_admin,
        "errors": errors or ([str(exc)] if exc else []),
        "labels": request.POST.get("labels", "\n".join(found.labels)),
        "section": "fleet",
    }
    return render(request, "node.html", context, status=422 if exc else 200)
