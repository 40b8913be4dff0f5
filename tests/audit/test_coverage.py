"""Every service stands in one table, and its act in the log: who, through which door, before, after, why.

A service is a public function that takes `actor` by name. A new one that is not in the table fails the first test.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import pytest
from django.test import Client

import billing
import gpuyard.fleet
import gpuyard.notify
import scheduling
import tenants
from billing import services as money
from gpuyard.audit.doors import door
from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.fleet import services as fleet
from gpuyard.fleet import tiers, topology
from gpuyard.fleet.models import Node, NodeState, Tier
from gpuyard.notify import endpoints
from gpuyard.notify import services as notify
from gpuyard.notify.models import Endpoint, Message
from scheduling import bands, losses, policies
from scheduling import services as work
from scheduling.models import BandGrant, Workload
from scheduling.submit import workload_submit
from tenants import asking, cases, deciding, delegations, quotas, rules, service_accounts, signins, tokens
from tenants import services as people
from tenants.models import ApproverGroup, Case, Delegation, Grant, Quota, Team
from tests import factories as make

WHY = "because I say so"


class World:
    """What the acts need, made when it is needed."""

    @cached_property
    def admin(self) -> User:
        return make.admin(username="actor")

    @cached_property
    def company(self) -> Team:
        company = make.company("acme")
        make.approval_policy(company, make.MANAGER)
        return company

    @cached_property
    def team(self) -> Team:
        return make.team(self.company, "vision")

    @cached_property
    def tier(self) -> Tier:
        return make.tier("h100-80g")

    @cached_property
    def node(self) -> Node:
        return make.node(self.tier, 2)

    @cached_property
    def member(self) -> User:
        return make.user("member", self.team)

    @cached_property
    def pending(self) -> Workload:
        make.user("manager", self.team)
        document = make.spec_document(self.tier)
        return workload_submit(actor=self.member, team=self.team, name="w", kind="training", spec=document)

    @cached_property
    def case(self) -> Case:
        return Case.objects.get(subject_id=self.pending.pk)

    def admin_as_manager(self) -> User:
        make.membership(self.admin, self.team, "manager")
        return self.admin


@dataclass(frozen=True)
class Act:
    """A call that changes something, its event (or how its events begin), and what one tells besides who and whence."""

    call: Callable[[World], Any]
    action: str
    has: str = "new"  # of: old new reason
    before: Callable[[World], Any] = field(default=lambda world: None)


def _submitted(world: World) -> Any:
    make.membership(world.admin, world.team, "member")
    document = make.spec_document(world.tier)
    return workload_submit(
        actor=world.admin, team=world.team, name="w", kind="training", spec=document, justification=WHY
    )


def _mine(world: World) -> User:
    """A request of the actor's own; returns who may decide."""
    manager = make.user("manager", world.team)
    _submitted(world)
    return manager


def _sent_back(world: World) -> None:
    manager = _mine(world)
    deciding.case_send_back(actor=manager, case_public_id=Case.objects.get().public_id, question="Why two?")


def _delegation(world: World) -> Any:
    now = clock.now()
    return delegations.delegation_create(
        actor=world.admin,
        company=world.company,
        person=world.member,
        delegate=make.user("manager", world.team),
        starts_at=now,
        ends_at=now + timedelta(days=1),
        reason=WHY,
    )


def _group(world: World) -> Any:
    people_in_it = [make.user("manager", world.team)]
    return delegations.group_create(
        actor=world.admin, company=world.company, name="board", people=people_in_it
    )


def _array(world: World) -> Workload:
    make.membership(world.admin, world.team, "member")
    document = make.spec_document(world.tier, request_fields={"array": {"count": 2}})
    return workload_submit(actor=world.admin, team=world.team, name="w", kind="training", spec=document)


def _quota(world: World, gpus: int) -> Any:
    make.quota(world.company, world.tier, guaranteed_gpus=8) if gpus == 1 else None
    units = gpus * 7000
    return quotas.quota_set(actor=world.admin, team=world.team, tier=world.tier, guaranteed=units, limit=None)


def _later() -> datetime:
    return clock.now() + timedelta(days=7)


def _quota_of_tomorrow(world: World) -> Any:
    return quotas.quota_set(
        actor=world.admin, team=world.team, tier=world.tier, guaranteed=0, limit=7000, starts_at=_later()
    )


