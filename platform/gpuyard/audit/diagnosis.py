"""What is wrong with a broken chain, named: altered, deleted, inserted, reordered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpuyard.audit.chain import GENESIS, SealedRow, seal_hash


@dataclass(frozen=True, slots=True)
class Link:
    """A sealed event without its content: what is needed to see how the chain was broken."""

    id: str
    sequence: int
    prev: str
    hash: str
    content_ok: bool


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a chain. `kind`: altered | deleted | inserted | reordered; checkpoint: a bad signature."""

    kind: str
    sequence: int
    last_sequence: int
    event_id: str | None
    message: str


@dataclass(frozen=True)
class Anchor:
    """What a chain once was: at this sequence stood this hash. Kept elsewhere, it also proves a cut tail."""

    sequence: int
    hash: str


def link(row: SealedRow) -> Link:
    """Recomputes one event's seal."""
    assert row.sequence is not None
    prev, stored = row.prev or "", row.hash or ""
    return Link(str(row.id), row.sequence, prev, stored, content_ok=seal_hash(row, prev) == stored)


def is_next(one: Link, *, prev: str, position: int) -> bool:
    """Whether this link continues an unbroken chain."""
    return one.content_ok and one.prev == prev and one.sequence == position


def diagnose(links: list[Link]) -> list[Finding]:
    """Names what is wrong, from the rows in the order of their sequence.

    The `prev` links show the order that was sealed. Following them from each row whose predecessor is gone
    gives fragments. A row that no fragment needs was put in; where a fragment starts, something is missing.
    """
    fragments = _fragments(links)
    in_fragment = {one.id for fragment in fragments for one in fragment}
    inserted = [one for one in links if one.id not in in_fragment]
    findings = [_finding("altered", one) for one in links if not one.content_ok]
    kept: list[Link] = []
    for fragment in fragments:
        if fragment[0].prev != GENESIS and _is_bypassed(fragment[0], fragments):
            inserted += fragment
            continue
        kept += fragment
        if fragment[0].prev != GENESIS:
            findings += _missing_before(fragment[0], links)
    inserted_ids = {one.id for one in inserted}
    findings = [one for one in findings if one.event_id not in inserted_ids]
    findings += [_finding("inserted", one) for one in inserted]
    findings += _reordered(kept, {one.sequence for one in inserted})
    unique = {(one.kind, one.sequence, one.event_id): one for one in reversed(findings)}
    return sorted(unique.values(), key=lambda one: (one.sequence, one.kind))


def _fragments(links: list[Link]) -> list[list[Link]]:
    """For each row whose predecessor is not there: the longest path of links from it, by sequence."""
    hashes = {one.hash for one in links}
    children: dict[str, list[Link]] = {}
    for one in links:
        children.setdefault(one.prev, []).append(one)
    depth = _depths(links, children)
    starts: dict[str, Link] = {}
    for one in links:
        if one.prev in hashes:
            continue
        # several rows may claim the same predecessor: the one with most behind it is genuine
        rival = starts.get(one.prev)
        if rival is None or _weight(one, depth) > _weight(rival, depth):
            starts[one.prev] = one
    return [list(_longest_path(one, children, depth)) for one in sorted(starts.values(), key=_by_sequence)]


def _depths(links: list[Link], children: dict[str, list[Link]]) -> dict[str, int]:
    """How many rows stand on the longest way onwards from each. A chain is too long for recursion."""
    depth: dict[str, int] = {}
    entered: set[str] = set()
    stack = [(one, False) for one in links]
    while stack:
        one, is_second_visit = stack.pop()
        onwards = children.get(one.hash, [])
        if is_second_visit:
            depth[one.id] = 1 + max((depth.get(child.id, 0) for child in onwards), default=0)
        elif one.id not in entered:
            entered.add(one.id)
            stack.append((one, True))
            stack.extend((child, False) for child in onwards)
    return depth


def _weight(one: Link, depth: dict[str, int]) -> tuple[int, bool, int]:
    return (depth[one.id], one.content_ok, one.sequence)


def _by_sequence(one: Link) -> int:
    return one.sequence


def _longest_path(start: Link, children: dict[str, list[Link]], depth: dict[str, int]) -> Iterator[Link]:
    seen: set[str] = set()
    current: Link | None = start
    while current is not None and current.id not in seen:
        yield current
        seen.add(current.id)
        current = max(children.get(current.hash, []), key=lambda one: _weight(one, depth), default=None)


def _is_bypassed(start: Link, fragments: list[list[Link]]) -> bool:
    """Whether another fragment goes on from before this one to behind it: then nothing is missing here."""
    return any(
        fragment[0].sequence < start.sequence < fragment[-1].sequence
        for fragment in fragments
        if fragment[0].id != start.id
    )


def _missing_before(start: Link, links: list[Link]) -> Iterable[Finding]:
    before = max((one for one in links if one.sequence < start.sequence), key=_by_sequence, default=None)
    first = before.sequence + 1 if before else 1
    if first < start.sequence:
        span = f"#{first}" if first == start.sequence - 1 else f"#{first} to #{start.sequence - 1}"
        return [Finding("deleted", first, start.sequence - 1, None, f"{span} is missing.")]
    if not start.content_ok:
        return []  # its own `prev` was changed: it is named as altered
    if before is None:
        message = f"What stood before #{start.sequence} was deleted."
        return [Finding("deleted", start.sequence, start.sequence, start.id, message)]
    message = (
        f"#{start.sequence} was not sealed after this #{before.sequence}: "
        "it was replaced and sealed anew, or what stood between them was deleted."
    )
    return [Finding("altered", before.sequence, before.sequence, before.id, message)]


def _reordered(kept: list[Link], inserted_at: set[int]) -> list[Finding]:
    """Rows whose rank by sequence is not their rank by links; else rows that skip a number without a gap."""
    ranked = sorted(kept, key=_by_sequence)
    moved = [by_link for by_link, by_rank in zip(kept, ranked, strict=True) if by_link.id != by_rank.id]
    if not moved:
        origin = Link("", 0, "", GENESIS, content_ok=True)
        moved = [
            after
            for before, after in pairwise([origin, *kept])
            if after.prev == before.hash and not _counts_on(before, after, inserted_at)
        ]
    return [_finding("reordered", one) for one in moved]


def _counts_on(before: Link, after: Link, inserted_at: set[int]) -> bool:
    between = set(range(before.sequence + 1, after.sequence))
    return before.sequence < after.sequence and between <= inserted_at


_MESSAGES = {
    "altered": "The content of #{} is not what was sealed.",
    "inserted": "#{} was put in: the chain goes past it.",
    "reordered": "#{} does not stand where it was sealed.",
}


def _finding(kind: str, one: Link) -> Finding:
    return Finding(kind, one.sequence, one.sequence, one.id, _MESSAGES[kind].format(one.sequence))
