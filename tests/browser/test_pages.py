"""Each page in light, dark and on a phone: accessible, within its width, no complaint of the browser."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.stack import Stack, failing, session, training

pytestmark = pytest.mark.browser
Person = Callable[..., Page]
DESK, PHONE = ViewportSize(width=1440, height=900), ViewportSize(width=360, height=740)
AXE = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
}


@dataclass(frozen=True)
class World:
    """One workload in each situation that a page shows."""

    running: str
    waiting: str
    pending: str
    failed: str
    reserved: str
    node: str


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    neighbour = _neighbour(stack)
    made = World(
        running=stack.submit(session("label-review")),
        waiting=stack.submit(training("sixteen-on-one-node", count=16)),
        pending=stack.submit(training("pretrain-detector", hours=8, count=2)),
        failed=stack.submit(failing("broken-labels")),
        reserved=stack.submit(training("five-of-eight", count=5)),
        node=stack.node("node-l4-24g"),
    )
    stack.wait_for("vision-member", made.running, "running")
    stack.wait_for("vision-member", made.failed, "failed")
    yield made
    for workload_id in (made.reserved, made.running, made.waiting, made.pending):
        stack.stop("vision-member", workload_id)
    stack.stop("nlp-member", neighbour)


def _neighbour(stack: Stack) -> str:
    """Half of a node for an hour, inside the guarantee of another team."""
    asked = training("neighbour", "--seconds", "900", count=4)
    made = stack.submit(replace(asked, by="nlp-member", team="nlp"))
    stack.wait_for("nlp-member", made, "running")
    return made


@pytest.mark.parametrize(
    ("name", "who", "address", "heading"),
    [
        ("sign-in", "", "/sign-in", "Sign in"),
        ("home", "vision-member", "/", "Home"),
        ("home-manager", "vision-manager", "/", "Home"),
        ("home-finance", "finance", "/", "Home"),
        ("request", "vision-member", "/workloads/new", "Request GPUs"),
        ("workloads", "vision-member", "/workloads", "Workloads"),
        ("workloads-empty", "vision-member", "/workloads?q=nothing-like-it", "Workloads"),
        ("workload-running", "vision-member", "/workloads/{running}", "label-review"),
        ("workload-waiting", "vision-member", "/workloads/{waiting}", "sixteen-on-one-node"),
        ("workload-reserved", "vision-member", "/workloads/{reserved}", "How it clears"),
        ("workload-pending", "vision-member", "/workloads/{pending}", "pretrain-detector"),
        ("workload-failed", "vision-member", "/workloads/{failed}", "broken-labels"),
        ("workload-log", "vision-member", "/workloads/{failed}?tab=log", "broken-labels"),
        ("workload-decisions", "vision-member", "/workloads/{running}?tab=decisions", "label-review"),
        ("workload-cost", "vision-member", "/workloads/{running}?tab=cost", "label-review"),
        ("workload-events", "vision-member", "/workloads/{running}?tab=events", "label-review"),
        ("workload-stop", "vision-member", "/workloads/{running}?ask=stop", "label-review"),
        ("approvals", "vision-manager", "/approvals", "Approvals"),
        ("approvals-mine", "vision-member", "/approvals?show=mine", "Approvals"),
        ("approvals-none", "recsys-manager", "/approvals", "Approvals"),
        ("away", "vision-manager", "/approvals/away", "Away"),
        ("rules", "admin", "/rules", "Approval rules"),
        ("queue", "vision-member", "/queue", "Queue"),
        ("fleet", "vision-member", "/fleet", "Fleet"),
        ("node", "vision-member", "/fleet/nodes/{node}", "node-l4-24g"),
        ("node-admin", "admin", "/fleet/nodes/{node}", "node-l4-24g"),
        ("free-space", "vision-member", "/fleet/free", "Free space"),
        ("queue-admin", "admin", "/queue", "Queue"),
        ("passes", "admin", "/passes", "Passes"),
        ("fleet-admin", "admin", "/fleet", "Fleet"),
        ("costs", "finance", "/costs", "Costs"),
        ("policy", "admin", "/policy", "Policy"),
        ("policy-auditor", "auditor", "/policy", "Policy"),
        ("audit", "auditor", "/audit", "Audit"),
        ("audit-admin", "admin", "/audit", "Audit"),
        ("search", "vision-member", "/search?q=label", "Search"),
        ("not-found", "vision-member", "/workloads/w-00000000", ""),
    ],
)
def test_a_page_looks_right(
    new_page: Person,
    sign_in: Person,
    world: World,
    shoot: Callable[[Page, str], None],
    name: str,
    who: str,
    address: str,
    heading: str,
) -> None:
    page = sign_in(who, viewport=DESK) if who else new_page(viewport=DESK)
    page.goto(address.format(**vars(world)))
    if heading:
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shoot(page, f"{name}-{scheme}")
        assert _violations(page) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    shoot(page, f"{name}-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def _violations(page: Page) -> list[str]:
    found = Axe().run(page, options=AXE).response["violations"]
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"]
    ]
