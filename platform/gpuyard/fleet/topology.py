"""Where nodes stand and what they are called: labels, and the domains of the fabric. What platform admins set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core.errors import Conflict, FieldError, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_check
from gpuyard.fleet.labels import LABEL
from gpuyard.fleet.models import FabricDomain, Node
from gpuyard.fleet.services import node_lock

MOST_LABELS = 64
OWN_LEVELS = ("island", "node")  # what every fleet has below its fabric
_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@transaction.atomic
def node_labels_set(*, actor: User, node_id: UUID, labels: Sequence[str], reason: str = "") -> Node:
    """The node has these labels from now on, and no others. Its epoch grows: no pass places by the old ones."""
    _require_admin(actor)
    node, new = node_lock(node_id), _labels_check(labels)
    if new == node.labels:
        return node
    old, node.labels = node.labels, new
    _save(node, "labels")
    event_record(
        company_id=None,
        actor=actor,
        action="node.labels",
        subject=node,
        old={"labels": old},
        new={"labels": new},
        reason=_reason_check(reason),
    )
    return node


def _labels_check(labels: Sequence[str]) -> list[str]:
    wrong = [
        FieldError(
            f"labels.{number}",
            "node_label",
            _("“%(label)s” is no label.") % {"label": text[:40]},
            _("Write key=value with letters, digits, . _ and -, such as zone=a."),
        )
        for number, text in enumerate(labels)
        if not LABEL.fullmatch(text)
    ]
    keys = [text.partition("=")[0] for text in labels]
    if len(set(keys)) < len(keys):
        again = next(key for key in keys if keys.count(key) > 1)
        message = _("“%(key)s” is given twice.") % {"key": again[:40]}
        wrong.append(FieldError("labels", "repeated", message, _("Give each key one value.")))
    if len(labels) > MOST_LABELS:
        message = _("There are %(n)s labels.") % {"n": len(labels)}
        remedy = _("Give at most %(most)s.") % {"most": MOST_LABELS}
        wrong.append(FieldError("labels", "too_long", message, remedy))
    if wrong:
        raise Invalid("labels_invalid", _("The labels are not valid."), errors=wrong)
    return sorted(labels)


@transaction.atomic
def node_domain_set(*, actor: User, node_id: UUID, domain_id: UUID | None, reason: str = "") -> Node:
    """The node stands in this domain, and so in all domains around it; None: in none that is known."""
    _require_admin(actor)
    node = node_lock(node_id)
    domain = domain_get(domain_id) if domain_id else None
    if node.domain_id == domain_id:
        return node
    old, node.domain = node.domain, domain
    _save(node, "domain")
    event_record(
        company_id=None,
        actor=actor,
        action="node.domain",
        subject=node,
        old={"domain": str(old) if old else None},
        new={"domain": str(domain) if domain else None},
        reason=_reason_check(reason),
    )
    return node


def domain_create(
    *, actor: User, level: str, name: str, inside: UUID | None = None, reason: str = ""
) -> FabricDomain:
    """A new domain inside another one, or by itself. Levels are any words: they mean what the tree makes of them."""
    _require_admin(actor)
    level, name = _level_check(level), text_check(name, field="name", longest=64)
    parent = domain_get(inside) if inside else None
    if parent and level in {one.level for one in domain_chain(parent)}:
        raise Invalid(
            "level_repeated",
            _("%(inside)s is a %(level)s already, or is inside one.")
            % {"inside": parent.name, "level": level},
            field="level",
            remedy=_("Name a smaller level, or put it inside something wider."),
        )
    try:
        with transaction.atomic():
            domain = FabricDomain.objects.create(level=level, name=name, parent=parent)
            event_record(
                company_id=None,
                actor=actor,
                action="fabric_domain.create",
                subject=domain,
                new={"level": level, "name": name, "inside": str(parent) if parent else None},
                reason=_reason_check(reason),
            )
    except IntegrityError as exc:
        raise Conflict(
            "domain_exists",
            _("There is a %(level)s of this name already.") % {"level": level},
            field="name",
            remedy=_("Choose another name."),
        ) from exc
    return domain


@transaction.atomic
def domain_delete(*, actor: User, domain_id: UUID, reason: str = "") -> None:
    """Takes an empty domain away: one with no node and no domain in it."""
    _require_admin(actor)
    domain = domain_get(domain_id)
    told = {"level": domain.level, "name": domain.name}
    event_record(
        company_id=None,
        actor=actor,
        action="fabric_domain.delete",
        subject=domain,
        old=told,
        reason=_reason_check(reason),
    )
    try:
        domain.delete()
    except ProtectedError as exc:
        raise Conflict(
            "domain_in_use",
            _("There are nodes or domains in %(name)s.") % {"name": domain.name},
            remedy=_("Move them elsewhere first."),
        ) from exc


def domain_get(domain_id: UUID) -> FabricDomain:
    """One domain."""
    domain = FabricDomain.objects.select_related("parent").filter(pk=domain_id).first()
    if domain is None:
        raise NotFound("domain_unknown", _("There is no such domain."))
    return domain


def domain_chain(domain: FabricDomain | None) -> list[FabricDomain]:
    """The domain and those around it, the widest first."""
    found: list[FabricDomain] = []
    while domain is not None and domain not in found:
        found.append(domain)
        domain = domain.parent
    return found[::-1]


def _level_check(level: str) -> str:
    if _LEVEL.fullmatch(level) and level not in OWN_LEVELS:
        return level
    raise Invalid(
        "level_invalid",
        _("This is no level of a fabric."),
        field="level",
        remedy=_(
            "Use small letters, digits, - and _, such as rack; island and node are levels of every fleet."
        ),
    )


def _reason_check(reason: str) -> str:
    return text_check(reason, field="reason", longest=200, is_optional=True)


def _save(node: Node, field: str) -> None:
    node.epoch += 1
    node.save(update_fields=[field, "epoch"])


def _require_admin(actor: User) -> None:
    if not actor.is_platform_admin:
        raise Forbidden("admin_needed", _("Only a platform admin may do this."))
