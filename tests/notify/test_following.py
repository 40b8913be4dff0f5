"""What the log says happened is told once, in its order, whoever was down meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from gpuyard.audit.sealing import seal_all
from gpuyard.audit.services import Actor, event_record
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from gpuyard.notify.following import follow
from gpuyard.notify.models import Bookmark, Notification
from scheduling.losses import node_lost
from scheduling.models import Workload
from scheduling.services import workload_stop, workload_submit
from scheduling.transitions import workload_move
from tests import factories as make

pytestmark = pytest.mark.django_db


def _told(reader: User) -> list[str]:
    seal_all()
    follow()
    return [one.event for one in Notification.objects.filter(user=reader).order_by("id")]


def _running() -> Workload:
    team = make.team(make.company())
    tier = make.tier()
    host = make.node(tier, 1)
    workload = make.workload(team, tier, name="train", state="waiting")
    make.placed(workload, list(host.gpus.all()), running=True)
    return workload


def test_an_owner_hears_that_their_work_failed_and_why() -> None:
    workload = _running()
    workload_move(workload, "stopping", state_reason="The program ended with exit code 1")
    workload_move(workload, "failed", told={"exit_code": 1}, exit_code=1, ended_at=clock.now())
    assert _told(workload.owner) == ["workload.failed"]
    told = Notification.objects.get(user=workload.owner)
    assert told.subject == "train has failed"
    assert told.facts == [["Why", "The program ended with exit code 1"], ["Exit code", "1"]]
    assert told.url == f"/workloads/{workload.public_id}"
    assert Notification.objects.filter(user=None, event="workload.failed").count() == 1


def test_an_owner_hears_that_their_gpus_are_taken_back_and_why() -> None:
    workload = _running()
    workload_move(
        workload, "stopping", told={"why": "return"}, state_reason="Taken back: guaranteed to others."
    )
    assert _told(workload.owner) == ["workload.evicted"]
    assert Notification.objects.get(user=workload.owner).facts == [
        ["Why", "Taken back: guaranteed to others."]
    ]


def test_nobody_is_told_what_they_did_themselves() -> None:
    team = make.team(make.company())
    tier = make.tier()
    make.approval_policy(team)
    owner, manager = make.user("member", team), make.user("manager", team)
    mine, theirs = (
        workload_submit(actor=owner, team=team, name=name, kind="training", spec=make.spec_document(tier))
        for name in ("mine", "theirs")
    )
    workload_stop(actor=owner, workload=mine)
    workload_stop(actor=manager, workload=theirs, reason="Too large")
    assert _told(owner) == ["workload.stopped"]
    assert Notification.objects.get(user=owner).facts == [["Why", "Too large"], ["By", str(manager)]]


def test_a_silent_node_is_told_to_the_admins_and_to_those_whose_work_is_on_it() -> None:
    admin, workload = make.admin(), _running()
    node = Node.objects.get()
    Node.objects.update(last_sync_at=clock.now() - timedelta(hours=1))
    assert node_lost(node_id=node.pk)
    assert _told(workload.owner) == ["workload.cut_off"]
    assert _told(admin) == ["node.lost"]


def test_an_event_is_told_once_and_one_sealed_later_is_not_missed() -> None:
    workload = _running()
    workload_move(workload, "stopping", told={"why": "return"})
    assert _told(workload.owner) == ["workload.evicted"]
    assert _told(workload.owner) == ["workload.evicted"]
    workload_move(workload, "waiting", told={})
    assert follow() == 0, "not sealed yet"
    workload_move(workload, "cancelled", actor=Actor("quota"), ended_at=clock.now())
    assert _told(workload.owner) == ["workload.evicted", "workload.stopped"]


def test_a_log_that_was_never_followed_begins_with_what_is_news(advance_clock: Any) -> None:
    workload = _running()
    workload_move(workload, "stopping", told={"why": "return"})
    seal_all()
    advance_clock(7200)
    assert _told(workload.owner) == []
    workload_move(workload, "waiting")
    workload_move(workload, "cancelled", actor=Actor("quota"), ended_at=clock.now())
    assert _told(workload.owner) == ["workload.stopped"]


@pytest.mark.django_db(transaction=True)
def test_while_somebody_else_follows_a_log_it_is_left_to_them(other_connection: Any) -> None:
    make.admin()
    Bookmark.objects.create(company_id=None, sequence=0)
    with transaction.atomic():
        event_record(company_id=None, actor=None, action="node.lost", subject=make.node())
    seal_all()
    other = other_connection(autocommit=False)
    other.execute("SELECT * FROM notify_bookmark FOR UPDATE")
    assert follow() == 0
    other.rollback()
    assert follow() == 1
    assert Notification.objects.count() == 1
