"""What the ends of replicas mean for their attempt, and what an attempt's end means for its workload. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from scheduling.models import Kind
from scheduling.states import WorkloadState


class EndReason(models.TextChoices):
    """Why an attempt ends: decided once, when it begins to stop; kept in `Attempt.end_reason`."""

    SUCCEEDED = "succeeded", gettext_lazy("All replicas ended with exit code 0")
    REPLICA_FAILED = "replica_failed", gettext_lazy("A replica failed")
    STOP_REQUESTED = "stop_requested", gettext_lazy("It was stopped")
    TIME_LIMIT = "time_limit", gettext_lazy("It reached its time limit")
    LEASE = "lease", gettext_lazy("Its node was cut off and ended it, as asked for")
    NODE_LOST = "node_lost", gettext_lazy("Its node was lost or restarted")
    EVICTED = "evicted", gettext_lazy("Its GPUs were taken back")
    # Of an attempt that only ever claimed.
    CLAIM_EXPIRED = "claim_expired", gettext_lazy("The GPUs it was promised were not left in time")
    NODE_CHANGED = "node_changed", gettext_lazy("A node that it was promised was taken out of service")


class ExitReason(models.TextChoices):
    """How a replica ended: what agents report, and one that only the server gives (`node_lost`)."""

    EXITED = "exited"
    SIGNAL = "signal"
    TIME_LIMIT = "time_limit"
    LEASE = "lease"
    START_FAILED = "start_failed"
    STOPPED = "stopped"
    SHIM_LOST = "shim_lost"
    LOST_ON_REBOOT = "lost_on_reboot"
    NODE_LOST = "node_lost"


_SESSIONS = frozenset({Kind.INFERENCE, Kind.DEVELOPMENT})


@dataclass(frozen=True)
class Exit:
    """One replica's end. `reason` "": it has not ended."""

    index: int
    reason: str
    exit_code: int | None
    message: str = ""

    @property
    def is_success(self) -> bool:
        return self.reason == ExitReason.EXITED and self.exit_code == 0


def exit_code_of(exit_code: int | None, signal: int | None) -> int | None:
    """A signal as shells write it, where the program had no code of its own."""
    return 128 + signal if exit_code is None and signal else exit_code


def cause_of(exits: list[Exit]) -> tuple[EndReason, Exit] | None:
    """Why an attempt that nobody stopped must end now; None: no exit demands it.

    A failure outweighs the rest, because it explains them: of several, the lowest rank's.
    """
    ended = [(_cause(one), one) for one in exits if one.reason and not one.is_success]
    return min(ended, key=lambda pair: _WEIGHT.index(pair[0]), default=None)


def _cause(one: Exit) -> EndReason:
    """What is not listed is a failure: the program's own, or one that a newer agent has a word for.

    So is a killed shim: programs can kill theirs, or exhaust the memory, and would be requeued for ever.
    """
    return _CAUSES.get(one.reason, EndReason.REPLICA_FAILED)


_CAUSES: dict[str, EndReason] = {
    ExitReason.TIME_LIMIT: EndReason.TIME_LIMIT,
    ExitReason.LEASE: EndReason.LEASE,
    ExitReason.NODE_LOST: EndReason.NODE_LOST,
    ExitReason.LOST_ON_REBOOT: EndReason.NODE_LOST,
    # Its node ended it without being asked: nothing of the program's own.
    ExitReason.STOPPED: EndReason.NODE_LOST,
}
_WEIGHT = (EndReason.REPLICA_FAILED, EndReason.TIME_LIMIT, EndReason.LEASE, EndReason.NODE_LOST)


def cause_text(reason: EndReason, one: Exit, replica_count: int) -> str:
    """What people read beside the state."""
    if reason != EndReason.REPLICA_FAILED:
        return str(reason.label)
    who = _("Replica %(index)s") % {"index": one.index} if replica_count > 1 else _("The program")
    if one.reason == ExitReason.START_FAILED:
        text = _("%(who)s could not start") % {"who": who}
    elif one.reason == ExitReason.SIGNAL and one.exit_code is not None:
        text = _("%(who)s was ended by signal %(signal)s") % {"who": who, "signal": one.exit_code - 128}
    elif one.exit_code is None:
        text = _("%(who)s ended, nobody knows how") % {"who": who}
    else:
        text = _("%(who)s ended with exit code %(code)s") % {"who": who, "code": one.exit_code}
    return f"{text}: {one.message}" if one.message else text


@dataclass(frozen=True)
class Ended:
    """How an attempt leaves its workload."""

    state: WorkloadState
    exit_code: int | None
    reason: str


def workload_outcome(
    *,
    kind: str,
    end_reason: str,
    was_running: bool,
    stopped_by_owner: bool,
    stop_requested: bool,
    exits: list[Exit],
    told: str,
    failed_code: int | None,
) -> Ended:
    """The workload's next state once nothing of the attempt is left. `told`: the reason given when it stopped.

    What ended by itself before the stop reached it has succeeded. What ended well because it was told to stop (it has
    written its checkpoint) has not: such an exit is `stopped`. What ran out of time while it left, ran out of time.
    """
    if exits and all(one.is_success for one in exits):
        return Ended(WorkloadState.SUCCEEDED, 0, "")
    if end_reason == EndReason.REPLICA_FAILED:
        return Ended(WorkloadState.FAILED, failed_code, told)
    is_evicted = end_reason == EndReason.EVICTED and not stop_requested
    if is_evicted and any(one.reason == ExitReason.TIME_LIMIT for one in exits):
        end_reason, told = EndReason.TIME_LIMIT, str(EndReason.TIME_LIMIT.label)
    if end_reason == EndReason.TIME_LIMIT:
        is_session = kind in _SESSIONS
        return Ended(WorkloadState.SUCCEEDED if is_session else WorkloadState.FAILED, None, told)
    if stop_requested or end_reason == EndReason.STOP_REQUESTED:
        # A service or session has no end of its own: its owner's stop is how it succeeds.
        is_done = kind in _SESSIONS and was_running and stopped_by_owner
        return Ended(WorkloadState.SUCCEEDED if is_done else WorkloadState.CANCELLED, None, told)
    return Ended(WorkloadState.WAITING, None, told)
