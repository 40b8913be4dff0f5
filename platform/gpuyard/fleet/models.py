"""Tiers, pools, nodes, GPUs, their topology and their condition over time."""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


class Tier(models.Model):
    """A class of GPU that a request can name, such as `h100-80g`."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    name = models.CharField(max_length=64, unique=True)
    model = models.CharField(max_length=120)
    memory_mib = models.PositiveIntegerField()
    architecture = models.CharField(max_length=40)
    capabilities = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    # kind → speed relative to the slowest tier; acts on tier choice from the next issue on
    relative_speed = models.JSONField(default=dict, blank=True)
    cost_rank = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        ordering = ["-cost_rank", "name"]
        constraints = [models.CheckConstraint(condition=Q(memory_mib__gt=0), name="fleet_tier_memory")]

    def __str__(self) -> str:
        return self.name


class TierRule(models.Model):
    """From `span` on, a detected GPU of this model and memory has this tier."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    tier = models.ForeignKey(Tier, on_delete=models.PROTECT, related_name="rules")
    model = models.CharField(max_length=120)
    memory_mib_min = models.PositiveIntegerField(default=0)
    memory_mib_max = models.PositiveIntegerField(default=2**31 - 1)
    span = DateTimeRangeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(memory_mib_min__lte=F("memory_mib_max")), name="fleet_tierrule_memory"
            ),
        ]  # overlap of (model, memory, span) is an exclusion in migration 0002: it needs an expression over two columns

    def __str__(self) -> str:
        return f"{self.model} → {self.tier}"


class Pool(models.Model):
    """A set of nodes; may be dedicated to a subtree of teams (`tenants.PoolDedication`)."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.pool_public_id, editable=False)
    name = models.CharField(max_length=64, unique=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class FabricDomain(models.Model):
    """A zone, block, leaf or rack. The levels are data: `level` is a word the admin chose."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="children"
    )
    level = models.CharField(max_length=32)
    name = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["level", "name"], name="fleet_fabricdomain_name"),
            models.CheckConstraint(
                condition=Q(parent__isnull=True) | ~Q(parent=F("id")),
                name="fleet_fabricdomain_not_own_parent",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.level} {self.name}"


class NodeState(models.TextChoices):
    """joined → ready (first sync) ⇄ lost (silent beyond its lease) → retired."""

    JOINED = "joined", _("Joined")
    READY = "ready", _("Ready")
    LOST = "lost", _("Lost")
    RETIRED = "retired", _("Retired")


NODE_EDGES: dict[str, frozenset[str]] = {
    NodeState.JOINED: frozenset({NodeState.READY, NodeState.RETIRED}),
    NodeState.READY: frozenset({NodeState.LOST, NodeState.RETIRED}),
    NodeState.LOST: frozenset({NodeState.READY, NodeState.RETIRED}),
    NodeState.RETIRED: frozenset(),
}


class Node(models.Model):
    """A server with GPUs and its agent. CPU and memory in use are counters moved with the allocations."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.node_public_id, editable=False)
    name = models.CharField(max_length=64, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    domain = models.ForeignKey(
        FabricDomain, on_delete=models.PROTECT, null=True, blank=True, related_name="nodes"
    )
    # "key=value", sorted: what requests may ask for or exclude
    labels = ArrayField(models.CharField(max_length=127), default=list, blank=True)
    state = models.CharField(max_length=16, choices=NodeState.choices, default=NodeState.JOINED)
    cordoned = models.BooleanField(default=False)
    draining = models.BooleanField(default=False)
    cordon_reason = models.CharField(max_length=200, blank=True, default="")
    # Grows whenever what may be placed here changed (cordon, drain, lost, inventory): the pass rechecks it at commit.
    epoch = models.BigIntegerField(default=1)

    advertise_address = models.CharField(max_length=255, blank=True, default="")
    port_low = models.PositiveIntegerField(default=0)
    port_high = models.PositiveIntegerField(default=0)
    simulated = models.BooleanField(default=False)
    cpu_total_m = models.PositiveIntegerField(default=0)
    cpu_used_m = models.PositiveIntegerField(default=0)
    memory_total_mib = models.PositiveBigIntegerField(default=0)
    memory_used_mib = models.PositiveBigIntegerField(default=0)

    # The agent: its secret (SHA-256 of 256 random bits), and the newest sync the server has seen.
    secret_digest = models.CharField(max_length=64, blank=True, default="")
    agent_version = models.CharField(max_length=40, blank=True, default="")
    boot = models.BigIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    seq = models.BigIntegerField(default=0)
    generation = models.BigIntegerField(default=0)
    desired_digest = models.CharField(max_length=64, blank=True, default="")
    lease_s = models.PositiveIntegerField(default=90)
    last_sync_at = models.DateTimeField(null=True, blank=True)
    joined_at = models.DateTimeField(db_default=YardNow(), editable=False)
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(cpu_used_m__lte=F("cpu_total_m")),
                name="fleet_node_cpu",
                violation_error_message=_("The node has not enough CPU left."),
            ),
            models.CheckConstraint(
                condition=Q(memory_used_mib__lte=F("memory_total_mib")),
                name="fleet_node_memory",
                violation_error_message=_("The node has not enough memory left."),
            ),
            models.CheckConstraint(condition=Q(port_low__lte=F("port_high")), name="fleet_node_ports"),
            models.CheckConstraint(
                condition=Q(state="retired", retired_at__isnull=False)
                | (~Q(state="retired") & Q(retired_at__isnull=True)),
                name="fleet_node_retired",
            ),
            models.UniqueConstraint(
                fields=["secret_digest"], condition=~Q(secret_digest=""), name="fleet_node_secret"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one agent join one pool, until it expires or is used up."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="join_tokens")
    digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey("core.User", on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    expires_at = models.DateTimeField()
    uses_left = models.PositiveIntegerField(default=1)

    def __str__(self) -> str:
        return f"join token for {self.pool}"


class Island(models.Model):
    """GPUs of one node joined by NVLink or NVSwitch."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="islands")
    index = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["index"]
        constraints = [models.UniqueConstraint(fields=["node", "index"], name="fleet_island_index")]

    def __str__(self) -> str:
        return f"{self.node} island {self.index}"


