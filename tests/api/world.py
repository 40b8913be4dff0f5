"""Two companies on one fleet, alike in all that matters, and people of every role: who sees what of whom?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from billing.services import meter
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.fleet.models import Node, Pool, Tier
from scheduling.engine.plan import plan
from scheduling.loader import snapshot_load
from scheduling.models import BandGrant, Eviction, SchedulingPolicyVersion, Workload
from scheduling.records import Timings, pass_proof, pass_record
from scheduling.services import workload_submit
from scheduling.states import WorkloadState
from tenants.models import (
    ApiToken,
    ApproverGroup,
    AskState,
    Case,
    Delegation,
    Grant,
    Quota,
    QuotaChange,
    Role,
)
from tests import factories
from tests.api.calls import token_for


class Side:
    """A company with a team, one workload that waits for its manager, one that waits for GPUs, one that runs."""

    def __init__(self, name: str, tier: Tier, node: Node) -> None:
        self.company = factories.company(f"{name}-company")
        factories.approval_policy(self.company, factories.MANAGER)
        factories.price_rate(self.company, tier)
        self.team = factories.team(self.company, f"{name}-team")
        factories.quota(self.company, tier, guaranteed_gpus=4, limit_gpus=8)
        self.owner = factories.user("member", self.team, username=f"{name}-owner")
        # from the start: a case without a manager goes to the admins
        self.manager = factories.user("manager", self.team, username=f"{name}-manager")
        self.token = ApiToken.objects.get(prefix=token_for(self.owner)[:8], user=self.owner)
        self.account = factories.service_account(self.team, f"{name}-program")
        self.pending = self._asked(f"{name}-pending", tier)
        self.case = Case.objects.get(subject_id=self.pending.pk)
        self.running = self._running(f"{name}-running", tier, node)
        self.grant = BandGrant.objects.create(
            team=self.team, band=1, cap=7000, reason=f"{name} must not wait", granted_by=factories.admin()
        )
        self._quotas(tier)
        self.waiting = factories.workload(self.team, tier, owner=self.owner, name=f"{name}-waiting")
        self.hook = factories.endpoint(f"{name}-hook", team=self.team)
        self.failed = factories.message(self.hook, title=f"{name}-news")
        factories.notification(self.owner, f"{name}-told")
        self.group = ApproverGroup.objects.create(company=self.company, name=f"{name}-board")
        self.group.people.add(self.manager)
        now = clock.now()
        self.delegation = Delegation.objects.create(
            company=self.company,
            person=self.manager,
            delegate=self.owner,
            span=DateTimeTZRange(now, now + timedelta(days=1)),
            reason=f"{name} is on leave",
            created_by=self.manager,
        )

    def _asked(self, name: str, tier: Tier) -> Workload:
        document = factories.spec_document(tier)
        return workload_submit(actor=self.owner, team=self.team, name=name, kind="training", spec=document)

    def _running(self, name: str, tier: Tier, node: Node) -> Workload:
        made = factories.workload(self.team, tier, owner=self.owner, name=name, state=WorkloadState.STARTING)
        gpu = node.gpus.filter(allocations=None).order_by("index")[0]
        factories.placed(made, [gpu], running=True, since=clock.now() - timedelta(minutes=30))
        return made

    def _quotas(self, tier: Tier) -> None:
        """A grant, a change that was asked for, and a version that lies ahead."""
        now = clock.now()
        asked = {"company": self.company, "team": self.team, "requester": self.owner}
        self.given = Grant.objects.create(
            **asked,
            tier=tier,
            units=7000,
            starts_at=now,
            ends_at=now + timedelta(days=9),
            state=AskState.APPROVED,
            reason=f"{self.owner.username} has a deadline",
        )
        self.change = QuotaChange.objects.create(**asked, limit=7000, reason=f"{self.owner.username} grows")
        self.version = Quota.objects.create(team=self.team, tier=tier, starts_at=now + timedelta(days=30))

    def marks(self) -> list[str]:
        """What nobody else may read anywhere: ids and names."""
        rows: list[Any] = [self.company, self.team, self.owner, self.manager, self.case, self.account.user]
        rows += [self.pending, self.running, self.waiting, self.given, self.change]
        names = [self.company.name, self.team.name, self.owner.username, self.manager.username]
        names += [self.pending.name, self.running.name, self.waiting.name, self.grant.reason]
        names += [self.account.name]
        names += [self.hook.name, self.failed.title, f"{self.owner.username.split('-')[0]}-told"]
        names += [self.group.name, self.delegation.reason]
        keys = [self.token.pk, self.grant.pk, self.hook.pk, self.failed.pk]
        keys += [self.version.pk, self.group.pk, self.delegation.pk]
        return [one.public_id for one in rows] + names + [str(key) for key in keys]


class World:
    """`ours` is looked at by its own people and by `stranger`, who has every role in `theirs`."""

    tier: Tier
    node: Node
    pool: Pool
    ours: Side
    theirs: Side
    people: dict[str, User | None]

    def __init__(self) -> None:
        self.tier = factories.tier("h100-80g")
        factories.cost_rate(self.tier)
        self.node = factories.node(self.tier, gpus=4, since=clock.now() - timedelta(hours=1))
        self.pool = self.node.pool
        self.domain = factories.domain("rack")
        self.ours = Side("ours", self.tier, self.node)
        self.theirs = Side("theirs", self.tier, self.node)
        _taken_back(self.ours, self.theirs)
        _taken_back(self.theirs, self.ours)
        SchedulingPolicyVersion.objects.create(
            number=1, document={"reservations": 5}, author=factories.admin(), note="first"
        )
        _pass_recorded()
        Node.objects.update(last_sync_at=clock.now())
        meter()
        stranger = factories.user("member", self.theirs.team, username="theirs-stranger")
        for role in (Role.MANAGER, Role.FINANCE, Role.AUDITOR):
            factories.membership(stranger, self.theirs.company, role)
        self.people = {
            "anonymous": None,
            "stranger": stranger,
            "mate": factories.user("member", self.ours.team, username="ours-mate"),
            "manager": self.ours.manager,
            "finance": factories.user("finance", self.ours.company, username="ours-finance"),
            "auditor": factories.user("auditor", self.ours.company, username="ours-auditor"),
            "admin": factories.admin(),
        }

    def path(self, route: str, subject: str) -> str:
        """The route with its `<…>` filled in with the id of the subject, which is always ours."""
        ids = {
            "": "",
            "team": self.ours.team.public_id,
            "company": self.ours.company.public_id,
            "pending": self.ours.pending.public_id,
            "running": self.ours.running.public_id,
            "case": self.ours.case.public_id,
            "node": self.node.public_id,
            "version": "0",
            "grant": str(self.ours.grant.pk),
            "group": str(self.ours.group.pk),
            "delegation": str(self.ours.delegation.pk),
            "domain": str(self.domain.pk),
            "hook": str(self.ours.hook.pk),
            "failed": str(self.ours.failed.pk),
            "account": self.ours.account.user.public_id,
            "token": str(self.ours.token.pk),
            "pass": "1",
            "given": self.ours.given.public_id,
            "change": self.ours.change.public_id,
            "quota": str(self.ours.version.pk),
        }
        head, mark, rest = route.partition("<")
        path = head + ids[subject] + rest.partition(">")[2] if mark else route
        # a number behind an id is that of a version: the first
        return "/" + path.replace("{subject}", ids[subject]).replace("<int:number>", "1")


def _taken_back(loser: Side, gainer: Side) -> None:
    """As if something of the loser had been taken back for work of the other company."""
    Eviction.objects.create(
        company_id=loser.company.pk,
        team=loser.team,
        workload=loser.running,
        attempt=loser.running.attempts.get(),
        pass_number=1,
        reason="return",
        gained_by=gainer.running,
        units=7000,
        lost_gpu_s=60,
        why={
            "rule": "return",
            "gained_by_team": str(gainer.team.pk),
            "gained_by_workload": str(gainer.running.pk),
            "lost_gpu_s": 60,
        },
    )


def _pass_recorded() -> None:
    """Pass 1 as it would be stored, though nothing of its plan is done."""
    loaded = snapshot_load()
    decided = plan(loaded.snapshot, loaded.policy, loaded.now_us)
    proof = pass_proof(loaded, decided)
    pass_record(loaded, decided, Timings(loaded.now, 1.0, 1.0), started=0, refused={}, proof=proof)
