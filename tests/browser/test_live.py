"""Live pages: a dialog stays open over polls, stopping asks first and then really stops."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stack import Stack, session

pytestmark = pytest.mark.browser
Person = Callable[..., Page]


def test_stopping_asks_survives_polls_and_ends_the_session(sign_in: Person, stack: Stack) -> None:
    workload_id = stack.submit(session("to-be-stopped"))
    page = sign_in("vision-member")
    page.goto(f"/workloads/{workload_id}")
    state = page.locator("[data-glow]").first
    expect(state).to_contain_text("Running")
    expect(page.locator("#log")).to_contain_text("session open")
    page.get_by_role("link", name="Stop").click()
    dialog = page.get_by_role("dialog")
    for _poll in range(2):
        with page.expect_response(lambda one: "part=live" in one.url):
            expect(dialog).to_be_visible()
    expect(dialog).to_contain_text("to-be-stopped")
    assert stack.workload("vision-member", workload_id)["state"] == "running"
    dialog.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-toasts]")).to_contain_text("to-be-stopped is stopping")
    expect(page.locator("[data-glow]").first).to_contain_text("Succeeded")
    expect(page.locator("#log")).to_contain_text("session closed")


def test_keeping_it_closes_the_dialog_and_stops_nothing(sign_in: Person, stack: Stack) -> None:
    workload_id = stack.submit(session("to-be-kept"))
    stack.wait_for("vision-member", workload_id, "running")
    page = sign_in("vision-member")
    page.goto(f"/workloads/{workload_id}?ask=stop")  # as a press on Stop without JavaScript leads to
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("link", name="Keep it").click()
    expect(dialog).to_be_hidden()
    assert stack.workload("vision-member", workload_id)["state"] == "running"
    stack.stop("vision-member", workload_id)


def test_slash_searches_and_c_requests(sign_in: Person) -> None:
    page = sign_in("vision-member")
    page.goto("/")
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type("c")  # typed into the search, no command
    expect(page.locator("[data-search]")).to_have_value("c")
    page.locator("[data-search]").evaluate("box => box.blur()")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Request GPUs")).to_be_visible()
