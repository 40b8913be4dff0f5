"""Labels and domains: what an admin sets, what is refused, and what a pass sees of it."""

from __future__ import annotations

import uuid

import pytest

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.fleet import topology
from scheduling.loader import snapshot_load
from tests import factories as make

pytestmark = pytest.mark.django_db


def test_labels_replace_the_ones_before_and_the_epoch_grows() -> None:
    admin, node = make.admin(), make.node()

    topology.node_labels_set(actor=admin, node_id=node.pk, labels=["zone=a", "disk=nvme"])
    topology.node_labels_set(actor=admin, node_id=node.pk, labels=["zone=a", "disk=nvme"])

    node.refresh_from_db()
    assert (node.labels, node.epoch) == (["disk=nvme", "zone=a"], 2)
    assert Event.objects.get(action="node.labels").new == {"labels": ["disk=nvme", "zone=a"]}


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        (["zone"], "labels.0"),
        (["a=b", "=b"], "labels.1"),
        (["a=b c"], "labels.0"),
        (["a=\x00"], "labels.0"),
        (["zone=a", "zone=b"], "labels"),
        ([f"k{number}=v" for number in range(65)], "labels"),
    ],
)
def test_what_is_no_label_is_refused(labels: list[str], field: str) -> None:
    node = make.node()

    with pytest.raises(Invalid) as refused:
        topology.node_labels_set(actor=make.admin(), node_id=node.pk, labels=labels)

    assert [error.field for error in refused.value.errors] == [field]
    node.refresh_from_db()
    assert (node.labels, node.epoch) == ([], 1)


def test_a_node_in_a_rack_is_in_the_block_around_it_for_the_pass() -> None:
    admin, node = make.admin(), make.node(make.tier(), 1)
    block = topology.domain_create(actor=admin, level="block", name="b1")
    rack = topology.domain_create(actor=admin, level="rack", name="r1", inside=block.pk)

    topology.node_domain_set(actor=admin, node_id=node.pk, domain_id=rack.pk)
    topology.node_labels_set(actor=admin, node_id=node.pk, labels=["zone=a"])

    seen = snapshot_load().snapshot
    assert (seen.levels, seen.nodes[0].domains, seen.nodes[0].labels) == (
        ("block", "rack"),
        ("b1", "r1"),
        ("zone=a",),
    )
    assert seen.nodes[0].epoch == 3


def test_domains_are_refused_that_would_mean_nothing() -> None:
    admin = make.admin()
    rack = topology.domain_create(actor=admin, level="rack", name="r1")

    for level in ("node", "island", "Rack", "a b", ""):
        with pytest.raises(Invalid):
            topology.domain_create(actor=admin, level=level, name="x")
    with pytest.raises(Invalid):
        topology.domain_create(actor=admin, level="rack", name="r2", inside=rack.pk)
    with pytest.raises(Conflict):
        topology.domain_create(actor=admin, level="rack", name="r1")
    with pytest.raises(NotFound):
        topology.domain_create(actor=admin, level="leaf", name="l1", inside=uuid.uuid4())


def test_only_an_empty_domain_can_be_taken_away() -> None:
    admin, node = make.admin(), make.node()
    rack = topology.domain_create(actor=admin, level="rack", name="r1")
    topology.node_domain_set(actor=admin, node_id=node.pk, domain_id=rack.pk)

    with pytest.raises(Conflict):
        topology.domain_delete(actor=admin, domain_id=rack.pk)
    topology.node_domain_set(actor=admin, node_id=node.pk, domain_id=None)
    topology.domain_delete(actor=admin, domain_id=rack.pk)

    assert Event.objects.filter(action="fabric_domain.delete").count() == 1


def test_it_is_for_admins() -> None:
    person, node = make.user(), make.node()
    with pytest.raises(Forbidden):
        topology.node_labels_set(actor=person, node_id=node.pk, labels=[])
    with pytest.raises(Forbidden):
        topology.node_domain_set(actor=person, node_id=node.pk, domain_id=None)
    with pytest.raises(Forbidden):
        topology.domain_create(actor=person, level="rack", name="r")
