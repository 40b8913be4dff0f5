"""Requests as people say them."""

from __future__ import annotations

from django.utils.translation import gettext as _

from gpuyard.core.money import SLOTS_PER_GPU
from scheduling.specs import Capabilities, Request


def asked_text(request: Request) -> str:
    """`2 replicas of 8 × h100-80g`; tiers in their order of preference."""
    each = _replica_text(request)
    least, most = request.replicas_min, request.replicas_max
    if most > 1:
        count = str(most) if least == most else f"{least}–{most}"
        each = _("%(count)s replicas of %(each)s") % {"count": count, "each": each}
    if request.array is not None:
        return _("%(count)s times %(each)s") % {"count": request.array.count, "each": each}
    return each


def _replica_text(request: Request) -> str:
    """`8 × h100-80g`, `0.25 × l4-24g`, `10 GiB of l4-24g`."""
    tiers, share = tiers_text(request), number(request.share or 0, SLOTS_PER_GPU)
    if request.gpu_memory_mib is None:
        return f"{share if request.share else request.gpus_per_replica} × {tiers}"
    memory = _("%(size)s GiB") % {"size": number(request.gpu_memory_mib, 1024)}
    if request.share:
        memory = _("%(share)s and %(memory)s") % {"share": share, "memory": memory}
    return _("%(amount)s of %(tiers)s") % {"amount": memory, "tiers": tiers}


def tiers_text(request: Request) -> str:
    """`h100-80g or a100-40g`, in the order of preference; or what they must have."""
    if request.capabilities is not None:
        return capabilities_text(request.capabilities)
    return _(" or ").join(request.tiers)


def capabilities_text(wanted: Capabilities) -> str:
    """`any GPU with ≥ 40 GiB, ampere or newer, bf16`."""
    parts = []
    if wanted.memory_mib is not None:
        parts.append(_("≥ %(size)s GiB") % {"size": number(wanted.memory_mib, 1024)})
    if wanted.architecture is not None:
        parts.append(_("%(architecture)s or newer") % {"architecture": wanted.architecture})
    return _("any GPU with %(what)s") % {"what": ", ".join([*parts, *wanted.labels])}


def number(amount: int, per: int) -> str:
    """`0.25`: at most three decimals, no idle ones."""
    return f"{amount / per:.3f}".rstrip("0").rstrip(".")
