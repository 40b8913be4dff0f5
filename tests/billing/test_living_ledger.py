"""The books stay right while the ledger moves: starts and ends beside metering, nodes lost and found."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction

from billing.metering import meter
from billing.models import UsageLine
from billing.verify import books_verify
from gpuyard.core import clock
from gpuyard.fleet.models import Node
from scheduling.ledger import allocations_end
from scheduling.losses import node_back, node_confirm_dead, node_lost
from scheduling.models import Allocation
from tests import factories
from tests.billing.ledgers import HOUR, end, fleet, held


def sync(node: Node) -> None:
    """What an agent's sync does to the ledger's time: under the node's lock, the newest moment that is final."""
    with transaction.atomic():
        Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        now = clock.now()
        for row in Allocation.objects.filter(gpu__node=node, state="held"):
            allocations_end(row.replica_id, now - timedelta(milliseconds=1))
        Node.objects.filter(pk=node.pk).update(last_sync_at=now)


def start(allocation: Allocation) -> None:
    """A pass places it: locks the node, stamps the start, and takes a while to commit."""
    with transaction.atomic():
        Node.objects.select_for_update(no_key=True).get(pk=allocation.gpu.node_id)
        allocation.span = type(allocation.span)(clock.now(), None)
        allocation.save(force_insert=True)
        time.sleep(0.03)


@pytest.mark.django_db(transaction=True)
def test_metering_beside_starts_and_ends_loses_nothing() -> None:
    node, gpus = fleet(2, since=clock.now() - HOUR)
    team, tier = factories.team(), gpus[0].tier
    factories.price_rate(team, tier)
    planned = []
    for number in range(12):
        attempt = factories.attempt(factories.workload(team, tier), tier)
        gpu, replica = gpus[number % 2], factories.replica(attempt, node)
        with transaction.atomic():
            planned.append(factories.allocation(replica, gpu))
            transaction.set_rollback(True)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            meter(everything=True)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for pair in zip(planned[::2], planned[1::2], strict=True):
        for allocation in pair:
            start(allocation)
        time.sleep(0.01)
        sync(node)
    over.set()
    for thread in threads:
        thread.join()
    sync(node)
    meter(everything=True)
    report = books_verify()
    assert report.problems == ()
    assert Allocation.objects.filter(state="ended").count() == 12
    assert UsageLine.objects.values("allocation").exclude(allocation=None).distinct().count() == 12


def silent_node() -> tuple[Node, Allocation]:
    """A node that last synced an hour ago, with one GPU held since two hours ago and one free."""
    now = clock.now()
    node, gpus = fleet(2, since=now - 3 * HOUR, last_sync_at=now - HOUR)
    attempt = factories.placed(
        factories.workload(factories.team(), gpus[0].tier), [gpus[0]], running=True, since=now - 2 * HOUR
    )
    allocation = Allocation.objects.get(attempt=attempt)
    meter(everything=True)
    assert node_lost(node_id=node.pk)
    meter(everything=True)
    assert books_verify().problems == ()
    return node, allocation


def charged_us(allocation: Allocation) -> int:
    lines = UsageLine.objects.filter(allocation=allocation, charge__isnull=False)
    return sum(line.unit_us for line in lines) // allocation.units


@pytest.mark.django_db
def test_a_node_that_comes_back_is_charged_again_from_then_on() -> None:
    node, allocation = silent_node()
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        back = clock.now()
        node_back(locked, now=back)
        Node.objects.filter(pk=node.pk).update(last_sync_at=back)
    meter(everything=True)
    assert books_verify().problems == ()
    assert charged_us(allocation) == HOUR // timedelta(microseconds=1)
    assert UsageLine.objects.filter(bucket="down", allocation=allocation).exists()


@pytest.mark.django_db
def test_a_run_that_ended_while_its_node_was_silent_is_charged_to_the_last_sync() -> None:
    node, allocation = silent_node()
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        back = clock.now()
        node_back(locked, now=back)
        allocations_end(allocation.replica_id, back - HOUR / 2)
        Node.objects.filter(pk=node.pk).update(last_sync_at=back)
    meter(everything=True)
    assert books_verify().problems == ()
    assert charged_us(allocation) == HOUR // timedelta(microseconds=1)


@pytest.mark.django_db
def test_a_node_confirmed_dead_keeps_the_books_right() -> None:
    node, allocation = silent_node()
    node_confirm_dead(actor=factories.admin(), node_id=node.pk)
    meter(everything=True)
    assert books_verify().problems == ()
    assert charged_us(allocation) == HOUR // timedelta(microseconds=1)


@pytest.mark.django_db
def test_a_retired_gpu_is_metered_to_its_end() -> None:
    _node, (gpu,) = fleet(since=clock.now() - 3 * HOUR)
    end(held(gpu, clock.now() - 2 * HOUR), clock.now() - HOUR)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE fleet_node SET state = 'retired', retired_at = yard_now()")
        cursor.execute("UPDATE fleet_gpu SET retired_at = yard_now()")
        cursor.execute(
            "UPDATE fleet_gpucondition SET span = tstzrange(lower(span), yard_now()) WHERE upper_inf(span)"
        )
    assert meter(everything=True).gpus == 1
    assert meter(everything=True).gpus == 0
    assert books_verify().problems == ()
