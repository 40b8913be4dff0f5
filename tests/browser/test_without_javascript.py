"""Everything can be read and every form sent without JavaScript."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser import form
from tests.browser.stack import Stack, session

pytestmark = pytest.mark.browser
Person = Callable[..., Page]


def test_request_list_and_workload_page(sign_in: Person) -> None:
    page = sign_in("vision-member", java_script_enabled=False)
    form.fill(page, "by-hand")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#answer")).to_contain_text("Needs no approval")
    expect(page.get_by_label("Name", exact=True)).to_have_value("by-hand")
    form.send(page)
    expect(page.get_by_role("heading", name="by-hand")).to_be_visible()
    page.goto("/workloads?q=by-hand")
    page.get_by_role("link", name="by-hand").click()
    expect(page.locator(".steps-y")).to_contain_text("Requested")


def test_stopping_a_session(sign_in: Person, stack: Stack) -> None:
    workload_id = stack.submit(session("stopped-by-hand"))
    stack.wait_for("vision-member", workload_id, "running")
    page = sign_in("vision-member", java_script_enabled=False)
    page.goto(f"/workloads/{workload_id}")
    page.get_by_role("link", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.locator("[data-toasts]")).to_contain_text("is stopping")
    stack.wait_for("vision-member", workload_id, "succeeded")
