"""Free GPUs as what could be started on them: a strip of nodes for each tier, and a table by size beside it."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.fleet.models import Tier
from gpuyard.web import wording
from gpuyard.web.contexts import Choice
from gpuyard.web.scheduler_contexts import FreeSpacePage, HeatCell, SizeCount, SpaceTier
from scheduling.freespace import NodeRoom, TierRoom, block_sizes, free_space
from tenants.models import Team

MOST_CELLS = 1200  # nodes drawn for each tier; those with most room first
CSV_HEADER = ("tier", "node", "pool", "in_service", "gpus", "free", "largest_on_one_island")


def build(actor: User, team: Team | None, tier: str) -> FreeSpacePage:
    rooms = [room for room in _rooms(actor, team) if room.total]
    names = [room.tier.name for room in rooms]
    picked = tier if tier in names else ""
    shown = [room for room in rooms if room.tier.name == picked or not picked]
    sizes = block_sizes(max((room.largest_node for room in shown), default=0))
    return FreeSpacePage(
        as_of=rooms[0].as_of if rooms else clock.now(),
        summary=_summary(shown),
        sizes=sizes,
        tiers=[_tier(room, sizes) for room in shown],
        tier_choices=[
            Choice(value="", label=_("All tiers"), selected=not picked),
            *(Choice(value=name, label=name, selected=name == picked) for name in names),
        ],
    )


def csv_rows(actor: User, team: Team | None, tier: str) -> Iterator[tuple[object, ...]]:
    for room in _rooms(actor, team):
        if tier and room.tier.name != tier:
            continue
        for node in _by_room(room):
            in_service = "yes" if node.is_open else "no"
            yield room.tier.name, node.name, node.pool, in_service, node.total, node.free, node.largest_island


def _rooms(actor: User, team: Team | None) -> list[TierRoom]:
    return free_space(actor, Tier.objects.order_by("-cost_rank", "-memory_mib", "name"), team=team)


def _summary(rooms: list[TierRoom]) -> str:
    if not rooms:
        return _("No GPU has been reported yet.")
    free, total = sum(room.free for room in rooms), sum(room.total for room in rooms)
    largest = max(rooms, key=lambda room: room.largest_on_node)
    if not free:
        return _("None of the %(total)s GPUs is free.") % {"total": wording.number(total)}
    return _("%(free)s of %(total)s GPUs are free; the largest block is %(most)s × %(tier)s on one node.") % {
        "free": wording.number(free),
        "total": wording.number(total),
        "most": largest.largest_on_node,
        "tier": largest.tier.name,
    }


def _tier(room: TierRoom, sizes: tuple[int, ...]) -> SpaceTier:
    nodes = _by_room(room)
    counts = {size.gpus: size for size in room.sizes}
    return SpaceTier(
        name=room.tier.name,
        sentence=_sentence(room),
        free=room.free,
        total=room.total,
        cells=[_cell(node) for node in nodes[:MOST_CELLS]],
        more_nodes=max(0, len(nodes) - MOST_CELLS),
        sizes=[
            SizeCount(
                on_node=found.on_node if found else 0,
                on_island=found.on_island if found and found.on_island != found.on_node else None,
            )
            for found in (counts.get(size) for size in sizes)
        ],
        useless=_useless(room),
        parts=_parts(room),
        out=_out(room),
    )


def _by_room(room: TierRoom) -> list[NodeRoom]:
    """Most free first; what is out of service last."""
    return sorted(room.nodes, key=lambda node: (not node.is_open, -node.free, node.name))


def _sentence(room: TierRoom) -> str:
    free, largest = room.free, room.largest_on_node
    if not free:
        return _("none of %(total)s free") % {"total": room.total}
    if free == largest:
        return _("%(free)s free, on one node") % {"free": free}
    return _("%(free)s free, at most %(largest)s on one node") % {"free": free, "largest": largest}


def _useless(room: TierRoom) -> str:
    if room.largest_node < 2 or not room.too_small:
        return ""
    return _("%(n)s of no use for a request of %(size)s") % {"n": room.too_small, "size": room.largest_node}


def _out(room: TierRoom) -> str:
    if not room.out:
        return ""
    each = ", ".join(f"{count} {wording.state_word(condition).label}" for condition, count in room.out)
    return _("%(n)s not counted: %(each)s") % {
        "n": sum(count for _condition, count in room.out),
        "each": each,
    }


def _parts(room: TierRoom) -> str:
    own = [card for card in room.own_cards if card.slots_free]
    if not own:
        return ""
    text = ngettext(
        "%(n)s shared card of your teams has room, at most %(most)s of it",
        "%(n)s shared cards of your teams have room, at most %(most)s of one",
        len(own),
    )
    return text % {"n": len(own), "most": wording.number(own[0].slots_free / SLOTS_PER_GPU)}


def _cell(node: NodeRoom) -> HeatCell:
    if not node.is_open:
        text = _("%(node)s: out of service") % {"node": node.name}
        return HeatCell(node=node.name, free=0, level="x", text=text)
    text = _("%(node)s: %(free)s of %(total)s free") % {
        "node": node.name,
        "free": node.free,
        "total": node.total,
    }
    if node.free and node.largest_island < node.free:
        text = _("%(text)s, at most %(n)s on one island") % {"text": text, "n": node.largest_island}
    return HeatCell(node=node.name, free=node.free, level=_level(node), text=text)


def _level(node: NodeRoom) -> str:
    if node.free == node.total:
        return "4"
    return str(min(3, -(-4 * node.free // node.total)))
