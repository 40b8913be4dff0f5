"""Signed checkpoints: at this moment this chain ended with this hash.

Ed25519 over one line of JSON. Whoever holds the database can rewrite a chain from its beginning and seal it anew;
a checkpoint that was exported before, and the public key, prove that they did.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings
from django.db import transaction

from gpuyard.audit import selectors
from gpuyard.audit.diagnosis import Anchor, Finding
from gpuyard.audit.models import Checkpoint
from gpuyard.core import clock

_CONTEXT = "gpuyard audit checkpoint 1"
_PEM = b"-----END PUBLIC KEY-----"


class NotACheckpoint(ValueError):
    """A line or a key that cannot be read; the message says why."""


@dataclass(frozen=True)
class Attested:
    """What a checkpoint says, and its signature."""

    company_id: UUID | None
    sequence: int
    hash: str
    at: datetime
    key_id: str = ""
    signature: str = ""

    def message(self) -> bytes:
        """What is signed."""
        return json.dumps(
            [
                _CONTEXT,
                str(self.company_id) if self.company_id else None,
                self.sequence,
                self.hash,
                self.at.astimezone(UTC).isoformat(timespec="microseconds"),
            ],
            separators=(",", ":"),
        ).encode()


# --- Making them -------------------------------------------------------------------------------------------


def checkpoints_make() -> list[Checkpoint]:
    """One for each chain that has grown since its last one."""
    made = (checkpoint_make(company_id) for company_id in selectors.companies_all())
    return [one for one in made if one is not None]


@transaction.atomic
def checkpoint_make(company_id: UUID | None) -> Checkpoint | None:
    """Signs where the chain ends now; None if it ends where it did at its last checkpoint. Safe to run twice."""
    sequence, sealed_hash = selectors.chain_head(company_id)
    if not sequence or Checkpoint.objects.filter(company_id=company_id, sequence=sequence).exists():
        return None
    key = _signing_key()
    said = Attested(company_id, sequence, sealed_hash, clock.now())
    checkpoint = Checkpoint(
        company_id=company_id,
        created_at=said.at,
        sequence=sequence,
        hash=sealed_hash,
        key_id=key_id(key.public_key()),
        signature=base64.b64encode(key.sign(said.message())).decode(),
    )
    # two workers may have come this far: the second one has nothing to add
    Checkpoint.objects.bulk_create([checkpoint], ignore_conflicts=True)
    return checkpoint


def _signing_key() -> Ed25519PrivateKey:
    seed: str = settings.AUDIT_SIGNING_KEY
    return Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(seed + "=" * (-len(seed) % 4)))


def public_key() -> Ed25519PublicKey:
    """The one that belongs to the key in the settings."""
    return _signing_key().public_key()


def public_key_pem() -> str:
    """The same, to be kept where the checkpoints are kept."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return public_key().public_bytes(serialization.Encoding.PEM, kind).decode()


def key_id(key: Ed25519PublicKey) -> str:
    """Which key it was, once there have been several."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


# --- Exports -----------------------------------------------------------------------------------------------


def attested(checkpoint: Checkpoint) -> Attested:
    """What a stored checkpoint says."""
    return Attested(
        checkpoint.company_id,
        checkpoint.sequence,
        checkpoint.hash,
        checkpoint.created_at,
        checkpoint.key_id,
        checkpoint.signature,
    )


def line(said: Attested) -> str:
    """One checkpoint as JSON, without a line break."""
    return json.dumps(
        {
            "company_id": str(said.company_id) if said.company_id else None,
            "sequence": said.sequence,
            "hash": said.hash,
            "at": said.at.astimezone(UTC).isoformat(timespec="microseconds"),
            "key_id": said.key_id,
            "signature": said.signature,
        }
    )


def line_read(text: str) -> Attested:
    """The checkpoint of a line; `NotACheckpoint` if it is none."""
    try:
        found: dict[str, Any] = json.loads(text)
        company, at = found["company_id"], datetime.fromisoformat(found["at"])
        if at.tzinfo is None or not isinstance(found["sequence"], int):
            raise ValueError("no time zone, or no sequence")
        return Attested(
            UUID(company) if company else None,
            found["sequence"],
            str(found["hash"]),
            at,
            str(found["key_id"]),
            str(found["signature"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise NotACheckpoint(f"{type(exc).__name__}: {exc}") from exc


def public_keys_read(text: bytes) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys of a PEM file, by their ids: it holds several once the key has been changed."""
    keys: dict[str, Ed25519PublicKey] = {}
    for block in text.split(_PEM)[:-1]:
        try:
            key = serialization.load_pem_public_key(block.strip() + b"\n" + _PEM + b"\n")
        except ValueError as exc:
            raise NotACheckpoint(str(exc)) from exc
        if not isinstance(key, Ed25519PublicKey):
            raise NotACheckpoint("it is no Ed25519 key")
        keys[key_id(key)] = key
    if not keys:
        raise NotACheckpoint("it holds no public key in PEM")
    return keys


# --- Verifying ---------------------------------------------------------------------------------------------


def anchors_signed(
    said: Iterable[Attested], keys: Mapping[str, Ed25519PublicKey]
) -> tuple[dict[UUID | None, list[Anchor]], dict[UUID | None, list[Finding]]]:
    """By chain: what the checkpoints with a good signature attest, and which have none."""
    anchors: dict[UUID | None, list[Anchor]] = {}
    findings: dict[UUID | None, list[Finding]] = {}
    for one in said:
        if wrong := _signature_fault(one, keys.get(one.key_id)):
            finding = Finding("checkpoint", one.sequence, one.sequence, None, wrong)
            findings.setdefault(one.company_id, []).append(finding)
        else:
            anchors.setdefault(one.company_id, []).append(Anchor(one.sequence, one.hash))
    return anchors, findings


def stored_faults(company_id: UUID | None) -> list[Finding]:
    """Stored checkpoints of the key in the settings whose signature is not good. Those of older keys have their
    public key elsewhere.
    """
    key = public_key()
    stored = selectors.checkpoints_stored(company_id).filter(key_id=key_id(key))
    _anchors, findings = anchors_signed(map(attested, stored), {key_id(key): key})
    return findings.get(company_id, [])


def _signature_fault(said: Attested, key: Ed25519PublicKey | None) -> str:
    where = f"The checkpoint at #{said.sequence}"
    if key is None:
        return f"{where} was signed with the key {said.key_id}, which is not among the public keys given."
    try:
        key.verify(base64.b64decode(said.signature, validate=True), said.message())
    except (InvalidSignature, binascii.Error):
        return f"{where} does not carry a good signature: it was altered or forged."
    return ""
