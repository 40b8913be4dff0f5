"""Webhooks, to real receivers on loopback: signed, tried again, logged, and never into our own network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, Invalid, StaleState
from gpuyard.core.models import User
from gpuyard.notify.addresses import place_parse
from gpuyard.notify.contents import as_slack, content
from gpuyard.notify.endpoints import (
    endpoint_create,
    endpoint_remove,
    endpoint_rotate,
    endpoint_test,
    message_again,
)
from gpuyard.notify.models import Attempt, Delivery, Endpoint, Message, Notification
from gpuyard.notify.posting import PostFailed, post
from gpuyard.notify.sending import MOST_TRIES, deliver_all, wait_after
from tests.notify.telling import EVENT, URGENT, messages, person, tell

pytestmark = pytest.mark.django_db
RECEIVER = Path(__file__).with_name("receiver.py")


@pytest.fixture(autouse=True)
def _loopback(settings: Any) -> None:
    settings.GPUYARD_WEBHOOK_NETWORKS = ["127.0.0.0/8"]


@contextmanager
def receiver(secret: str, failures: int = 0) -> Iterator[tuple[int, Callable[[], dict[str, Any]]]]:
    """A process that takes webhooks; its port, and what it says of the next request."""
    words = [sys.executable, "-I", str(RECEIVER), secret, str(failures)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = process.stdout
        try:
            yield int(out.readline()), lambda: dict(json.loads(out.readline()))
        finally:
            process.kill()


def hook(owner: User, port: int = 9, **fields: Any) -> tuple[Endpoint, str]:
    given = {"kind": "webhook", "name": "ci", "url": f"http://127.0.0.1:{port}/in?a=1", **fields}
    return endpoint_create(actor=owner, **given)


def move(endpoint: Endpoint, port: int) -> None:
    """Points an endpoint to a receiver that was started with its secret."""
    from gpuyard.notify.vault import sealed

    Endpoint.objects.filter(pk=endpoint.pk).update(url_sealed=sealed(f"http://127.0.0.1:{port}/in"))


def test_two_failures_then_accepted_and_the_receiver_verifies_each(
    advance_clock: Callable[[float], None],
) -> None:
    owner = person()
    endpoint, secret = hook(owner)
    with receiver(secret, failures=2) as (port, heard):
        move(endpoint, port)
        tell(owner, subject="It failed", facts=(("Why", "exit code 1"),), url="/workloads/w-1")
        answers = []
        for tries in range(1, 4):
            deliver_all()
            answers.append(heard())
            advance_clock(wait_after(tries).total_seconds())
    assert [one["status"] for one in answers] == [503, 503, 204]
    assert all(one["genuine"] for one in answers)
    assert {one["body"]["id"] for one in answers} == {str(messages(endpoint=endpoint)[0].pk)}
    (told,) = answers[2]["body"]["notifications"]
    assert (told["subject"], told["facts"]) == ("It failed", [{"label": "Why", "value": "exit code 1"}])
    (message,) = messages(endpoint=endpoint)
    log = [(one.is_sent, one.status, one.error) for one in message.attempts.all()]
    assert log == [(False, 503, "answered 503"), (False, 503, "answered 503"), (True, 204, "")]
    assert (message.state, message.tries) == ("sent", 3)


def test_a_wrong_secret_or_an_old_time_does_not_verify(advance_clock: Callable[[float], None]) -> None:
    owner = person()
    endpoint, secret = hook(owner)
    with receiver("whsec_another") as (port, heard):
        move(endpoint, port)
        tell(owner)
        deliver_all()
        assert not heard()["genuine"]
    with receiver(secret) as (port, heard):
        move(endpoint, port)
        advance_clock(301)  # the platform's clock runs ahead of the receiver's
        tell(owner)
        deliver_all()
        assert not heard()["genuine"]


def test_while_a_secret_is_changed_both_verify_and_then_the_new_one_only(
    advance_clock: Callable[[float], None],
) -> None:
    owner = person()
    endpoint, old = hook(owner)
    new = endpoint_rotate(actor=owner, endpoint=endpoint)
    for secret in (old, new):
        with receiver(secret) as (port, heard):
            move(endpoint, port)
            tell(owner)
            deliver_all()
            assert heard()["genuine"]
    endpoint.refresh_from_db()
    assert endpoint.old_secret_until is not None
    assert new not in endpoint.secret_sealed


def test_no_try_left_is_failed_and_can_be_sent_again(advance_clock: Callable[[float], None]) -> None:
    owner = person(email="")
    hook(owner, port=1)
    tell(owner)
    for tries in range(1, MOST_TRIES + 1):
        assert deliver_all() == 1
        advance_clock(wait_after(tries).total_seconds())
    (message,) = messages()
    assert (message.state, message.tries, message.attempts.count()) == ("failed", MOST_TRIES, MOST_TRIES)
    assert deliver_all() == 0
    again = message_again(actor=owner, message=message)
    assert again.state == "queued"
    assert deliver_all() == 1
    with pytest.raises(Conflict):
        message_again(actor=owner, message=again)


def test_while_one_is_tried_again_what_comes_waits_and_goes_together(
    advance_clock: Callable[[float], None],
) -> None:
    owner = person(email="")
    endpoint, secret = hook(owner)
    with receiver(secret, failures=1) as (port, heard):
        move(endpoint, port)
        tell(owner, subject="first")
        deliver_all()
        for number in range(5):
            tell(owner, subject=f"later {number}")
            deliver_all()
        advance_clock(31)
        deliver_all()
        deliver_all()
        counts = [len(heard()["body"]["notifications"]) for _request in range(3)]
    assert counts == [1, 1, 5]


def test_a_worker_that_died_while_sending_is_made_up_for(advance_clock: Callable[[float], None]) -> None:
    owner = person()
    tell(owner)
    deliver_all()
    Message.objects.update(state="queued", ended_at=None, tries=0)
    from gpuyard.notify.sending import _claim

    assert _claim() is not None  # and then it is killed
    assert deliver_all() == 0
    advance_clock(121)
    assert deliver_all() == 1
    assert Message.objects.get().state == "sent"


def test_a_test_goes_the_same_way() -> None:
    owner = person()
    endpoint, secret = hook(owner)
    with receiver(secret) as (port, heard):
        move(endpoint, port)
        endpoint_test(actor=owner, endpoint=endpoint)
        with pytest.raises(StaleState):
            endpoint_test(actor=owner, endpoint=endpoint)
        deliver_all()
        assert heard()["body"]["notifications"][0]["event"] == "notify.test"
    assert Message.objects.get().state == "sent"


def test_a_teams_endpoint_hears_once_what_its_team_and_those_below_are_told() -> None:
    owner, above, team, other = person(email=""), uuid4(), uuid4(), uuid4()
    all_of_it, _secret = hook(owner, team_id=above, company_id=above)
    some, _secret = hook(owner, team_id=team, events=[URGENT.key], company_id=above)
    hook(owner, team_id=other, company_id=above)
    tell(owner, person(email=""), team_path=(above, team), company_id=above)
    tell(owner, event=URGENT, team_path=(above, team), company_id=above)
    deliver_all()
    heard = [
        (row.endpoint_id, row.notification.event) for row in Delivery.objects.select_related("notification")
    ]
    assert sorted(heard, key=str) == sorted(
        [(all_of_it.pk, EVENT.key), (all_of_it.pk, URGENT.key), (some.pk, URGENT.key)], key=str
    )


def test_a_removed_endpoint_is_sent_nothing_and_keeps_no_secret() -> None:
    owner = person(email="")
    endpoint, _secret = hook(owner)
    tell(owner)
    endpoint_remove(actor=owner, endpoint=endpoint)
    assert deliver_all() == 0
    endpoint.refresh_from_db()
    assert (endpoint.url_sealed, endpoint.secret_sealed) == ("", "")


def test_neither_address_nor_secret_is_stored_readable_or_in_the_log() -> None:
    owner = person()
    url = "https://127.0.0.1/services/T0/B0/very-secret"
    endpoint, secret = endpoint_create(actor=owner, kind="webhook", name="ci", url=url)
    endpoint_rotate(actor=owner, endpoint=endpoint)
    row = str(Endpoint.objects.values().get())
    events = str(list(Event.objects.values_list("old", "new", "subject_label")))
    for hidden in ("very-secret", secret):
        assert hidden not in row
        assert hidden not in events


# --- Where they may be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.com", "url_invalid"),
        ("https://", "url_invalid"),
        ("https://a b.example", "url_invalid"),
        ("https://user:pw@93.184.216.34/", "url_credentials"),
        ("http://93.184.216.34/", "https_only"),
        ("https://10.0.0.1/", "address_private"),
        ("https://169.254.169.254/latest/meta-data", "address_private"),
        ("https://[::1]/", "address_private"),
        ("https://[::ffff:10.0.0.1]/", "address_private"),
        ("https://0.0.0.0/", "address_private"),
        ("https://[fd00::1]/", "address_private"),
        ("https://2130706434/", "address_private"),  # 127.0.0.2, spelt as one number
        ("https://127.0.0.1:99999/", "url_invalid"),
    ],
)
def test_an_address_that_reaches_inside_is_refused(url: str, code: str, settings: Any) -> None:
    settings.GPUYARD_WEBHOOK_NETWORKS = []
    with pytest.raises(Invalid) as refused:
        endpoint_create(actor=person(), kind="webhook", name="ci", url=url)
    assert refused.value.code == code
    assert refused.value.errors[0].field == "url"


def test_a_name_that_stands_for_something_else_later_is_judged_again(settings: Any) -> None:
    owner = person(email="")
    hook(owner)
    settings.GPUYARD_WEBHOOK_NETWORKS = []  # as if its name pointed inside from now on
    tell(owner)
    deliver_all()
    assert "https" in Attempt.objects.get().error


@contextmanager
def wire(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection, which does as it likes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _address = server.accept()
            with client:
                client.recv(65536)
                answer(client)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_a_redirect_is_not_followed() -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with wire(lambda client: client.sendall(reply)) as port, pytest.raises(PostFailed, match="answered 302"):
        post(place_parse(f"http://127.0.0.1:{port}/"), b"{}", {})


def test_an_answer_that_drips_in_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.notify.posting._ALL_S", 0.5)
    stop = threading.Event()

    def drip(client: socket.socket) -> None:
        while not stop.wait(0.1):
            try:
                client.sendall(b"H")
            except OSError:
                return

    try:
        with wire(drip) as port, pytest.raises(PostFailed):
            post(place_parse(f"http://127.0.0.1:{port}/"), b"{}", {})
    finally:
        stop.set()


def test_typed_text_is_no_mention_and_no_link_in_slack() -> None:
    owner = person(email="")
    tell(owner, subject="<!channel> *now*", facts=(("Why", "<https://evil.example|click>"),), url="/x")
    said = as_slack(content(uuid4(), [Notification.objects.get()], 20))
    text = said["blocks"][0]["text"]["text"]
    assert "<!channel>" not in text
    assert "<https://evil" not in text
    assert said["text"].startswith("&lt;!channel&gt;")
