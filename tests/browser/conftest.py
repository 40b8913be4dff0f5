"""A real platform and a real browser for the tests of this folder; both go before other tests continue.

Playwright's event loop forbids Django's ORM in the same thread: tests here ask the platform over REST.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    StorageState,
    expect,
    sync_playwright,
)

from tests.browser.stack import Stack, started

TIMEOUT_MS = 30_000
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The browser reports every refused form; those are answers that tests ask for.
_REFUSED_FORM = re.compile(r"Failed to load resource: the server responded with a status of (404|422)")

SignIn = Callable[..., Page]


@pytest.fixture(scope="package")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium is installed: apt-get install --no-install-recommends chromium")
    return found


@pytest.fixture(scope="package")
def stack(chromium: str) -> Iterator[Stack]:
    with started() as running:
        yield running


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What the browser complained about: errors of scripts, of the content policy, of loading."""
    seen: list[str] = []
    yield seen
    assert seen == []


@pytest.fixture
def new_page(stack: Stack, browser: Browser, complaints: list[str]) -> Iterator[SignIn]:
    """`new_page(**options)`: a page in a browser context of its own, watched for complaints."""
    contexts: list[BrowserContext] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not _REFUSED_FORM.match(message.text):
            complaints.append(f"{message.text} ({message.location.get('url')})")

    def open_page(**options: Any) -> Page:
        context = browser.new_context(base_url=stack.url, reduced_motion="reduce", **options)
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def sessions() -> dict[str, StorageState]:
    """The cookies of who has signed in already."""
    return {}


@pytest.fixture
def sign_in(stack: Stack, new_page: SignIn, sessions: dict[str, StorageState]) -> SignIn:
    """`sign_in("vision-member", **options)`: a page of this person, signed in by the form."""

    def open_page(username: str, **options: Any) -> Page:
        page = new_page(storage_state=sessions.get(username), **options)
        if username not in sessions:
            _sign_in(page, username, stack.password)
            sessions[username] = page.context.storage_state()
        return page

    return open_page


def _sign_in(page: Page, username: str, password: str) -> None:
    page.goto("/sign-in")
    page.get_by_label("Username").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()


@pytest.fixture
def shoot() -> Callable[[Page, str], None]:
    """`shoot(page, name)` keeps a picture in $GPUYARD_SHOTS; without it, nothing."""
    folder = os.environ.get("GPUYARD_SHOTS", "")

    def keep(page: Page, name: str) -> None:
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return keep
