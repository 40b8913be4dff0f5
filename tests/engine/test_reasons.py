"""Evictions in words: who gained, what was lost, why this one, how much for how much."""

from dataclasses import replace

from scheduling.engine.decisions import STOP_PREEMPT, STOP_RETURN, Grow, ReplicaPlacement, Stop
from scheduling.engine.reasons import grow_reason, stop_reason
from scheduling.engine.snapshot import UNITS_PER_GPU
from scheduling.engine.words import gpu_hours, listing, span

WHY = {
    "rule": "return",
    "gained_by_team": "speech",
    "gained_by_workload": "w-2",
    "lost_gpu_s": 4 * 1800,
    "restart_gpu_s": 4 * 300,
    "checkpoint_age_s": 1800,
    "evicted_units": 4 * UNITS_PER_GPU,
    "requested_units": 4 * UNITS_PER_GPU,
    "candidates": 3,
    "why_this": {"next_best_lost_gpu_s": 4 * 9000},
}
STOP = Stop("w-1", STOP_RETURN, "w-2", None, WHY)


def test_a_return_says_who_gained_what_was_lost_and_why_this_one() -> None:
    assert stop_reason(STOP, {"speech": "Speech", "w-2": "train-large"}) == (
        "Taken back because it was borrowed and team Speech needs its guarantee (train-large). "
        "Lost: 2 GPU-hours of work since its last checkpoint 30 minutes ago, and 20 GPU-minutes to start again. "
        "Chosen among 3 because least work is lost; the next best would have lost 10 GPU-hours. "
        "In all 4 GPUs taken back for 4 asked for (1.00 for each)."
    )


def test_a_stranger_stays_unnamed() -> None:
    unnamed = WHY | {"gained_by_team": None, "gained_by_workload": None}
    assert stop_reason(replace(STOP, why=unnamed)).startswith(
        "Taken back because it was borrowed and another team needs its guarantee. "
    )


def test_elastic_work_is_made_smaller() -> None:
    made_smaller = replace(STOP, replicas=(3, 2))
    assert stop_reason(made_smaller, {}).startswith("Made smaller by 2 replicas because it was borrowed")


def test_nothing_lost_and_nothing_else_to_take() -> None:
    why = WHY | {"lost_gpu_s": 0, "restart_gpu_s": 0, "candidates": 1}
    assert "No work is lost. Nothing else could be taken. " in stop_reason(replace(STOP, why=why))


def test_every_rule_has_words_and_a_bare_stop_too() -> None:
    rules = ("return", "band", "floor", "slack", "consolidate")
    texts = {stop_reason(replace(STOP, why=WHY | {"rule": rule})) for rule in rules}
    assert len(texts) == 5
    assert stop_reason(Stop("w", STOP_PREEMPT, None)) == (
        "Taken back for critical work of another team, which goes before all fair share."
    )


def test_growth_says_how_much() -> None:
    more = tuple(ReplicaPlacement(index, "n1", 1, ("a", "b")) for index in (2, 3))
    assert grow_reason(Grow("w", more)) == "Grew by 2 replicas (4 GPUs) into GPUs that nobody waits for."


def test_amounts_in_the_unit_that_says_enough() -> None:
    assert [gpu_hours(seconds) for seconds in (60, 3600, 5400)] == [
        "1 GPU-minute",
        "1 GPU-hour",
        "1.5 GPU-hours",
    ]
    assert [span(seconds) for seconds in (1, 90, 7200, 200_000)] == [
        "1 second",
        "1 minute",
        "2 hours",
        "2 days",
    ]
    assert [listing(things) for things in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]
