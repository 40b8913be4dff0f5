"""Signing in, codes, lock-out, the list of sign-ins, tokens and service accounts on their pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.test import Client
from django.urls import reverse

from gpuyard.audit.models import Event
from gpuyard.core.models import User
from tenants import lockout
from tenants.models import ApiToken, Guessing, ServiceAccount, SignIn
from tests import factories as make

pytestmark = pytest.mark.django_db


def _signed_in(person: User, **extra: Any) -> Client:
    client = Client(**extra)
    answer = _tried(client, person.username, "password")
    assert answer.status_code == 302
    return client


def _confirmed(client: Client) -> Client:
    """The password once more, as sensitive acts want it."""
    assert client.post("/account/confirm", {"password": "password"}).status_code == 302
    return client


def _tried(client: Client, name: str, password: str) -> Any:
    return client.post("/sign-in", {"login": name, "password": password})


def _code(secret: str) -> str:
    counter = next(iter(yield_hotp_counters_from_time()))
    return str(format_hotp_value(hotp_value(secret, counter)))


# --- Passwords and guessing -----------------------------------------------------------------------------------


def test_a_password_signs_in_and_the_next_page_comes() -> None:
    person = make.user("member", make.team())
    client = Client()
    answer = client.post("/sign-in", {"login": person.username, "password": "password", "next": "/queue"})
    assert (answer.status_code, answer["Location"]) == (302, "/queue")
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("exists", [True, False])
def test_after_some_tries_in_vain_the_right_password_does_not_help(exists: bool) -> None:
    """The same words, whether there is such a name or not."""
    name = make.user(username="ada").username if exists else "nobody"
    client = Client()
    told = [_tried(client, name, "wrong").content.decode() for _n in range(lockout.MOST_TRIES)]
    assert all("not correct" in one for one in told)
    locked = _tried(client, name, "password")
    assert (locked.status_code, "Too many failed" in locked.content.decode()) == (200, True)
    assert not client.session.get("_auth_user_id")
    # from elsewhere it goes on: nobody locks somebody else out by guessing
    elsewhere = _tried(Client(REMOTE_ADDR="198.51.100.7"), name, "password")
    assert elsewhere.status_code == (302 if exists else 200)


def test_an_address_that_tries_many_names_is_locked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockout, "MOST_FROM_ADDRESS", 3)
    make.user(username="ada")
    for number in range(3):
        _tried(Client(), f"name-{number}", "wrong")
    assert "Too many failed" in _tried(Client(), "ada", "password").content.decode()


def test_what_was_typed_as_a_name_is_not_stored() -> None:
    _tried(Client(), "hunter2", "")
    _tried(Client(), "hunter2", "x")
    assert not [one.key for one in Guessing.objects.all() if "hunter2" in one.key]


def test_a_lock_ends_by_itself() -> None:
    make.user(username="ada")
    for _n in range(lockout.MOST_TRIES + 1):
        _tried(Client(), "ada", "wrong")
    for one in Guessing.objects.all():
        one.since -= lockout.LOCKED_FOR + lockout.LOCKED_FOR / 10
        one.save()
    assert _tried(Client(), "ada", "password").status_code == 302


def test_a_closed_account_signs_in_nowhere() -> None:
    person = make.user()
    client = _signed_in(person)
    User.objects.filter(pk=person.pk).update(is_active=False)
    assert client.get("/")["Location"].startswith("/sign-in")
    assert _tried(Client(), person.username, "password").status_code == 200


# --- Codes --------------------------------------------------------------------------------------------------


def _with_codes(person: User) -> tuple[Client, str, list[str]]:
    client = _confirmed(_signed_in(person))
    page = client.get(reverse("mfa_activate_totp")).content.decode()
    found = re.search(r'id="key">(\w+)<', page)
    assert found, page[-1500:]
    answer = client.post(reverse("mfa_activate_totp"), {"code": _code(found[1])})
    assert answer["Location"] == reverse("mfa_view_recovery_codes")
    shown = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    return client, found[1], re.findall(r"<li><code>(\w+)</code>", shown)


def test_with_codes_on_a_password_alone_opens_nothing() -> None:
    person = make.user("member", make.team())
    _client, secret, recovery = _with_codes(person)
    client = Client()
    answer = _tried(client, person.username, "password")
    assert answer["Location"].startswith("/sign-in/code")
    assert client.get("/")["Location"].startswith("/sign-in")
    wrong = client.post("/sign-in/code", {"code": "000000"})
    assert (wrong.status_code, "Incorrect code" in wrong.content.decode()) == (200, True)
    assert client.post("/sign-in/code", {"code": recovery[0]}).status_code == 302
    assert client.get("/").status_code == 200
    actions = set(Event.objects.filter(actor_id=person.pk).values_list("action", flat=True))
    assert {"sign_in.codes_on", "sign_in.success"} <= actions
    assert secret not in str(list(Event.objects.values("old", "new")))


def test_codes_cannot_be_guessed() -> None:
    person = make.user()
    _client, _secret, recovery = _with_codes(person)
    client = Client()
    _tried(client, person.username, "password")
    for _n in range(lockout.MOST_TRIES):
        client.post("/sign-in/code", {"code": "000000"})
    answer = client.post("/sign-in/code", {"code": recovery[0]})
    assert "Too many failed" in answer.content.decode()


def test_the_key_is_stored_sealed() -> None:
    from allauth.mfa.models import Authenticator

    _client, secret, _recovery = _with_codes(make.user())
    assert secret not in str(list(Authenticator.objects.values_list("data", flat=True)))


def test_where_admins_need_codes_they_do_nothing_before(settings: Any) -> None:
    settings.GPUYARD_ADMINS_NEED_CODES = True
    client = _signed_in(make.admin())
    assert client.get("/")["Location"] == reverse("mfa_activate_totp")
    assert client.get("/api/v1/me").status_code == 403
    assert _confirmed(client).get(reverse("mfa_activate_totp")).status_code == 200
    other, _secret, _recovery = _with_codes(make.admin())
    assert (other.get("/").status_code, other.get("/api/v1/me").status_code) == (200, 200)


# --- Sign-ins ------------------------------------------------------------------------------------------------


def test_a_sign_in_is_listed_with_where_and_revoked() -> None:
    person = make.user("member", make.team())
    here = _signed_in(person)
    there = _signed_in(person, REMOTE_ADDR="198.51.100.7", HTTP_USER_AGENT="Firefox on a phone")
    page = here.get(reverse("web:account")).content.decode()
    assert "198.51.100.7" in page
    assert "Firefox on a phone" in page
    row = SignIn.objects.get(address="198.51.100.7")
    stranger = _signed_in(make.user())
    assert stranger.post(reverse("web:sign_in_end"), {"id": str(row.pk)}).status_code == 404
    assert there.get("/").status_code == 200
    here.post(reverse("web:sign_in_end"), {"id": str(row.pk)})
    assert (there.get("/").status_code, here.get("/").status_code) == (302, 200)
    assert Event.objects.filter(action="sign_in.revoke", actor_id=person.pk).exists()


def test_all_others_end_at_once_and_signing_out_leaves_the_list() -> None:
    person = make.user()
    here, *others = [_signed_in(person) for _n in range(3)]
    here.post(reverse("web:sign_in_end"))
    assert [one.get("/").status_code for one in (here, *others)] == [200, 302, 302]
    here.post("/sign-out")
    assert not SignIn.objects.filter(user=person).exists()


def test_a_new_password_ends_the_other_sign_ins() -> None:
    person = make.user()
    here, there = _signed_in(person), _signed_in(person)
    sent = {
        "oldpassword": "password",
        "password1": "correct horse battery",
        "password2": "correct horse battery",
    }
    assert here.post(reverse("account_change_password"), sent)["Location"] == "/account"
    assert (here.get("/").status_code, there.get("/").status_code) == (200, 302)


# --- Tokens and programs ----------------------------------------------------------------------------------------


def test_a_token_needs_the_password_once_more() -> None:
    person = make.user()
    client = _signed_in(person)
    sent = {"name": "laptop", "scopes": ["costs:read"], "days": "30", "networks": "10.1.0.0/16, 10.2.0.1"}
    answer = client.post(reverse("web:token_new"), sent)
    assert answer["Location"].startswith("/account/confirm")
    assert not ApiToken.objects.exists()
    page = client.post(answer["Location"], {"password": "password"}).content.decode()
    token = ApiToken.objects.get()
    found = re.search(r'id="secret">(gpy_[\w-]+)<', page)
    assert found, page[-1500:]
    assert found[1].startswith(token.prefix)
    assert (token.scopes, token.networks) == (["costs:read"], ["10.1.0.0/16", "10.2.0.1/32"])
    assert found[1] not in client.get(reverse("web:account")).content.decode()
    client.post(reverse("web:token_end", args=[token.pk]))
    token.refresh_from_db()
    assert token.revoked_at


def test_what_is_wrong_with_a_token_is_said_on_the_page() -> None:
    client = _confirmed(_signed_in(make.user()))
    answer = client.post(
        reverse("web:token_new"), {"name": "x", "scopes": ["read"], "days": "30", "networks": "?"}
    )
    assert (answer.status_code, "This is no network" in answer.content.decode()) == (422, True)


def test_a_manager_makes_a_program_and_its_token_and_closes_it() -> None:
    team = make.team()
    client = _confirmed(_signed_in(make.user("manager", team)))
    client.post(reverse("web:service_account_new"), {"team": team.public_id, "name": "ci", "role": "member"})
    account = ServiceAccount.objects.get()
    page = client.post(
        reverse("web:service_token_new", args=[account.user.public_id]),
        {"name": "runner", "scopes": ["workloads:write"], "days": "7", "networks": ""},
    ).content.decode()
    assert 'id="secret">gpy_' in page
    client.post(reverse("web:service_account_end", args=[account.user.public_id]))
    account.refresh_from_db()
    assert account.disabled_at
    assert "No service account yet" in client.get(reverse("web:service_accounts")).content.decode()


def test_a_stranger_and_a_member_make_none(client: Client) -> None:
    team = make.team()
    for person, status in ((make.user(), 404), (make.user("member", team), 403)):
        sent = {"team": team.public_id, "name": "ci", "role": "member"}
        assert (
            _confirmed(_signed_in(person)).post(reverse("web:service_account_new"), sent).status_code
            == status
        )
    assert not ServiceAccount.objects.exists()


def test_the_time_zone_is_ones_own() -> None:
    person = make.user()
    client = _signed_in(person)
    assert client.post(reverse("web:time_zone"), {"zone": "Asia/Tokyo"}).status_code == 302
    assert client.post(reverse("web:time_zone"), {"zone": "Mars/Base"}).status_code == 400
    person.refresh_from_db()
    assert person.time_zone == "Asia/Tokyo"
