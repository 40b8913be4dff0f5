"""Was the log altered? The same for the database's rows and for an export of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

from gpuyard.audit import selectors
from gpuyard.audit.chain import GENESIS, SealedRow
from gpuyard.audit.checkpoints import stored_faults
from gpuyard.audit.diagnosis import Anchor, Finding, diagnose, is_next, link
from gpuyard.audit.models import Event, Verification


@dataclass(frozen=True)
class ChainReport:
    """What verification of one chain found, and how far it went."""

    company_id: UUID | None
    sequence: int
    hash: str
    unsealed: int
    findings: tuple[Finding, ...]


def chain_verify(
    company_id: UUID | None, *, anchors: Sequence[Anchor] = (), findings: Sequence[Finding] = ()
) -> ChainReport:
    """Recomputes every seal of a chain, compares it with all that is known of it, and stores the outcome.

    Known: earlier verifications, stored checkpoints, and the given anchors. `findings`: what else is wrong.
    """
    known = [*anchors, *(Anchor(*pair) for pair in selectors.anchors_stored(company_id))]
    sequence, last_hash, found = rows_verify(lambda: selectors.rows_sealed(company_id), known)
    found = [*found, *findings, *stored_faults(company_id)]
    Verification.objects.create(
        company_id=company_id,
        sequence=sequence,
        hash=last_hash,
        findings=[asdict(one) for one in found[:100]],
    )
    unsealed_count = Event.objects.filter(company_id=company_id, sequence__isnull=True).count()
    return ChainReport(company_id, sequence, last_hash, unsealed_count, tuple(found))


def rows_verify(
    rows: Callable[[], Iterable[SealedRow]], anchors: Iterable[Anchor] = ()
) -> tuple[int, str, list[Finding]]:
    """(the last sequence, its hash, what is wrong). `rows` gives the chain in the order of its sequence, each
    time it is called: once, and once more if the chain is broken.
    """
    known = list(anchors)
    stood: dict[int, str] = dict.fromkeys((one.sequence for one in known), "")
    prev, sequence, is_intact = GENESIS, 0, True
    for position, row in enumerate(rows(), start=1):
        one = link(row)
        is_intact = is_intact and is_next(one, prev=prev, position=position)
        prev, sequence = one.hash, one.sequence
        if sequence in stood:
            stood[sequence] = one.hash
    findings = [] if is_intact else diagnose([link(row) for row in rows()])
    if not is_intact and not findings:
        # A broken chain is never reported as intact, whatever the diagnosis makes of it.
        findings = [Finding("altered", 1, sequence, None, "The chain does not hold.")]
    return sequence, prev, [*findings, *_compare(known, stood, last_sequence=sequence)]


def _compare(anchors: Iterable[Anchor], stood: dict[int, str], *, last_sequence: int) -> list[Finding]:
    findings: dict[int, Finding] = {}
    for anchor in anchors:
        if anchor.sequence > last_sequence:
            first = last_sequence + 1
            message = f"#{first} to #{anchor.sequence} is missing: it was verified before."
            findings[anchor.sequence] = Finding("deleted", first, anchor.sequence, None, message)
        elif anchor.sequence and stood[anchor.sequence] != anchor.hash:
            message = f"The chain up to #{anchor.sequence} is not the one that was verified before."
            findings[anchor.sequence] = Finding("altered", anchor.sequence, anchor.sequence, None, message)
    return list(findings.values())
