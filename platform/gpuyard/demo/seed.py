"""What the demo begins with: a company of three teams, its people, tiers, rates, quotas and approval rules.

Safe to run again: what is there stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from billing.services import cost_rate_set, price_rate_set
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Pool, Tier, TierRule
from gpuyard.fleet.services import join_token_create
from tenants.models import Role, Team
from tenants.rules import approval_policy_activate
from tenants.services import (
    company_create,
    membership_add,
    quota_set,
    team_create,
    user_create,
)
from tenants.tokens import token_create

PASSWORD = "gpu-yard-demo-2026"  # noqa: S105  a demo on one machine; printed for whoever tries it
COMPANY = "Northlight"
TEAMS = ("vision", "nlp", "recsys")
POOL = "main"


@dataclass(frozen=True)
class DemoTier:
    name: str
    model: str
    memory_mib: int
    architecture: str
    capabilities: tuple[str, ...]
    cost_rank: int
    cost: str
    price: str
    gpus: int
    guaranteed: dict[str, int]  # team → GPUs


TIERS = (
    DemoTier(
        name="h100-80g",
        model="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        architecture="hopper",
        capabilities=("bf16", "fp8", "nvlink"),
        cost_rank=30,
        cost="2.85",
        price="4.60",
        gpus=8,
        guaranteed={"vision": 4, "nlp": 4},
    ),
    DemoTier(
        name="a100-40g",
        model="NVIDIA A100-SXM4-40GB",
        memory_mib=40960,
        architecture="ampere",
        capabilities=("bf16", "nvlink"),
        cost_rank=20,
        cost="1.35",
        price="2.20",
        gpus=8,
        guaranteed={"vision": 2, "nlp": 4, "recsys": 2},
    ),
    DemoTier(
        name="l4-24g",
        model="NVIDIA L4",
        memory_mib=23034,
        architecture="ada",
        capabilities=("bf16", "fp8"),
        cost_rank=10,
        cost="0.38",
        price="0.70",
        gpus=4,
        guaranteed={"vision": 1, "recsys": 3},
    ),
)

APPROVAL_RULES: dict[str, Any] = {
    "rules": [
        {"name": "R1 up to two hours", "when": {"hours": {"max": 2}}, "then": {"auto": True}},
        {
            "name": "R2 longer than two hours",
            "when": {},
            "then": {"steps": [{"role": "manager", "level": "team"}]},
        },
    ]
}


@dataclass(frozen=True)
class Account:
    username: str
    role: str
    team: str  # "" for the whole company


ACCOUNTS = (
    *(Account(f"{team}-{role}", role, team) for team in TEAMS for role in (Role.MEMBER, Role.MANAGER)),
    Account("finance", Role.FINANCE, ""),
    Account("auditor", Role.AUDITOR, ""),
    Account("admin", "admin", ""),
)


@dataclass
class Seeded:
    """What the demo goes on with. `tokens`: user name → API token, made for this run."""

    company: Team
    teams: dict[str, Team] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)


@transaction.atomic
def seed() -> Seeded:
    """Makes what is missing, and a fresh API token for each account."""
    admin = _user(None, "admin", is_platform_admin=True)
    company = Team.objects.filter(name=COMPANY, parent=None).first() or _company(admin)
    made = Seeded(company, users={"admin": admin})
    Pool.objects.get_or_create(name=POOL)
    for name in TEAMS:
        made.teams[name] = Team.objects.filter(name=name, parent=company).first() or team_create(
            actor=admin, parent=company, name=name
        )
    for tier in TIERS:
        _tier(admin, company, made.teams, tier)
    for account in ACCOUNTS:
        _account(admin, made, account)
    return made


def join_token(made: Seeded) -> str:
    """Returns a join token for the demo's nodes."""
    pool = Pool.objects.get(name=POOL)
    _token, secret = join_token_create(actor=made.users["admin"], pool=pool, uses=len(TIERS))
    return secret


def _company(admin: User) -> Team:
    company = company_create(actor=admin, name=COMPANY, currency="EUR", time_zone="Europe/Berlin")
    approval_policy_activate(actor=admin, company=company, document=APPROVAL_RULES)
    return company


def _user(actor: User | None, username: str, *, is_platform_admin: bool = False) -> User:
    found = User.objects.filter(username=username).first()
    return found or user_create(
        actor=actor, username=username, password=PASSWORD, is_platform_admin=is_platform_admin
    )


def _tier(admin: User, company: Team, teams: dict[str, Team], wanted: DemoTier) -> None:
    tier, is_new = Tier.objects.get_or_create(
        name=wanted.name,
        defaults={
            "model": wanted.model,
            "memory_mib": wanted.memory_mib,
            "architecture": wanted.architecture,
            "capabilities": list(wanted.capabilities),
            "cost_rank": wanted.cost_rank,
        },
    )
    if not is_new:
        return
    TierRule.objects.create(tier=tier, model=wanted.model, span=DateTimeTZRange(clock.now(), None))
    cost_rate_set(actor=admin, tier=tier, rate=Decimal(wanted.cost), reason="demo")
    price_rate_set(actor=admin, team=company, tier=tier, rate=Decimal(wanted.price), reason="demo")
    units = wanted.gpus * UNITS_PER_GPU
    # No limit for the company: the machines are one, and what waits for them alone gets a reserved start.
    quota_set(actor=admin, team=company, tier=tier, guaranteed=units, limit=None)
    for name, team in teams.items():
        guaranteed = wanted.guaranteed.get(name, 0) * UNITS_PER_GPU
        quota_set(actor=admin, team=team, tier=tier, guaranteed=guaranteed, limit=units)


def _account(admin: User, made: Seeded, account: Account) -> None:
    user = made.users.get(account.username) or _user(admin, account.username)
    made.users[account.username] = user
    team = made.teams[account.team] if account.team else made.company
    if account.role in Role.values and not user.memberships.filter(team=team, role=account.role).exists():
        membership_add(actor=admin, team=team, user=user, role=account.role)
    _token, secret = token_create(
        actor=user, name="demo", scopes=["read", "write"], lifetime=timedelta(days=1)
    )
    made.tokens[account.username] = secret
