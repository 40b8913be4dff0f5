"""Workloads, their attempts and replicas, and the allocation ledger."""

from __future__ import annotations

from uuid import UUID

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, IntegerRangeField, RangeOperators
from django.db import models
from django.db.models import Case, Func, Q, When
from django.db.models.expressions import Combinable
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from gpuyard.core.fields import DateTimeMultiRangeField, Int4MultiRangeField
from scheduling.policy_models import BandGrant, SchedulingPolicyVersion, TeamUsage, UsagePending
from scheduling.states import AllocationState, AttemptState, ReplicaState, WorkloadState

__all__ = ["BandGrant", "SchedulingPolicyVersion", "TeamUsage", "UsagePending"]  # models of their own file


class Kind(models.TextChoices):
    TRAINING = "training", _("Training")
    INFERENCE = "inference", _("Inference")
    DEVELOPMENT = "development", _("Development")


class Workload(models.Model):
    """What was asked for. Its current spec is a revision that never changes."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.workload_public_id, editable=False)
    # A start writes into each index again: those that nothing reads, or that begin like another one, are left out.
    company = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="+", db_index=False)
    team = models.ForeignKey(
        "tenants.Team", on_delete=models.PROTECT, related_name="workloads", db_index=False
    )
    owner = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="workloads")
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    priority = models.SmallIntegerField(default=0)
    # above 0: critical, where a `BandGrant` covers it
    band = models.PositiveSmallIntegerField(default=0, db_default=0)
    preemptible = models.BooleanField(default=False)
    state = models.CharField(max_length=20, choices=WorkloadState.choices)
    spec = models.ForeignKey(
        "WorkloadSpec", on_delete=models.PROTECT, null=True, related_name="+", db_index=False
    )  # NULL only inside the transaction that creates both
    # What the form or client called this submission; the same one again is the same workload.
    submission_key = models.CharField(max_length=200, blank=True, default="")
    # The first member of its array (of itself too); what they share is its spec and its case.
    array = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="members", db_index=False
    )
    array_index = models.PositiveIntegerField(null=True, blank=True)
    justification = models.CharField(max_length=2000, blank=True, default="")
    approved_by_rule = models.CharField(max_length=80, blank=True, default="")
    stop_requested_by = models.ForeignKey(
        "core.User", on_delete=models.PROTECT, null=True, blank=True, related_name="+", db_index=False
    )
    state_reason = models.CharField(max_length=400, blank=True, default="")
    exit_code = models.IntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    queued_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["team", "-created_at"], name="scheduling_workload_team"),
            models.Index(fields=["state", "queued_at"], name="scheduling_workload_queue"),
            models.Index(fields=["-created_at"], name="scheduling_workload_newest"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "submission_key"],
                condition=~Q(submission_key=""),
                name="scheduling_workload_submitted_once",
            ),
            models.UniqueConstraint(fields=["array", "array_index"], name="scheduling_workload_array_member"),
            # For the ledger to refer to.
            models.UniqueConstraint(fields=["id", "team", "company"], name="scheduling_workload_owned"),
            models.CheckConstraint(
                condition=Q(array__isnull=True, array_index__isnull=True)
                | Q(array__isnull=False, array_index__isnull=False),
                name="scheduling_workload_array",
            ),
            models.CheckConstraint(condition=Q(kind__in=Kind.values), name="scheduling_workload_kind"),
            models.CheckConstraint(
                condition=Q(state__in=WorkloadState.values), name="scheduling_workload_state"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.public_id}"

    @property
    def case_subject_id(self) -> UUID:
        """Whose case decides on it: an array has one, that of its first member."""
        return self.array_id or self.pk


class WorkloadDependency(models.Model):
    """`workload` starts only once `on` has succeeded."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    workload = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="dependencies")
    on = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="dependents")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workload", "on"], name="scheduling_workloaddependency_once"),
            models.CheckConstraint(
                condition=~Q(workload=models.F("on")), name="scheduling_workloaddependency_other"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} after {self.on_id}"


