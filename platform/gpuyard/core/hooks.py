"""Where a lower app needs something from a higher one: the higher app registers a typed provider here.

`AppConfig.ready()` registers, services call. Registering twice is an error, and a missing provider stops the
start-up: a system check for every management command, `hooks_require()` for web servers and workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from django.core.checks import Error
from django.core.exceptions import ImproperlyConfigured

_T = TypeVar("_T")


class HookError(Exception):
    """A provider was registered twice, or asked for and never registered. A fault of ours."""


@dataclass
class Hook(Generic[_T]):
    """One provider for the whole platform."""

    name: str
    required: bool = True
    _provider: _T | None = None

    def register(self, provider: _T) -> _T:
        """Sets the provider; returns it, so that it works as a decorator."""
        if self._provider is not None and self._provider is not provider:
            raise HookError(f"{self.name} has a provider already: {self._provider!r}")
        self._provider = provider
        return provider

    def get(self) -> _T:
        """Returns the provider."""
        if self._provider is None:
            raise HookError(f"{self.name} has no provider")
        return self._provider

    def missing(self) -> list[str]:
        """What a complete platform still needs here."""
        return [self.name] if self.required and self._provider is None else []


@dataclass
class KeyedHook(Generic[_T]):
    """One provider for each key (a subject type, for example)."""

    name: str
    required: tuple[str, ...] = ()
    _providers: dict[str, _T] = field(default_factory=dict)

    def register(self, key: str, provider: _T) -> _T:
        """Sets the provider of a key."""
        if self._providers.get(key, provider) is not provider:
            raise HookError(f"{self.name}[{key}] has a provider already: {self._providers[key]!r}")
        self._providers[key] = provider
        return provider

    def get(self, key: str) -> _T:
        """Returns the provider of a key."""
        try:
            return self._providers[key]
        except KeyError:
            raise HookError(f"{self.name}[{key}] has no provider") from None

    def keys(self) -> tuple[str, ...]:
        """The keys that have a provider."""
        return tuple(self._providers)

    def missing(self) -> list[str]:
        """What a complete platform still needs here."""
        return [f"{self.name}[{key}]" for key in self.required if key not in self._providers]


# --- What is asked, and what is answered ---------------------------------------------------------------


@dataclass(frozen=True)
class EstimateRequest:
    """GPUs to be priced: `units` in 1/7000 GPU over all replicas, on the dearest of `tier_ids`."""

    team_id: UUID
    kind: str
    tier_ids: tuple[UUID, ...]
    units: int
    time_limit_s: int | None


@dataclass(frozen=True)
class Estimate:
    """What a request would cost its team; no total without a time limit. Amounts are unrounded prices."""

    currency: str
    hourly: Decimal
    total: Decimal | None


@dataclass(frozen=True)
class Eta:
    """When a waiting workload is expected to start, and when that was worked out; no `starts_at`: unknown."""

    starts_at: datetime | None
    as_of: datetime


@dataclass(frozen=True)
class Holder:
    """Who holds GPUs of a tier: a live workload, its team and until when (its time limit, if it has one)."""

    workload_id: UUID
    workload_public_id: str
    workload_name: str
    team_id: UUID
    team_name: str
    tier_id: UUID
    units: int
    ends_at: datetime | None


@dataclass(frozen=True)
class CardFact:
    """One line of an approval card: a label and its value in the user's language."""

    code: str
    label: str
    value: str
    url: str | None = None


@dataclass(frozen=True)
class SubjectFacts:
    """What a case's subject asks for now: in words, and as the approval rules see it (plain JSON values)."""

    label: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class LessField:
    """A whole number that an approver may grant less of: from `least` to `now`. `now` None: it has no bound yet."""

    name: str
    label: str
    now: int | None
    least: int
    most: int


CaseOutcome = Literal["approved", "rejected", "withdrawn", "expired"]


class CaseHandler(Protocol):
    """What the app of a case's subject does for the approval process. All of it runs in the case's transaction.

    The case's row and its steps are locked before a handler is called, so that it locks its own rows last. A handler
    that raises a `DomainError` undoes the whole act, and its words are what the person reads.
    """

    kinds: tuple[str, ...]
    """The kinds of request (`Facts.kind`) that rules can name for this subject."""

    def fingerprint(self, *, subject_id: UUID, lock: bool = False) -> str | None:
        """A digest of what approvers decide on: another one is a material change. None: nothing waits any more.

        With `lock` the subject cannot change until the end of the transaction.
        """

    def facts_now(self, *, subject_id: UUID) -> SubjectFacts:
        """What the rules are asked about after an amendment, or after less was approved."""

    def less_fields(self, *, subject_id: UUID) -> Sequence[LessField]:
        """What of it can be granted less; none: it is all or nothing."""

    def apply_less(self, *, subject_id: UUID, less: Mapping[str, int], actor: Any, reason: str) -> None:
        """Makes the subject ask for less. The values have been checked against `less_fields`."""

    def amend(self, *, subject_id: UUID, changes: Mapping[str, Any], actor: Any, reason: str) -> None:
        """Changes what is asked for; `Invalid` names what is wrong with `changes`."""

    def on_case_ended(
        self, *, case_id: UUID, subject_id: UUID, outcome: CaseOutcome, actor: Any, reason: str
    ) -> None:
        """Acts on the outcome. `actor` is the `core.User` whose act ended it, None: a rule, or time."""

    def card_facts(self, *, subject_id: UUID) -> Sequence[CardFact]:
        """The facts that an approver needs, as of now."""

    def public_ids(self, *, subject_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """What they are called in addresses. Whoever may see the case may see this."""


class EstimateProvider(Protocol):
    def __call__(self, request: EstimateRequest) -> Estimate | None:
        """None: no rate covers it."""


class EtaProvider(Protocol):
    def __call__(self, workload_id: UUID) -> Eta: ...


class HoldersProvider(Protocol):
    def __call__(self, tier_ids: Sequence[UUID]) -> Sequence[Holder]: ...


class TierCostsProvider(Protocol):
    def __call__(self) -> Mapping[UUID, Decimal]:
        """Tier → what a GPU-hour of it costs now; a tier without a rate is left out."""


case_handlers: KeyedHook[CaseHandler] = KeyedHook("case_handlers", required=("workload",))
estimate: Hook[EstimateProvider] = Hook("estimate")
eta: Hook[EtaProvider] = Hook("eta")
holders: Hook[HoldersProvider] = Hook("holders")
tier_costs: Hook[TierCostsProvider] = Hook("tier_costs")

ALL: tuple[Hook[Any] | KeyedHook[Any], ...] = (case_handlers, estimate, eta, holders, tier_costs)


def case_kinds() -> list[str]:
    """All kinds of request that there are cases about, sorted."""
    return sorted({kind for key in case_handlers.keys() for kind in case_handlers.get(key).kinds})  # noqa: SIM118


# --- The start-up check ----------------------------------------------------------------------------------


def hooks_missing() -> list[str]:
    """The names of the required providers that nobody registered."""
    return [name for hook in ALL for name in hook.missing()]


def hooks_require() -> None:
    """Stops a process that management commands' checks do not cover: call it in wsgi and in the workers."""
    if missing := hooks_missing():
        raise ImproperlyConfigured(f"No provider is registered for: {', '.join(missing)}")


def hooks_check(app_configs: Any, **kwargs: Any) -> list[Error]:
    """The system check that the core registers: each missing provider is an error."""
    return [
        Error(
            f"core.hooks: {name} has no provider.",
            hint="Register one in the ready() of the app that knows the answer.",
            id="core.E001",
        )
        for name in hooks_missing()
    ]
