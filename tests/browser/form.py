"""Filling the request form as a person does."""

import shlex

from playwright.sync_api import Page

from tests.browser.stack import command

TRAIN = shlex.join(command("train", "--seconds", "2"))


def fill(
    page: Page, name: str, *, tier: str = "h100-80g", gpus: str = "1", limit: str = "1 h", line: str = TRAIN
) -> None:
    """Opens the form and fills in a training run that nobody must approve; sends nothing."""
    page.goto("/workloads/new")
    # The radio buttons themselves are drawn by their labels.
    page.locator(f".tier:has(input[value='{tier}'])").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("GPUs per replica").fill(gpus)
    page.get_by_label("Time limit").fill(limit)
    page.get_by_label("Command").fill(line)


def send(page: Page) -> None:
    page.locator("#answer button.btn-go").click()
