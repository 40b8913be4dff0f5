"""What a token may be limited to. `gpuyard.api.scopes` says which route needs which."""

from __future__ import annotations

from collections.abc import Collection, Iterable

READ = "read"
WRITE = "write"
_AREAS: dict[str, tuple[str, ...]] = {
    "account": (READ, WRITE),
    "notifications": (READ, WRITE),
    "teams": (READ, WRITE),
    "workloads": (READ, WRITE),
    "cases": (READ, WRITE),
    "fleet": (READ, WRITE),
    "policy": (READ, WRITE),
    "costs": (READ,),
    "audit": (READ,),
}
TOKEN_SCOPES = (READ, WRITE, *(f"{area}:{verb}" for area, verbs in _AREAS.items() for verb in verbs))
"""`read` and `write` mean all areas, `workloads:write` one. None of them gives what its user may not do."""


def scope_covers(scopes: Collection[str], wanted: str) -> bool:
    """`workloads:write` is in `write`; `write` is in itself only, and no write is a read."""
    return wanted in scopes or wanted.rpartition(":")[2] in scopes


def scopes_beyond(scopes: Collection[str], wanted: Iterable[str]) -> list[str]:
    """Those of `wanted` that `scopes` do not give, sorted."""
    return sorted(one for one in set(wanted) if not scope_covers(scopes, one))