class Gpu(models.Model):
    """A GPU or a MIG instance. `card` is the physical GPU; for a whole GPU it is the GPU itself."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.gpu_public_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    island = models.ForeignKey(Island, on_delete=models.PROTECT, null=True, blank=True, related_name="gpus")
    tier = models.ForeignKey(Tier, on_delete=models.PROTECT, related_name="gpus")
    device_uuid = models.CharField(max_length=80)
    card = models.UUIDField()
    is_instance = models.PositiveSmallIntegerField(default=0)
    index = models.PositiveSmallIntegerField()
    compute_slices = models.PositiveSmallIntegerField(default=7)
    card_slices = models.PositiveSmallIntegerField(default=7)
    memory_mib = models.PositiveIntegerField()
    joined_at = models.DateTimeField(db_default=YardNow(), editable=False)
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["node__name", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["device_uuid"], condition=Q(retired_at__isnull=True), name="fleet_gpu_device_once"
            ),
            models.CheckConstraint(condition=Q(is_instance__in=[0, 1]), name="fleet_gpu_is_instance"),
            models.CheckConstraint(
                condition=Q(compute_slices__gte=1, compute_slices__lte=F("card_slices")),
                name="fleet_gpu_slices",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node} gpu {self.index}"


class Condition(models.TextChoices):
    READY = "ready", _("Ready")
    MAINTENANCE = "maintenance", _("Maintenance")
    CORDONED = "cordoned", _("Cordoned")
    DOWN = "down", _("Down")


class GpuCondition(models.Model):
    """A GPU's tier and condition over time: gapless from join to retirement, so that capacity has a ledger too."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="conditions")
    tier = models.ForeignKey(Tier, on_delete=models.PROTECT, related_name="+")
    condition = models.CharField(max_length=16, choices=Condition.choices)
    reason = models.CharField(max_length=200, blank=True, default="")
    span = DateTimeRangeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="fleet_gpucondition_once",
                expressions=[("gpu", RangeOperators.EQUAL), ("span", RangeOperators.OVERLAPS)],
            ),
            models.CheckConstraint(condition=Q(span__isempty=False), name="fleet_gpucondition_span"),
        ]  # gaplessness is a deferred trigger in migration 0002

    def __str__(self) -> str:
        return f"{self.gpu} {self.condition}"


class GpuTelemetry(models.Model):
    """One GPU's telemetry of one UTC hour: arrays of 60, one place for each minute.

    `seconds[m]` is how much of the minute was observed (0 = unknown), `busy[m]` the sum of utilisation (%) × seconds:
    their quotient is the minute's mean, and late or repeated buckets only add what is missing.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="telemetry")
    hour = models.DateTimeField()
    seconds = ArrayField(models.FloatField(), size=60)
    busy = ArrayField(models.FloatField(), size=60)
    memory_used_mib = ArrayField(models.PositiveIntegerField(null=True), size=60)
    power_w = ArrayField(models.FloatField(null=True), size=60)
    temperature_c = ArrayField(models.FloatField(null=True), size=60)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "hour"], name="fleet_gputelemetry_hour")]

    def __str__(self) -> str:
        return f"{self.gpu} {self.hour:%Y-%m-%d %H}h"
