"""The tags that draw: states with their words, bars as SVG, islands of a node, the version of a live part."""

from datetime import UTC, datetime
from decimal import Decimal

from django.template import Context, Template

from gpuyard.web.contexts import Cell, Money, Part, QuotaLine
from gpuyard.web.templatetags import yard

NOW = datetime(2026, 11, 26, 10, 42, 7, tzinfo=UTC)


def test_a_state_is_a_mark_and_its_word_with_its_clock() -> None:
    html = yard.state("running", 8040)
    assert 'href="#s-active"' in html
    assert "Running 2" in html


def test_an_ended_state_has_no_clock() -> None:
    assert yard.state("succeeded", 8040).endswith("Succeeded</span>")


def test_a_relative_time_has_the_exact_one_on_hover() -> None:
    html = yard.ago(NOW, NOW)
    assert 'title="Thu 26 Nov 2026, 10:42:07 UTC"' in html
    assert 'datetime="2026-11-26T10:42:07+00:00"' in html


def test_an_amount_names_its_own_currency() -> None:
    assert yard.money(Money(Decimal("4.6"), "EUR")).endswith("€")


def test_few_gpu_hours_keep_their_decimals() -> None:
    assert [yard.hours(Decimal(text)) for text in ("0.01234", "3.14159", "250.55")] == [
        "0.0123",
        "3.14",
        "250.6",
    ]


def test_a_meter_puts_its_parts_side_by_side() -> None:
    html = yard.meter([Part(fill="active", value=1, label=""), Part(fill="idle", value=1, label="")], 4, "x")
    assert 'class="f-active" x="0%" width="25%"' in html
    assert 'class="f-idle" x="25%" width="25%"' in html


def test_a_bar_never_leaves_its_drawing() -> None:
    assert yard.percent(30, 10) == "100"
    assert yard.percent(1, 0) == "0"


def test_a_quota_bar_says_what_it_shows() -> None:
    line = QuotaLine(tier="h100-80g", used=4, guaranteed=8, limit=None, note="")
    html = yard.quota_bar(line)
    assert "h100-80g: 4 in use, 8 guaranteed, no limit" in html
    assert 'class="tick" x1="100%"' in html


def test_each_island_of_a_node_is_outlined() -> None:
    row = [Cell(index=index, state="free", title="", island=index // 4) for index in range(8)]
    html = yard.cells(row, "node-07")
    assert html.count('class="isl"') == 2
    assert html.count("#s-free") == 8


def test_what_people_typed_is_escaped() -> None:
    html = yard.cells([Cell(index=0, state="active", title="<b>", url='/x"y')], "<i>")
    assert "<b>" not in html
    assert "<i>" not in html
    assert '"y' not in html


def test_a_live_part_carries_the_version_it_was_rendered_with() -> None:
    template = Template("{% load yard %}{% live_version %}")
    assert 'value="0"' in template.render(Context({}))
    assert 'value="abc"' in template.render(Context({"live_version": "abc"}))
