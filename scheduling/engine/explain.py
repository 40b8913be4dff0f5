"""Decisions in plain English, from their stored data alone.

`names` maps ids of teams, tiers and nodes to what people call them; an id without a name stands for itself.
"""

from collections.abc import Callable, Mapping
from typing import Any

from scheduling.engine import decisions as codes
from scheduling.engine.decisions import Blocker, Claim, Start, Verdict
from scheduling.engine.words import cores, count, gib, gpu_count, gpu_hours, gpus, moment, number

Names = Mapping[str, str]
_Data = Mapping[str, Any]


def sentence(blocker: Blocker, names: Names) -> str:
    """One blocker as one sentence without its full stop."""
    return _SENTENCES[blocker.code](blocker.data, names)


def headline(verdict: Verdict, names: Names) -> str:
    """The first blocker, and how many more there are."""
    more = len(verdict.blockers) - 1
    rest = f" (and {count(more, 'more reason')})" if more > 0 else ""
    return f"Waiting: {sentence(verdict.blockers[0], names)}{rest}"


def change_sentence(change: _Data | None, names: Names) -> str:
    """What the person could do about it."""
    if change is None:
        return "No single change would start it now"
    kind = change["kind"]
    if kind == "fewer_gpus":
        when = "would start now" if change.get("when") == "now" else "would fit once they are free"
        tier = f" of {names.get(change['tier'], change['tier'])}" if change.get("tier") else ""
        return f"With {count(change['gpus_per_replica'], 'GPU')}{tier} for each replica it {when}"
    if kind == "other_tier":
        return f"On {names.get(change['tier'], change['tier'])} it would start now"
    if kind == "level":
        when = "would start now" if change["when"] == "now" else "would fit once its GPUs are free"
        return f"{_nearness(change['level'])} it {when}"
    if kind == "smaller_share":
        tier = names.get(change["tier"], change["tier"])
        return f"With {_part(change['share'], change['gpu_memory_mib'])} of one {tier} it would start now"
    if kind == "array_cap":
        return f"It would start now if its array might run {change['cap']} at once"
    if kind == "quota":
        raises = [_raise(item, names) for item in change["raise"]]
        return f"It would start now with {' and '.join(raises)}"
    return {
        "wait": "Nothing to do: it starts when it is its turn",
        "budget": "It would start with more budget",
        "start_time": "It would start now without its earliest start",
    }[kind]


def start_reason(start: Start | Claim, names: Names | None = None) -> str:
    """Why now and why here."""
    parts = [_why_now(start.why_now, names or {}), _taken_back(start.why_now), _why_here(start, names or {})]
    return " ".join(f"{part}." for part in parts if part)


def _taken_back(why: _Data) -> str:
    """What others had to leave for it."""
    taken = why.get("taken_back")
    if not taken:
        return ""
    lost = f"; they lose {gpu_hours(taken['lost_gpu_s'])} of work" if taken.get("lost_gpu_s") else ""
    return f"Others leave {gpu_count(taken['evicted_units'])} to it{lost}"


def _why_now(why: _Data, names: Names) -> str:
    team = names.get(why["team_id"], why["team_id"])
    used, guaranteed, asked = (gpus(why[key]) for key in ("used_before", "guaranteed", "asked"))
    if why["rule"] == "guaranteed":
        promised = f"{guaranteed} GPU" if guaranteed == "1" else f"{guaranteed} GPUs"
        return f"Inside the guarantee of {promised}: team {team} used {used} and asked for {asked}"
    if why["rule"] == "band":
        return (
            f"Critical work goes first: team {team} has the right to it; it used {used} and asked for {asked}"
        )
    lent = f"{asked} beyond the guarantee of team {team}, which used {used} of {guaranteed}"
    return f"Borrowed: {lent}"


def _why_here(start: Start | Claim, names: Names) -> str:
    why = start.why_here
    score, runner_up = why["score"], why.get("runner_up")
    tier = names.get(why["tier_id"], why["tier_name"])
    node = names.get(score["node_id"], score["node_name"])
    could = f"of {count(why['candidates'], 'node')} that could"
    place = f"On {node} ({tier}{_tier_choice(why)}): {could}, {_left(score)}"
    if score["one_island"] and len(start.replicas[0].gpu_ids) > 1:
        place += ", all GPUs on one island"
    if why.get("topology"):
        place += f", all replicas in {why['topology']['level']} {why['topology']['domain']}"
    if runner_up is None:
        return place
    other = names.get(runner_up["node_id"], runner_up["node_name"])
    costs = score.get("cost"), runner_up.get("cost")
    tells = None not in costs and costs[0] != costs[1]
    by = f" (score {costs[0]:g} against {costs[1]:g}, less is better)" if tells else ""
    return f"{place}; next best was {other} with {runner_up['gpus_left']} left{by}"


