"""The whole story in a real browser: requested, approved, running with a live log, paid for.

With GPUYARD_SHOTS=<folder> the pages that it passes are saved there in light, dark and 360 px.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from django.db import connections
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from billing.services import meter
from gpuyard.core.models import User
from gpuyard.fleet.models import Node, Tier
from gpuyard.fleet.services import join_token_create
from scheduling.models import Workload
from scheduling.passes import pass_once
from tenants.models import Team
from tests import factories as make

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
PROGRAM = "import time\nfor step in range(3000): print('step', step, flush=True); time.sleep(0.2)"
SHOTS = os.environ.get("GPUYARD_SHOTS")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread, and Django then refuses the database, which is not async here.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield opened
        opened.close()
        connections.close_all()  # those of this loop: nobody could close them later


@pytest.fixture
def team(db: None) -> Team:
    company = make.company("acme")
    vision = make.team(company, "vision")
    tier = make.tier("h100-80g", rule_for="NVIDIA H100 80GB HBM3")
    make.rates(company, tier, price="3600", cost="1800")
    make.approval_policy(company, make.MANAGER)
    make.quota(company, tier, guaranteed_gpus=2)
    make.quota(vision, tier, guaranteed_gpus=2, limit_gpus=2)
    for role in ("member", "manager", "finance"):
        make.user(role, vision, username=f"vision-{role}")
    return vision


@pytest.fixture
def agent(live_server: LiveServer, team: Team, tmp_path: Path) -> Iterator[None]:
    """A real agent that pretends to have two GPUs."""
    _token, secret = join_token_create(actor=None, pool=make.pool("train"))
    command = [sys.executable, "-m", "gpuyard_agent", "run", "--server", live_server.url]
    command += ["--state", str(tmp_path / "agent"), "--name", "node-1", "--simulate", "2xh100-80g"]
    with (tmp_path / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, "GPUYARD_JOIN_TOKEN": secret}, stderr=log)
    _until(lambda: Node.objects.filter(state="ready").exists(), "the node has joined")
    yield
    process.terminate()
    process.wait(timeout=10)


def _until(holds: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    ends = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends, f"not within {timeout_s} s: {what}"
        time.sleep(0.2)


def _sign_in(browser: Browser, url: str, name: str) -> Page:
    page = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900}).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto("/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill("password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    assert not problems
    return page


def _shoot(page: Page, name: str) -> None:
    if not SHOTS:
        return
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(300)  # colours fade
        page.screenshot(path=f"{SHOTS}/{name}-{theme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 780})
    width = page.locator("html").evaluate("e => e.scrollWidth")
    page.screenshot(path=f"{SHOTS}/{name}-phone.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert width <= 360, f"{name} scrolls sideways at 360 px: {width}"


def _request(page: Page) -> None:
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Request GPUs")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("train-llm")
    page.get_by_label("GPUs per replica").fill("2")
    page.get_by_label("Command").fill(f'{sys.executable} -u -c "{PROGRAM}"')
    page.get_by_label("What is it for").fill("The last run before the freeze")
    answer = page.get_by_label("Answer")
    expect(answer).to_contain_text("Needs 1 approval: a manager of vision")
    expect(answer).to_contain_text("Request 2")
    expect(answer).to_contain_text("7,200.00")
    _shoot(page, "request")
    answer.get_by_role("button", name=re.compile("^Request")).click()
    expect(page.get_by_role("heading", name="train-llm")).to_be_visible()
    expect(page.locator(".head-s")).to_contain_text("Needs approval")
    _shoot(page, "workload-pending")


def _approve(page: Page) -> None:
    page.get_by_role("link", name="Approvals", exact=False).first.click()
    expect(page.get_by_role("heading", name="vision-member asks for 2")).to_be_visible()
    expect(page.get_by_text("The last run before the freeze")).to_be_visible()
    _shoot(page, "approvals")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Approved: train-llm")).to_be_visible()


def test_requested_approved_running_and_paid(
    browser: Browser, live_server: LiveServer, agent: None, tmp_path: Path
) -> None:
    member = _sign_in(browser, live_server.url, "vision-member")
    _request(member)
    _approve(_sign_in(browser, live_server.url, "vision-manager"))
    pass_once()

    # The member's page was open all the while: it moves on by itself.
    expect(member.locator(".head-s")).to_contain_text("Running", timeout=20_000)
    log = member.get_by_label("Last lines of the log")
    expect(log).to_contain_text("step 5", timeout=20_000)
    before = log.inner_text()
    expect(log).not_to_have_text(before, timeout=10_000)
    _shoot(member, "workload-running")
    for name in ("home", "workloads", "queue", "fleet"):
        member.goto("/" if name == "home" else f"/{name}")
        _shoot(member, name)

    workload = Workload.objects.get()
    member.goto(f"/workloads/{workload.public_id}")
    member.get_by_role("link", name="Stop").click()
    dialog = member.get_by_role("dialog")
    expect(dialog).to_contain_text("2 GPUs are free")
    dialog.get_by_role("button", name="Stop").click()
    expect(member.locator(".head-s")).to_contain_text("Cancelled", timeout=20_000)

    _until(lambda: bool(meter() and workload.charges.exists()), "it is metered")
    _the_file_adds_up(_sign_in(browser, live_server.url, "vision-finance"), tmp_path)


def _the_file_adds_up(page: Page, folder: Path) -> None:
    page.get_by_role("link", name="Costs").click()
    shown = page.locator("[data-total=price]").inner_text()
    _shoot(page, "costs")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(folder / "costs.csv")
    rows = list(csv.DictReader((folder / "costs.csv").read_text().splitlines()))
    assert rows
    total = sum((Decimal(row["price"]) for row in rows), Decimal(0))
    assert total > 0
    assert Decimal(re.sub(r"[^0-9.]", "", shown)) == total


def test_without_javascript_the_form_still_works(
    browser: Browser, live_server: LiveServer, team: Team
) -> None:
    make.node(Tier.objects.get(), 2)
    context = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/workloads/new")
    page.get_by_label("Username").fill("vision-member")
    page.get_by_label("Password").fill("password")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("GPUs per replica").fill("nonsense")
    page.get_by_role("button", name=re.compile("^Request")).first.click()
    expect(page.locator("#id_gpus_per_replica-error")).to_contain_text("a whole number of GPUs")
    page.get_by_label("GPUs per replica").fill("1")
    page.get_by_label("Name", exact=True).fill("plain")
    page.get_by_label("Command").fill("true")
    page.get_by_role("button", name=re.compile("^Request")).first.click()
    expect(page.get_by_role("heading", name="plain")).to_be_visible()
    assert Workload.objects.get().owner == User.objects.get(username="vision-member")


def test_a_live_part_keeps_what_somebody_types(browser: Browser, live_server: LiveServer, team: Team) -> None:
    page = _sign_in(browser, live_server.url, "vision-member")
    page.goto("/workloads")
    box = page.get_by_label("Name, id or owner")
    box.fill("half a wo")
    with page.expect_response(re.compile("part=live"), timeout=10_000):
        pass
    expect(box).to_have_value("half a wo")
    expect(box).to_be_focused()