class WorkloadSpec(models.Model):
    """A revision of a workload's spec: an immutable document (`scheduling.specs.Spec`)."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="specs")
    revision = models.PositiveIntegerField()
    document = models.JSONField()
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workload", "revision"], name="scheduling_workloadspec_revision")
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} r{self.revision}"


class Attempt(models.Model):
    """One placing of a workload; at most one is live.

    While one stops, its successor may already claim the GPUs where it goes on: work that is moved.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    workload = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="attempts", db_index=False)
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=AttemptState.choices)
    pass_number = models.BigIntegerField()
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="+", db_index=False)
    borrowed = models.BooleanField(default=False)
    band = models.PositiveSmallIntegerField(default=0, db_default=0)  # the priority band it was started at
    why_now = models.JSONField(default=dict)
    why_here = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    end_reason = models.CharField(max_length=400, blank=True, default="")

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["workload", "number"], name="scheduling_attempt_number"),
            models.UniqueConstraint(fields=["id", "workload"], name="scheduling_attempt_owned"),
            models.UniqueConstraint(
                fields=["workload"],
                condition=Q(state__in=["claiming", "starting", "running"]),
                name="scheduling_attempt_one_live",
            ),
            models.UniqueConstraint(
                fields=["workload"], condition=Q(state="stopping"), name="scheduling_attempt_one_stopping"
            ),
            models.CheckConstraint(
                condition=Q(state="ended", ended_at__isnull=False)
                | ~Q(state="ended") & Q(ended_at__isnull=True),
                name="scheduling_attempt_ended",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.workload_id}"