def _tier_choice(why: _Data) -> str:
    if why["tier_choices"] == 1:
        return ""
    if why.get("by_value"):
        return f", the best result for its cost of {why['tier_choices']} tiers that could start it"
    return f", choice {why['tier_choice']} of {why['tier_choices']}"


def _left(score: _Data) -> str:
    if score.get("slots_left") is not None:
        return f"its card is left with {_percent(score['slots_left'])}"
    return f"it is left with {count(score['gpus_left'], 'GPU')}"


def _quota(data: _Data, names: Names) -> str:
    teams = [names.get(key, key) for key in (data["team_id"], *data.get("also_team_ids", ()))]
    what = _tier(data, names) if data["tier_id"] else "GPUs of all tiers"
    used, limit, asked = gpus(data["used"]), gpus(data["limit"]), gpus(data["asked"])
    if len(teams) > 1:
        every = f"{', '.join(teams[:-1])} and {teams[-1]}"
        return f"teams {every} each use {used} of their {limit} {what}; this asks for {asked} more"
    (team,) = teams
    return f"team {team} uses {used} of its {limit} {what}; this asks for {asked} more"


def _not_preemptible(data: _Data, names: Names) -> str:
    team, tier = names.get(data["team_id"], data["team_id"]), _tier(data, names)
    used, limit, asked = gpus(data["used"]), gpus(data["limit"]), gpus(data["asked"])
    rule = f"it may not be interrupted, so it must stay inside the guarantee of team {team}"
    return f"{rule}: {used} of {limit} {tier} are in use and it asks for {asked}"


def _lend_limit(data: _Data, names: Names) -> str:
    free, asked = gpus(max(0, data["limit"] - data["used"])), gpus(data["asked"])
    return (
        f"it would borrow {asked} {_tier(data, names)}; their owners lend {free} more and keep the rest back"
    )


def _headroom(data: _Data, names: Names) -> str:
    most, used, asked = gpus(data["limit"]), gpus(data["used"]), gpus(data["asked"])
    kept = f"at most {most} {_tier(data, names)} are for borrowed work other than services, the rest is kept free"
    return f"{kept}; {used} are in use and it asks for {asked}"


def _reservation(data: _Data, names: Names) -> str:
    first, more = data["holders"][0], len(data["holders"]) - 1
    named = first.get("name") and first["team_id"]
    whom = f"{first['name']} of {_holder(first, names)}" if named else "other work"
    rest = f" and {more} more" if more else ""
    size = count(first["gpus"], "GPU")
    return f"{_tier(data, names)} are free, but held for {whom} ({size}){rest}; it would not end in time"


def _not_before(data: _Data, names: Names) -> str:
    return f"it is not to start before {moment(data['not_before_us'])}"


def _dependency(data: _Data, names: Names) -> str:
    named = ", ".join(names.get(key, key) for key in data["workload_ids"])
    more = data["count"] - len(data["workload_ids"])
    return f"{named}{f' and {more} more' if more > 0 else ''} must succeed first"


def _array_cap(data: _Data, names: Names) -> str:
    return f"its array runs {data['cap']} at once and {data['running']} are running"


def _sessions(data: _Data, names: Names) -> str:
    limit, used, asked = gpu_count(data["limit"]), gpus(data["used"]), gpus(data["asked"])
    whose = (
        f"sessions of team {names.get(data['team_id'], data['team_id'])}"
        if data["team_id"]
        else "its owner's sessions"
    )
    text = f"{whose} may hold {limit} at once; they hold {used} and this asks for {asked}"
    return text if data["ever"] else f"{text}, so it can never start as it is"


def _tier_unknown(data: _Data, names: Names) -> str:
    if data["tier_id"] is None:
        return "no tier is named"
    return f"there is no tier {_tier(data, names)} any more"