def _granted(world: World) -> None:
    """The actor asks for a grant, and the manager above gives it."""
    make.quota(world.company, world.tier, guaranteed_gpus=8)
    make.membership(world.admin, world.team, "manager")
    head = make.user("manager", world.company)
    asking.grant_ask(
        actor=world.admin, team=world.team, tier=world.tier, units=7000, ends_at=_later(), reason=WHY
    )
    deciding.case_decide(actor=head, case_public_id=Case.objects.get().public_id, approve=True)


def _signed_in(world: World) -> None:
    Client().force_login(world.admin)


def _lost(world: World) -> None:
    Node.objects.filter(pk=world.node.pk).update(state=NodeState.LOST)


def _endpoint(world: World, **fields: Any) -> Endpoint:
    address = "https://8.8.8.8/x?token=hunter2"
    return endpoints.endpoint_create(
        actor=world.admin,
        kind="webhook",
        name="ops",
        url=address,
        team_id=world.team.pk,
        company_id=world.company.pk,
    )[0]


def _failed(world: World) -> None:
    endpoints.endpoint_test(actor=world.admin, endpoint=_endpoint(world))
    Message.objects.update(state="failed", ended_at=clock.now())


ACTS: dict[str, Act] = {
    # --- tenants
    "tenants.services.company_create": Act(
        lambda w: people.company_create(actor=w.admin, name="new", currency="EUR", time_zone="UTC"),
        "company.create",
    ),
    "tenants.services.team_create": Act(
        lambda w: people.team_create(actor=w.admin, parent=w.company, name="new"), "team.create"
    ),
    "tenants.services.user_create": Act(
        lambda w: people.user_create(actor=w.admin, username="new"), "user.create"
    ),
    "tenants.services.time_zone_set": Act(
        lambda w: people.time_zone_set(actor=w.admin, time_zone="Europe/Berlin"), "user.time_zone", "old new"
    ),
    "tenants.signins.sign_ins_end": Act(
        lambda w: signins.sign_ins_end(actor=w.admin), "sign_in.revoke", before=_signed_in
    ),
    "tenants.services.membership_add": Act(
        lambda w: people.membership_add(actor=w.admin, team=w.team, user=w.member, role="auditor"),
        "membership.add",
    ),
    "tenants.services.membership_remove": Act(
        lambda w: people.membership_remove(actor=w.admin, membership=w.member.memberships.get()),
        "membership.remove",
    ),
    "tenants.quotas.quota_cancel": Act(
        lambda w: quotas.quota_cancel(actor=w.admin, quota_id=Quota.objects.latest("starts_at").pk),
        "quota.cancel",
        "old",
        before=_quota_of_tomorrow,
    ),
    "tenants.asking.grant_ask": Act(
        lambda w: asking.grant_ask(
            actor=w.admin, team=w.team, tier=w.tier, units=7000, ends_at=_later(), reason=WHY
        ),
        "grant.ask",
        "new reason",
        before=lambda w: make.membership(w.admin, w.team, "member"),
    ),
    "tenants.asking.grant_renew": Act(
        lambda w: asking.grant_renew(
            actor=w.admin,
            grant_public_id=Grant.objects.get().public_id,
            ends_at=_later() + timedelta(days=7),
            reason=WHY,
        ),
        "grant.ask",
        "new reason",
        before=_granted,
    ),
    "tenants.asking.grant_revoke": Act(
        lambda w: asking.grant_revoke(
            actor=w.admin, grant_public_id=Grant.objects.get().public_id, reason=WHY
        ),
        "grant.revoke",
        "old new reason",
        before=_granted,
    ),
    "tenants.asking.quota_ask": Act(
        lambda w: asking.quota_ask(
            actor=w.admin, team=w.team, tier=w.tier, amounts=quotas.Amounts(0, 7000, None, 1), reason=WHY
        ),
        "quota.ask",
        "new reason",
        before=lambda w: make.membership(w.admin, w.team, "manager"),
    ),
    "tenants.quotas.quota_set": Act(
        lambda w: _quota(w, 2), "quota.set", "old new", before=lambda w: _quota(w, 1)
    ),
    "tenants.tokens.token_create": Act(
        lambda w: tokens.token_create(actor=w.admin, name="ci", scopes=["read"], lifetime=timedelta(days=1)),
        "token.create",
    ),
    "tenants.tokens.token_revoke": Act(
        lambda w: tokens.token_revoke(actor=w.admin, token_id=w.admin.tokens.get().pk),
        "token.revoke",
        before=lambda w: tokens.token_create(
            actor=w.admin, name="ci", scopes=["read"], lifetime=timedelta(days=1)
        ),
    ),
    "tenants.service_accounts.service_account_create": Act(
        lambda w: service_accounts.service_account_create(actor=w.admin, team=w.team, name="ci"),
        "service_account.create",
    ),
    "tenants.service_accounts.service_account_close": Act(
        lambda w: service_accounts.service_account_close(
            actor=w.admin, account=make.service_account(w.team), reason=WHY
        ),
        "service_account.close",
        "old reason",
    ),
    "tenants.rules.approval_policy_activate": Act(
        lambda w: rules.approval_policy_activate(
            actor=w.admin, company=w.company, document=make.AUTO, note=WHY
        ),
        "approval_policy.activate",
        "old new reason",
    ),
    "tenants.rules.approval_policy_rollback": Act(
        lambda w: rules.approval_policy_rollback(
            actor=w.admin, company=w.company, version=1, based_on=2, note=WHY
        ),
        "approval_policy.rollback",
        "old new reason",
        before=lambda w: rules.approval_policy_activate(actor=w.admin, company=w.company, document=make.AUTO),
    ),
    "tenants.deciding.case_decide": Act(
        lambda w: deciding.case_decide(
            actor=w.admin_as_manager(), case_public_id=w.case.public_id, approve=False, reason=WHY
        ),
        "case",
        "old new reason",
        before=lambda w: w.case,
    ),
    "tenants.deciding.cases_decide": Act(
        lambda w: deciding.cases_decide(
            actor=w.admin_as_manager(), case_public_ids=[w.case.public_id], approve=False, reason=WHY
        ),
        "case",
        "old new reason",
        before=lambda w: w.case,
    ),
    "tenants.deciding.case_send_back": Act(
        lambda w: deciding.case_send_back(
            actor=w.admin_as_manager(), case_public_id=w.case.public_id, question=WHY
        ),
        "case",
        "old new reason",
        before=lambda w: w.case,
    ),
    "tenants.cases.case_answer": Act(
        lambda w: cases.case_answer(actor=w.admin, case_public_id=Case.objects.get().public_id, answer=WHY),
        "case",
        "old new reason",
        before=_sent_back,
    ),
    "tenants.cases.case_amend": Act(
        lambda w: cases.case_amend(
            actor=w.admin, case_public_id=Case.objects.get().public_id, changes={"priority": 3}, reason=WHY
        ),
        "workload.amend",
        "old new reason",
        before=_mine,
    ),
    "tenants.cases.case_withdraw": Act(
        lambda w: cases.case_withdraw(actor=w.admin, case_public_id=w.case.public_id, reason=WHY),
        "case",
        "old new reason",
        before=lambda w: w.case,
    ),
    "tenants.delegations.delegation_create": Act(_delegation, "delegation", "new reason"),
    "tenants.delegations.delegation_revoke": Act(
        lambda w: delegations.delegation_revoke(actor=w.admin, delegation_id=Delegation.objects.get().pk),
        "delegation",
        "old",
        before=_delegation,
    ),
    "tenants.delegations.group_create": Act(_group, "approver_group.create"),
    "tenants.delegations.group_set_people": Act(
        lambda w: delegations.group_set_people(actor=w.admin, group=ApproverGroup.objects.get(), people=[]),
        "approver_group.people",
        "old new",
        before=_group,
    ),
    "tenants.delegations.group_delete": Act(
        lambda w: delegations.group_delete(actor=w.admin, group=ApproverGroup.objects.get()),
        "approver_group.delete",
        "old",
        before=_group,
    ),
    # --- fleet
    "gpuyard.fleet.services.join_token_create": Act(
        lambda w: fleet.join_token_create(actor=w.admin, pool=make.pool()), "join_token.create"
    ),
    "gpuyard.fleet.services.node_secret_revoke": Act(
        lambda w: fleet.node_secret_revoke(actor=w.admin, node_id=w.node.pk, reason=WHY),
        "node.secret_revoke",
        "reason",
    ),
    "gpuyard.fleet.services.node_cordon": Act(
        lambda w: fleet.node_cordon(actor=w.admin, node_id=w.node.pk, reason=WHY),
        "node.cordon",
        "old new reason",
    ),
    "gpuyard.fleet.services.node_drain": Act(
        lambda w: fleet.node_drain(actor=w.admin, node_id=w.node.pk, reason=WHY),
        "node.drain",
        "old new reason",
    ),
    "gpuyard.fleet.services.node_uncordon": Act(
        lambda w: fleet.node_uncordon(actor=w.admin, node_id=w.node.pk, reason=WHY),
        "node.uncordon",
        "old new reason",
        before=lambda w: fleet.node_cordon(actor=w.admin, node_id=w.node.pk, reason="x"),
    ),
    "gpuyard.fleet.tiers.tier_speeds_set": Act(
        lambda w: tiers.tier_speeds_set(
            actor=w.admin, tier=w.tier.name, speeds={"training": 2.0}, reason=WHY
        ),
        "tier.speeds",
        "old new reason",
    ),
    "gpuyard.fleet.topology.node_labels_set": Act(
        lambda w: topology.node_labels_set(actor=w.admin, node_id=w.node.pk, labels=["zone=a"], reason=WHY),
        "node.labels",
        "old new reason",
    ),
    "gpuyard.fleet.topology.node_domain_set": Act(
        lambda w: topology.node_domain_set(
            actor=w.admin, node_id=w.node.pk, domain_id=make.domain("rack").pk, reason=WHY
        ),
        "node.domain",
        "old new reason",
    ),
    "gpuyard.fleet.topology.domain_create": Act(
        lambda w: topology.domain_create(actor=w.admin, level="rack", name="r1", reason=WHY),
        "fabric_domain.create",
        "new reason",
    ),
    "gpuyard.fleet.topology.domain_delete": Act(
        lambda w: topology.domain_delete(actor=w.admin, domain_id=make.domain("rack").pk, reason=WHY),
        "fabric_domain.delete",
        "old reason",
    ),
    # --- scheduling
    "scheduling.submit.workload_submit": Act(_submitted, "workload.submit", "new reason"),
    "scheduling.services.workload_stop": Act(
        lambda w: work.workload_stop(actor=w.admin, workload=make.workload(w.team, w.tier), reason=WHY),
        "workload.cancel",
        "old new reason",
    ),
    "scheduling.services.array_stop": Act(
        lambda w: work.array_stop(actor=w.admin, workload=_array(w), reason=WHY),
        "workload.cancel",
        "old new reason",
    ),
    "scheduling.bands.band_grant": Act(
        lambda w: bands.band_grant(actor=w.admin, team=w.team, band=1, cap=7000, reason=WHY),
        "band.grant",
        "new reason",
    ),
    "scheduling.bands.band_revoke": Act(
        lambda w: bands.band_revoke(actor=w.admin, grant_id=BandGrant.objects.get().pk, reason=WHY),
        "band.revoke",
        "new reason",
        before=lambda w: bands.band_grant(actor=w.admin, team=w.team, band=1, cap=7000, reason="x"),
    ),
    "scheduling.losses.node_confirm_dead": Act(
        lambda w: losses.node_confirm_dead(actor=w.admin, node_id=w.node.pk, reason=WHY),
        "node.confirm_dead",
        "reason",
        before=_lost,
    ),
    "scheduling.policies.policy_set": Act(
        lambda w: policies.policy_set(actor=w.admin, changes={"reservations": 9}, based_on=0, reason=WHY),
        "policy.set",
        "old new reason",
    ),
    "scheduling.policies.policy_rollback": Act(
        lambda w: policies.policy_rollback(actor=w.admin, number=0, based_on=1, reason=WHY),
        "policy.rollback",
        "old new reason",
        before=lambda w: policies.policy_set(
            actor=w.admin, changes={"reservations": 9}, based_on=0, reason="x"
        ),
    ),
    # --- billing
    "billing.services.cost_rate_set": Act(
        lambda w: money.cost_rate_set(actor=w.admin, tier=w.tier, rate=Decimal(2), reason=WHY),
        "cost_rate.set",
        "old new reason",
        before=lambda w: make.cost_rate(w.tier),
    ),
    "billing.services.price_rate_set": Act(
        lambda w: money.price_rate_set(actor=w.admin, team=w.team, tier=w.tier, rate=Decimal(2), reason=WHY),
        "price_rate.set",
        "old new reason",
        before=lambda w: make.price_rate(w.team, w.tier),
    ),
    # --- notify
    "gpuyard.notify.endpoints.endpoint_create": Act(_endpoint, "notify.endpoint_create"),
    "gpuyard.notify.endpoints.endpoint_events_set": Act(
        lambda w: endpoints.endpoint_events_set(actor=w.admin, endpoint=Endpoint.objects.get(), events=[]),
        "notify.endpoint_events",
        "old new",
        before=_endpoint,
    ),
    "gpuyard.notify.endpoints.endpoint_rotate": Act(
        lambda w: endpoints.endpoint_rotate(actor=w.admin, endpoint=Endpoint.objects.get()),
        "notify.endpoint_rotate",
        before=_endpoint,
    ),
    "gpuyard.notify.endpoints.endpoint_remove": Act(
        lambda w: endpoints.endpoint_remove(actor=w.admin, endpoint=Endpoint.objects.get()),
        "notify.endpoint_remove",
        "",
        before=_endpoint,
    ),
    "gpuyard.notify.endpoints.endpoint_test": Act(
        lambda w: endpoints.endpoint_test(actor=w.admin, endpoint=Endpoint.objects.get()),
        "notify.endpoint_test",
        "",
        before=_endpoint,
    ),
    "gpuyard.notify.endpoints.message_again": Act(
        lambda w: endpoints.message_again(actor=w.admin, message=Message.objects.get()),
        "notify.send_again",
        "",
        before=_failed,
    ),
    "gpuyard.notify.services.choices_set": Act(
        lambda w: notify.choices_set(actor=w.admin, pace="daily", hour=8, time_zone="UTC", choices={}),
        "notify.choose",
        "old new",
    ),
}
# Parts of the services above, which are called in their transaction, and what changes nothing that anybody else has.
NO_ACTS = {
    "scheduling.lifecycle.workload_stop_begin": "a part of workload_stop and of time limits",
    "scheduling.services.workloads_move": "a part of array_stop and of decided cases",
    "scheduling.transitions.attempt_move": "writes its own event; a part of the lifecycle",
    "scheduling.transitions.replica_end": "writes its own event; a part of the lifecycle",
    "scheduling.transitions.replica_move": "writes its own event; a part of the lifecycle",
    "scheduling.transitions.workload_move": "writes its own event; a part of the lifecycle",
    "scheduling.policy_preview.policy_preview": "changes nothing",
    "tenants.rules.approval_policy_preview": "changes nothing",
    "tenants.quotas.quota_store": "writes the event of quota_set and of decided cases",
    "scheduling.amending.request_amend": "a part of case_amend",
    "scheduling.amending.request_less": "a part of case_decide",
    "tenants.endpoints.team_endpoint_create": "proves the right; the event is endpoint_create's",
    "gpuyard.notify.services.notifications_read": "a mark that only its reader sees",
    "gpuyard.notify.selectors.messages_of": "reads",
}


