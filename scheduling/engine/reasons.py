"""Why work is taken back or grows, in plain English, from the data that the plan stores.

An id without a name stands for itself; who may not know a team or workload is given the data without it (None).
"""

from scheduling.engine.decisions import (
    STOP_CONSOLIDATE,
    STOP_PREEMPT,
    STOP_RETURN,
    Grow,
    Stop,
)
from scheduling.engine.words import Data, Names, count, gpu_count, gpu_hours, gpus, named, span

RETURN, BAND, FLOOR, SLACK = "return", "band", "floor", "slack"
CONSOLIDATE = "consolidate"
_RULE_OF = {STOP_RETURN: RETURN, STOP_PREEMPT: BAND, STOP_CONSOLIDATE: CONSOLIDATE}


def stop_reason(stop: Stop, names: Names | None = None) -> str:
    """Who gained, what was lost, why it was this one, and how much was taken for how much asked."""
    known, why = names or {}, stop.why
    parts = [_for_whom(stop, known), _lost(why), _why_this(why), _for_how_much(why)]
    return " ".join(f"{part}." for part in parts if part)


def grow_reason(grow: Grow) -> str:
    """Why a running workload got more replicas."""
    more = f"Grew by {count(len(grow.replicas), 'replica')}"
    units = sum(len(replica.gpu_ids) * replica.units_per_gpu for replica in grow.replicas)
    return f"{more} ({gpu_count(units)}) into GPUs that nobody waits for."


def _for_whom(stop: Stop, names: Names) -> str:
    why = stop.why
    what = (
        "Taken back" if stop.replicas is None else f"Made smaller by {count(len(stop.replicas), 'replica')}"
    )
    team = named(names, why.get("gained_by_team"), "")
    whose = f"team {team}" if team else "another team"
    workload = named(names, why.get("gained_by_workload"), "")
    which = f" ({workload})" if workload else ""
    rule = why.get("rule", _RULE_OF.get(stop.reason, stop.reason))
    sentences = {
        RETURN: f"{what} because it was borrowed and {whose} needs its guarantee{which}",
        BAND: f"{what} for critical work of {whose}{which}, which goes before all fair share",
        FLOOR: f"{what} because it was borrowed and a service of {whose} needs its least replicas{which}",
        SLACK: f"{what} because it had grown into GPUs that {whose} waits for now{which}",
        CONSOLIDATE: f"Moved so that larger work of {whose}{which} fits; it starts again elsewhere at once",
    }
    return sentences.get(str(rule), what)


def _lost(why: Data) -> str:
    if "lost_gpu_s" not in why:
        return ""
    since = why.get("checkpoint_age_s")
    when = f"since its last checkpoint {span(since)} ago" if since is not None else "since its start"
    restart = why.get("restart_gpu_s", 0)
    again = f", and {gpu_hours(restart)} to start again" if restart else ""
    if not why["lost_gpu_s"] and not restart:
        return "No work is lost"
    return f"Lost: {gpu_hours(why['lost_gpu_s'])} of work {when}{again}"


def _why_this(why: Data) -> str:
    """The rule that chose it, with the next best as the measure."""
    candidates = why.get("candidates", 0)
    if not candidates:
        return ""
    if candidates == 1:
        return "Nothing else could be taken"
    following = (why.get("why_this") or {}).get("next_best_lost_gpu_s")
    than = f"; the next best would have lost {gpu_hours(following)}" if following is not None else ""
    return f"Chosen among {candidates} because least work is lost{than}"


def _for_how_much(why: Data) -> str:
    taken, asked = why.get("evicted_units"), why.get("requested_units")
    if not taken or not asked:
        return ""
    return f"In all {gpu_count(taken)} taken back for {gpus(asked)} asked for ({taken / asked:.2f} for each)"