def _never_fits(data: _Data, names: Names) -> str:
    tier, node = _tier(data, names), names.get(data["node_id"] or "", data["node_name"])
    if data["resource"] == "gpus":
        asked = (
            f"asks for {data['asked']} {tier} on one node; the largest node, {node}, has {data['largest']}"
        )
    elif data["resource"] == "share":
        asked = f"asks for more of one card than a {tier} can give"
    elif data["resource"] == "together":
        needs = f"{data['asked']} GPUs, {cores(data['asked_cpu_m'])} and {gib(data['asked_memory_mib'])}"
        asked = f"no {tier} node has {needs} together"
    else:
        measure = cores if data["resource"] == "cpu" else gib
        most = f"the most that a {tier} node has is {measure(data['largest'])}, on {node}"
        asked = f"asks for {measure(data['asked'])} for each replica; {most}"
    return f"{asked}, so it can never start as it is"


def _no_ready_gpu(data: _Data, names: Names) -> str:
    tier = _tier(data, names)
    if not data["total"]:
        return f"no {tier} has joined yet"
    if not data["ready"]:
        return f"none of the {data['total']} {tier} is ready for work"
    return f"only {data['ready']} of {data['total']} {tier} are ready for work; this needs {data['needed']}"


def _not_enough_free(data: _Data, names: Names) -> str:
    tier, total, largest = _tier(data, names), data["total_free"], data["largest_free"]
    if total < data["needed"]:
        free = f"{total} {tier} free, {data['needed']} needed" if total else f"no {tier} is free"
    elif largest < data["gpus_per_replica"]:
        free = f"{total} {tier} free, but at most {largest} on one node"
    else:
        free = f"{total} {tier} free, but not on nodes that have the rest of what it needs"
    return free + _held_by(data, names)


def _held_by(data: _Data, names: Names) -> str:
    shown = [f"{_holder(held, names)} {number(held['gpus'])}" for held in data["holders"][:3]]
    leaving = data.get("leaving")
    soon = f"; {number(leaving)} {'is' if leaving == 1 else 'are'} being vacated" if leaving else ""
    return (f"; held by {', '.join(shown)}" if shown else "") + soon


def _holder(held: _Data, names: Names) -> str:
    return f"team {names.get(held['team_id'], held['team_id'])}" if held["team_id"] else "others"


def _gang_split(data: _Data, names: Names) -> str:
    each = f"{data['gpus_per_replica']} {_tier(data, names)}"
    fit, wanted = data["replicas_fit"], data["replicas_min"]
    if not data.get("ever", True):
        holds = f"all nodes together hold {fit}, even when empty"
        return f"needs {wanted} replicas with {each} each at once; {holds}, so it can never start as it is"
    free = f"{data['total_free']} are free, but only {count(fit, 'replica')} would fit"
    return f"needs {wanted} replicas with {each} each at once; {free}"


def _short_of(measure: Callable[[int], str], what: str) -> Callable[[_Data, Names], str]:
    def render(data: _Data, names: Names) -> str:
        node = names.get(data["node_id"], data["node_name"])
        where = "on a node with the GPUs free" if data["beside_free_gpus"] else "on one node"
        most = f"the most {what} free {where} is {measure(data['largest_free'])}, on {node}"
        if data["largest_free"] < data["asked"]:
            return f"needs {measure(data['asked'])} for each replica beside its {_tier(data, names)}; {most}"
        held = f"{what} for {count(data['replicas_fit'], 'replica')} is free"
        return f"needs {measure(data['asked'])} for each of {data['replicas_min']} replicas; {held}"

    return render


def _cordoned(data: _Data, names: Names) -> str:
    nodes = ", ".join(names.get(node["node_id"], node["node_name"]) for node in data["nodes"])
    reasons = sorted({node["reason"] for node in data["nodes"] if node["reason"]})
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"{_closed(data, names)} taken out of service: {nodes}{_and_more(data)}{why}"


def _pool_not_allowed(data: _Data, names: Names) -> str:
    return f"{_closed(data, names)} in pools that this team may not use"


def _closed(data: _Data, names: Names) -> str:
    are = "is" if data["node_count"] == 1 else "are"
    return f"{count(data['node_count'], 'node')} with {data['gpus']} {_tier(data, names)} {are}"


def _and_more(data: _Data) -> str:
    more = data["node_count"] - len(data["nodes"])
    return f" and {more} more" if more > 0 else ""


def _node_selection(data: _Data, names: Names) -> str:
    wanted = [f"with {label}" for label in data["node_labels"]]
    wanted += [f"without {label}" for label in data["not_labels"]]
    wanted += [f"other than the {count(data['not_node_count'], 'node')} it excludes"] * bool(
        data["not_node_count"]
    )
    asked = f"asks for nodes {' and '.join(wanted)}"
    if not data["left_count"]:
        return f"{asked}; no node with {_tier(data, names)} is such a node"
    left = f"{count(data['left_count'], 'node')} with {data['left_gpus']} {_tier(data, names)}"
    return f"{asked}; only {left} {'is' if data['left_count'] == 1 else 'are'} left"


