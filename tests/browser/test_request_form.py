"""The request form in a browser: what is wrong is said beside its field, and what was typed stays."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Response, expect

from tests.browser import form
from tests.browser.stack import Stack

pytestmark = pytest.mark.browser
Person = Callable[..., Page]


@pytest.mark.parametrize(
    ("label", "typed", "told"),
    [
        ("GPUs per replica", "0", "from 1 to 1024"),
        ("GPUs per replica", "-1", "from 1 to 1024"),
        ("GPUs per replica", "2147483648", "from 1 to 1024"),
        ("GPUs per replica", "0.333", "whole number"),
        ("Command", "", "Fill it in"),
        ("Command", "x" * 1_000_000, "at most"),
    ],
    ids=["zero", "minus one", "two to the 31", "a third", "no command", "a megabyte"],
)
def test_what_is_wrong_is_said_beside_its_field(
    sign_in: Person, stack: Stack, label: str, typed: str, told: str
) -> None:
    page, before = sign_in("vision-member"), stack.names("admin")
    form.fill(page, "bad-input")
    page.get_by_label(label).fill(typed)
    answer = _send(page)
    assert answer.status == 422
    field = page.get_by_label(label)
    error = page.locator(f"#{field.get_attribute('id')}-error")
    expect(error).to_be_visible()
    expect(error).to_contain_text(told)
    assert field.input_value() == typed
    assert str(error.get_attribute("id")) in str(field.get_attribute("aria-describedby"))
    assert page.get_by_label("Name", exact=True).input_value() == "bad-input"
    assert page.locator("input[name=tier]:checked").input_value() == "h100-80g"
    assert stack.names("admin") == before


def test_a_team_that_is_not_offered_is_refused(sign_in: Person, stack: Stack) -> None:
    page, before = sign_in("vision-member"), stack.names("admin")
    form.fill(page, "bad-team")
    team = page.get_by_label("Charged to")
    team.locator("option").first.evaluate("(option, id) => { option.value = id; }", stack.teams["nlp"])
    assert _send(page).status == 422
    expect(page.locator("#id_team-error")).to_contain_text("Choose one from the list")
    assert stack.names("admin") == before


def test_a_tier_that_does_not_exist_is_refused(sign_in: Person, stack: Stack) -> None:
    page, before = sign_in("vision-member"), stack.names("admin")
    form.fill(page, "bad-tier")
    page.locator("input[name=tier]:checked").evaluate("radio => { radio.value = 'b200-180g'; }")
    assert _send(page).status == 422
    expect(page.locator("#id_tier-error")).to_contain_text("h100-80g")
    assert stack.names("admin") == before


def test_a_null_character_is_refused(sign_in: Person, stack: Stack) -> None:
    page, before = sign_in("vision-member"), stack.names("admin")
    form.fill(page, "bad-null")
    fields = _fields(page) | {"command": "echo a\0b"}
    answer = page.request.post("/workloads/new", form=fields)
    assert answer.status == 422
    assert 'id="id_command-error"' in answer.text()
    assert "ull characters" in answer.text()
    assert stack.names("admin") == before


def test_a_form_sent_twice_is_one_workload(sign_in: Person, stack: Stack) -> None:
    page = sign_in("vision-member")
    before = stack.names("admin")
    form.fill(page, "sent-twice")
    fields = _fields(page)
    page.locator("#answer button.btn-go").dblclick()
    expect(page.get_by_role("heading", name="sent-twice")).to_be_visible()
    replayed = page.request.post("/workloads/new", form=fields)
    assert replayed.url == page.url
    assert stack.names("admin") == ["sent-twice", *before]


def test_what_is_typed_and_the_focus_survive_the_answers_polls(sign_in: Person) -> None:
    page = sign_in("vision-member")
    page.clock.install()
    form.fill(page, "kept")
    command = page.get_by_label("Command")
    command.fill("")
    command.press_sequentially("python3 -u tr")
    for _poll in range(2):
        with page.expect_response(_is_answer) as answer:
            page.clock.fast_forward(16_000)
        assert answer.value.ok
        answer.value.finished()
        command.press_sequentially("x")
        expect(command).to_be_focused()
    page.clock.fast_forward(1000)
    expect(command).to_have_value("python3 -u trxx")
    expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
    expect(page.locator("#answer .checks")).to_contain_text("Needs no approval")


def _is_answer(response: Response) -> bool:
    return "part=answer" in response.url


def _send(page: Page) -> Response:
    with page.expect_response(lambda one: one.request.is_navigation_request()) as answer:
        form.send(page)
    response = answer.value
    response.finished()
    return response


def _fields(page: Page) -> dict[str, str | float | bool]:
    """What a press on Request would send."""
    found: dict[str, str | float | bool] = page.locator("#request-form").evaluate(
        "form => Object.fromEntries(new FormData(form))"
    )
    return found