class Replica(models.Model):
    """One rank or copy of an attempt on one node. Agents know replicas, never attempts."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="replicas")
    index = models.PositiveIntegerField()
    spec = models.ForeignKey(WorkloadSpec, on_delete=models.PROTECT, related_name="+", db_index=False)
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="replicas")
    cpu_m = models.PositiveIntegerField()
    memory_mib = models.PositiveBigIntegerField()
    state = models.CharField(max_length=16, choices=ReplicaState.choices)
    # From the sequence scheduling_fencing_token: agent and server refuse whatever carries an older one.
    fencing_token = models.BigIntegerField(unique=True)
    restarts = models.PositiveIntegerField(default=0)
    healthy = models.BooleanField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=400, blank=True, default="")
    # Why it alone was told to leave while its attempt goes on: how it then ends says nothing about the work.
    released = models.CharField(max_length=16, blank=True, default="", db_default="")
    stdout_bytes = models.PositiveBigIntegerField(default=0)
    stderr_bytes = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    running_at = models.DateTimeField(null=True, blank=True)
    checkpoint_at = models.DateTimeField(null=True, blank=True)  # its newest checkpoint of this attempt
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["index"]
        indexes = [
            models.Index(fields=["node"], condition=~Q(state="exited"), name="scheduling_replica_live")
        ]
        constraints = [
            # An elastic attempt may grow again where it once shrank.
            models.UniqueConstraint(
                fields=["attempt", "index"], condition=~Q(state="exited"), name="scheduling_replica_index"
            ),
            models.UniqueConstraint(fields=["id", "attempt"], name="scheduling_replica_owned"),
            models.CheckConstraint(
                condition=Q(state="exited", ended_at__isnull=False)
                | ~Q(state="exited") & Q(ended_at__isnull=True),
                name="scheduling_replica_ended",
            ),
        ]

    def __str__(self) -> str:
        return f"replica {self.index} of {self.attempt_id}"


class PortLease(models.Model):
    """A port of a node's range, held by one replica from its assignment to its end."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    node = models.ForeignKey(
        "fleet.Node", on_delete=models.CASCADE, related_name="port_leases", db_index=False
    )
    port = models.PositiveIntegerField()
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="port_leases", db_index=False)
    name = models.CharField(max_length=40)
    health_path = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        ordering = ["port"]
        constraints = [
            models.UniqueConstraint(fields=["node", "port"], name="scheduling_portlease_port"),
            models.UniqueConstraint(fields=["replica", "name"], name="scheduling_portlease_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.port}"


_HOLDERS = Q(state__in=["held", "stopping", "unconfirmed", "ended"])


def _side(begin: int, end: int) -> Func:
    return Func(begin, end, function="int4range", output_field=IntegerRangeField())


# A row stands among the promises (1), among the holders (2), or among both; each set excludes on its own. As a range
# that must not overlap, one index answers for both sets.
_SIDES = Case(
    When(state="claimed", then=_side(1, 2)),
    When(state__in=["held", "unconfirmed"], then=_side(1, 3)),
    default=_side(2, 3),
    output_field=IntegerRangeField(),
)
_SLOTS: list[tuple[str | Combinable, str]] = [
    ("gpu", RangeOperators.EQUAL),
    ("slots", RangeOperators.OVERLAPS),
    ("span", RangeOperators.OVERLAPS),
    (_SIDES, RangeOperators.OVERLAPS),
]


_SCOPES = [
    ("card", RangeOperators.EQUAL),
    ("scope", RangeOperators.NOT_EQUAL),
    ("span", RangeOperators.OVERLAPS),
]


class Allocation(models.Model):
    """Slots of one GPU for one replica over a span of time: the only truth about who holds what.

    `slots` lies in [0, 1000) and only excludes; `units` (1/7000 GPU, frozen) counts for quota and money.
    `scope` is who may be on the card beside a share: the team, or the company where the policy says so; all shares
    of a card have the same. Its exclusions are below; its checks, its guard and what it refers to
    are in migrations 0002, 0004 and 0011.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    # No indexes of their own for company, team and tier: live rows are found by the one below, and every index
    # makes each start dearer.
    # One chain of foreign keys (migration 0011) says more than one for each: the attempt is the replica's, the
    # workload the attempt's, and team and company are the workload's.
    company = models.ForeignKey(
        "tenants.Team", on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    team = models.ForeignKey(
        "tenants.Team", on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    workload = models.ForeignKey(
        Workload, on_delete=models.PROTECT, related_name="allocations", db_constraint=False
    )
    attempt = models.ForeignKey(
        Attempt, on_delete=models.PROTECT, related_name="allocations", db_constraint=False
    )
    replica = models.ForeignKey(
        Replica, on_delete=models.PROTECT, related_name="allocations", db_constraint=False
    )
    gpu = models.ForeignKey("fleet.Gpu", on_delete=models.PROTECT, related_name="allocations")
    card = models.UUIDField()
    is_instance = models.SmallIntegerField()
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="+", db_index=False)
    slots = Int4MultiRangeField()
    scope = models.UUIDField(null=True, blank=True)  # NULL: all of the GPU
    units = models.PositiveIntegerField()
    span = DateTimeRangeField()
    state = models.CharField(max_length=16, choices=AllocationState.choices)
    claimed_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    stopping_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    uncharged = DateTimeMultiRangeField(db_default=models.Value("{}", output_field=DateTimeMultiRangeField()))

    class Meta:
        indexes = [
            models.Index(
                fields=["team", "tier"],
                condition=Q(state__in=["claimed", "held", "stopping", "unconfirmed"]),
                name="scheduling_allocation_live",
            )
        ]
        constraints = [
            # Two holders of one slot, and a promise that is stolen.
            ExclusionConstraint(
                name="scheduling_slots_once", expressions=_SLOTS, condition=~Q(state="dropped")
            ),
            ExclusionConstraint(
                name="scheduling_card_or_mig",
                expressions=[
                    ("card", RangeOperators.EQUAL),
                    ("is_instance", RangeOperators.NOT_EQUAL),
                    ("span", RangeOperators.OVERLAPS),
                ],
                condition=_HOLDERS,
            ),
            ExclusionConstraint(
                name="scheduling_share_holders",
                expressions=_SCOPES,
                condition=_HOLDERS & Q(scope__isnull=False),
            ),
            ExclusionConstraint(
                name="scheduling_share_promise",
                expressions=_SCOPES,
                condition=Q(state__in=["claimed", "held", "unconfirmed"], scope__isnull=False),
            ),
            models.CheckConstraint(
                condition=Q(units__gt=0, units__lte=7000), name="scheduling_allocation_units"
            ),
            models.CheckConstraint(
                condition=Q(is_instance__in=[0, 1]), name="scheduling_allocation_instance"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.state}"


class Eviction(models.Model):
    """Work that a pass took back, or made smaller: what was lost, and who gained by it. Only appended.

    `why` is the plan's (`engine.decisions.Stop.why`); `replicas` are the indexes that left, NULL for all of it.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="+")
    workload = models.ForeignKey(Workload, on_delete=models.PROTECT, related_name="evictions")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="evictions")
    pass_number = models.BigIntegerField()
    reason = models.CharField(max_length=16)  # engine.decisions.STOP_…
    gained_by = models.ForeignKey(Workload, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    replicas = ArrayField(models.PositiveIntegerField(), null=True, blank=True)
    units = models.PositiveBigIntegerField()
    lost_gpu_s = models.PositiveBigIntegerField(default=0)
    why = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        ordering = ["-at"]
        indexes = [
            models.Index(fields=["workload", "-at"], name="scheduling_eviction_workload"),
            models.Index(fields=["-at"], name="scheduling_eviction_newest"),
        ]

    def __str__(self) -> str:
        return f"eviction of {self.workload_id}"


class Verdict(models.Model):
    """Why a waiting workload waits: all blockers, the smallest change that frees it, and when it may start."""

    workload = models.OneToOneField(
        Workload, on_delete=models.CASCADE, primary_key=True, related_name="verdict"
    )
    pass_number = models.BigIntegerField()
    position = models.PositiveIntegerField(default=0)
    blockers = models.JSONField()
    smallest_change = models.JSONField(null=True)
    eta = models.DateTimeField(null=True)
    eta_basis = models.CharField(max_length=200, blank=True, default="")
    decided_at = models.DateTimeField(db_default=YardNow())
    # position, codes and eta of the verdict before this one; NULL for the first
    before = models.JSONField(null=True)
    # tier and [[node, replicas], …] of the start that is reserved at `eta`; NULL without one
    reserved = models.JSONField(null=True)

    def __str__(self) -> str:
        return f"verdict on {self.workload_id}"


class SchedulerState(models.Model):
    """One row: the number of the last committed pass. The fence of `scheduling.commit`."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    pass_number = models.BigIntegerField(default=0, db_column="pass")
    passed_at = models.DateTimeField(null=True)
    # tier → team → units: the fair shares by which the last recorded pass went
    shares = models.JSONField(default=dict)

    class Meta:
        db_table = "scheduler_state"
        constraints = [models.CheckConstraint(condition=Q(id=1), name="scheduler_state_one_row")]

    def __str__(self) -> str:
        return f"pass {self.pass_number}"


class PassRecord(models.Model):
    """What one pass did and how long it took. Kept for a while."""

    number = models.BigIntegerField(primary_key=True)
    started_at = models.DateTimeField()
    load_ms = models.FloatField()
    plan_ms = models.FloatField()
    commit_ms = models.FloatField()
    waiting = models.PositiveIntegerField()
    started = models.PositiveIntegerField()
    claimed = models.PositiveIntegerField(default=0)
    stopped = models.PositiveIntegerField(default=0)
    grown = models.PositiveIntegerField(default=0)
    # public ids of workloads whose start did not survive the commit's rechecks, with the reason
    refused = models.JSONField(default=list)
    # what the pass knew, so that it can be replayed (zlib over `engine.snapshot.to_json`); kept for a while
    snapshot = models.BinaryField(null=True)
    snapshot_bytes = models.PositiveIntegerField(default=0)
    now_us = models.BigIntegerField(null=True)
    policy = models.JSONField(null=True)
    engine_version = models.CharField(max_length=32, blank=True, default="")
    plan_digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"pass {self.number}"


class LogChunk(models.Model):
    """A piece of a replica's output. `offset` and `size` count the bytes the agent read."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="log_chunks")
    stream = models.CharField(max_length=8)
    offset = models.PositiveBigIntegerField()
    size = models.PositiveIntegerField()
    text = models.TextField()
    received_at = models.DateTimeField(db_default=YardNow())

    class Meta:
        ordering = ["offset"]
        constraints = [
            models.UniqueConstraint(fields=["replica", "stream", "offset"], name="scheduling_logchunk_once"),
            models.CheckConstraint(
                condition=Q(stream__in=["stdout", "stderr"]), name="scheduling_logchunk_stream"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.stream} at {self.offset}"