def _topology(data: _Data, names: Names) -> str:
    each = (
        f"{count(data['replicas_min'], 'replica')} with {data['gpus_per_replica']} {_tier(data, names)} each"
    )
    asked = f"needs {each} {_nearness(data['level']).lower()}"
    if not data["is_level"]:
        return f"{asked}; there is no such level, so it can never start as it is"
    domain = f", {data['largest_domain']}," if data["largest_domain"] else ""
    fit = data["replicas_fit"]
    if not data.get("ever", True):
        return f"{asked}; the largest{domain} holds {fit} when empty, so it can never start as it is"
    room = f"the one with most room{domain} has room for {fit}, all together for {data['replicas_in_all']}"
    until = f"; from {moment(data['relaxes_us'])} on it takes less" if "relaxes_us" in data else ""
    return f"{asked}; {room}{until}"


def _nearness(level: str | None) -> str:
    return f"In one {level}" if level else "Wherever there is room"


def _share(data: _Data, names: Names) -> str:
    tier = _tier(data, names)
    asked = f"needs {_part(data['share'] or data['slots'], data['gpu_memory_mib'])} of one {tier}"
    if data["replicas_min"] > 1:
        asked = f"{data['replicas_min']} replicas each {asked.replace('needs', 'need')}"
        room = f"there is room for {data['replicas_fit']}"
    else:
        room = f"the largest part that is free to it is {_percent(data['largest_free'])}"
    others = data["shared_by_others"]
    theirs = f"; {count(others, 'card')} with room {'is' if others == 1 else 'are'} shared by other teams"
    return f"{asked}; {room}{theirs if others else ''}" + _held_by(data, names)


def _part(share: int, gpu_memory_mib: int | None) -> str:
    memory = f" ({number(gpu_memory_mib / 1024)} GiB)" if gpu_memory_mib else ""
    return f"{_percent(share)}{memory}"


def _percent(slots: int) -> str:
    return f"{number(slots / 10)} %"


def _leaving(data: _Data, names: Names) -> str:
    theirs = f"{number(data['leaving'])} of its {data['gpus']} {_tier(data, names)}"
    return f"its GPUs are chosen; it starts when {count(data['workloads'], 'workload')} on {theirs} have left"


def _budget(data: _Data, names: Names) -> str:
    return str(data["reason"])


def _raise(item: _Data, names: Names) -> str:
    team = names.get(item["team_id"], item["team_id"])
    what = names.get(item["tier_id"], item["tier_id"]) if item["tier_id"] else "GPUs over all tiers"
    if item.get("what") == "guarantee":
        return f"a guarantee higher by {gpus(item['units'])} {what} for team {team}"
    return f"a limit higher by {gpus(item['units'])} {what} for team {team}"


def _tier(data: _Data, names: Names) -> str:
    return names.get(data["tier_id"], data["tier_id"])


_SENTENCES: dict[str, Callable[[_Data, Names], str]] = {
    codes.BUDGET: _budget,
    codes.TIER_UNKNOWN: _tier_unknown,
    codes.QUOTA_LIMIT: _quota,
    codes.QUOTA_LIMIT_TOTAL: _quota,
    codes.NEVER_FITS_NODE: _never_fits,
    codes.POOL_NOT_ALLOWED: _pool_not_allowed,
    codes.NODES_CORDONED: _cordoned,
    codes.NO_READY_GPU: _no_ready_gpu,
    codes.NOT_ENOUGH_FREE_GPUS: _not_enough_free,
    codes.GANG_SPLIT: _gang_split,
    codes.CPU: _short_of(cores, "CPU"),
    codes.MEMORY: _short_of(gib, "memory"),
    codes.NOT_PREEMPTIBLE: _not_preemptible,
    codes.LEND_LIMIT: _lend_limit,
    codes.HEADROOM: _headroom,
    codes.RESERVATION: _reservation,
    codes.NODE_SELECTION: _node_selection,
    codes.TOPOLOGY: _topology,
    codes.SHARE: _share,
    codes.LEAVING: _leaving,
    codes.NOT_BEFORE: _not_before,
    codes.DEPENDENCY: _dependency,
    codes.ARRAY_CAP: _array_cap,
    codes.SESSIONS: _sessions,
}
