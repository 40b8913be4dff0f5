"""The main story through the pages: requested, approved, run, metered, priced, each step by its own person."""

import csv
import re
import shlex
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import form
from tests.browser.stack import command

pytestmark = pytest.mark.browser
Person = Callable[..., Page]
LINE = shlex.join(command("train", "--seconds", "14"))


def test_a_member_asks_a_manager_approves_it_runs_and_finance_reads_what_it_cost(
    sign_in: Person, shoot: Callable[[Page, str], None], tmp_path: Path
) -> None:
    member = sign_in("vision-member")
    _request(member)
    workload_id = member.url.rsplit("/", 1)[-1]
    _approve(sign_in("vision-manager"), workload_id, shoot)
    _watch_it_run(member, shoot)
    _compare_csv_with_page(sign_in("finance"), tmp_path)


def _request(member: Page) -> None:
    form.fill(member, "pretrain-backbone", gpus="3", limit="8 h", line=LINE)
    member.get_by_label("What is it for").fill("The detection backbone for the spring release.")
    answer = member.locator("#answer")
    expect(answer).to_contain_text("Inside the guarantee")
    expect(answer).to_contain_text("Needs 1 approval: a manager of vision")
    expect(answer).to_contain_text("R2 longer than two hours")
    expect(answer).to_contain_text("110.40 €")  # 3 × 8 h × 4.60 €
    expect(answer).to_contain_text(re.compile(r"\d of 8 h100-80g free now"))
    form.send(member)
    expect(member.get_by_role("heading", name="pretrain-backbone")).to_be_visible()
    expect(member.locator("[data-glow]").first).to_contain_text("approval")


def _approve(manager: Page, workload_id: str, shoot: Callable[[Page, str], None]) -> None:
    manager.goto("/")
    manager.get_by_role("link", name=re.compile("Approvals")).first.click()
    manager.locator("#inbox").get_by_role("link", name=re.compile("vision-member.*3 × h100-80g")).click()
    card = manager.locator("article.case")
    expect(card).to_contain_text(workload_id)
    expect(card).to_contain_text("The detection backbone for the spring release.")
    shoot(manager, "approvals-story")
    card.get_by_label("Reason").fill("Agreed in planning.")
    card.get_by_role("button", name="Approve").click()
    expect(manager.locator("[data-toasts]")).to_contain_text("Approved")


def _watch_it_run(member: Page, shoot: Callable[[Page, str], None]) -> None:
    member.evaluate("window.neverReloaded = true")
    state, lines = member.locator("[data-glow]").first, member.locator("#log li")
    expect(state).to_contain_text("Running")
    expect(lines.filter(has_text="loss").nth(1)).to_be_visible()
    seen = lines.count()
    expect(lines.nth(seen + 2)).to_be_visible()
    shoot(member, "workload-story")
    expect(state).to_contain_text("Succeeded")
    expect(lines.filter(has_text="done:")).to_be_visible()
    assert member.evaluate("window.neverReloaded") is True


def _compare_csv_with_page(finance: Page, folder: Path) -> None:
    finance.goto("/costs")
    total = finance.locator("[data-total=price]")
    deadline = time.monotonic() + 60
    while total.count() == 0 or _amount(total.inner_text()) == 0:  # metering comes every 30 s
        assert time.monotonic() < deadline, "nothing was charged"
        finance.wait_for_timeout(1000)
        finance.reload()
    rows: list[dict[str, str]] = []
    before = Decimal(-1)
    while _amount(total.inner_text()) != before:  # and may come between the page and its CSV
        before = _amount(total.inner_text())
        rows = _download(finance, folder)
        finance.reload()
    assert sum(Decimal(row["price"]) for row in rows) == before > 0
    shown = finance.locator(".tbl-cost tbody tr td:last-child").all_inner_texts()
    assert [_amount(text) for text in shown] == [Decimal(row["price"]) for row in rows]


def _download(finance: Page, folder: Path) -> list[dict[str, str]]:
    with finance.expect_download() as download:
        finance.get_by_role("link", name="CSV").click()
    download.value.save_as(folder / "costs.csv")
    return list(csv.DictReader((folder / "costs.csv").read_text().splitlines()))


def _amount(text: str) -> Decimal:
    if text.strip().startswith("<"):  # "< 0.01 €": something, but no whole cent
        return Decimal("0.00")
    return Decimal(re.sub(r"[^0-9.]", "", text))