def services() -> Iterator[str]:
    """The full names of all services."""
    for package in (gpuyard.fleet, gpuyard.notify, tenants, scheduling, billing):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if any(part in found.name for part in (".migrations", ".engine", ".management", ".simulation")):
                continue
            module = importlib.import_module(found.name)
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if name.startswith("_") or function.__module__ != module.__name__:
                    continue
                actor = inspect.signature(function).parameters.get("actor")
                if actor is not None and actor.kind is actor.KEYWORD_ONLY:
                    yield f"{module.__name__}.{name}"


def test_every_service_stands_in_the_table() -> None:
    assert set(services()) - set(ACTS) - set(NO_ACTS) == set(), "say in ACTS which event it leaves"


def test_every_row_is_a_service() -> None:
    assert (set(ACTS) | set(NO_ACTS)) - set(services()) == set()


@pytest.mark.django_db
@pytest.mark.parametrize("name", sorted(ACTS))
def test_an_act_leaves_its_event(name: str) -> None:
    act, world = ACTS[name], World()
    act.before(world)
    known = set(Event.objects.values_list("pk", flat=True))
    with door("api"):
        act.call(world)
    events = Event.objects.exclude(pk__in=known)
    own = [one for one in events if one.action == act.action or one.action.startswith(f"{act.action}.")]
    assert own, [one.action for one in events]
    for event in own:
        assert (event.actor_label, event.source) == ("actor", "api")
        assert event.subject_label
        assert event.reason in ("", WHY)
    told = [{part for part in ("old", "new", "reason") if getattr(one, part)} for one in own]
    assert any(set(act.has.split()) <= parts for parts in told), told
