"""The scheduling policy's versions, rights to bands, and past use that is folded as allocations end."""

import django.db.models.deletion
import gpuyard.core.clock
import gpuyard.core.ids
from django.conf import settings
from django.db import migrations, models


FORWARD = """
CREATE FUNCTION scheduling_policy_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a version of the scheduling policy does not change' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER scheduling_policy_frozen BEFORE UPDATE OR DELETE ON scheduling_schedulingpolicyversion
  FOR EACH ROW EXECUTE FUNCTION scheduling_policy_frozen();

-- The seconds of [began, ended) as they count at `seen`, where what lies one half-life back counts half:
-- the integral of 2^-((seen - t) / half_life), with k = half_life / ln 2
--   k (e^-((seen - ended) / k) - e^-((seen - began) / k))
-- A short span is written with sinh: the difference of two exponentials close to one another has no digits left.
-- e^-600 is nothing, and a smaller power would be an error.
CREATE FUNCTION scheduling_decayed_s(
  began timestamptz, ended timestamptz, seen timestamptz, half_life_s double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
      WHEN width <= 0 THEN 0
      WHEN width < 1 THEN k * exp(-least(past + width / 2, 600)) * 2 * sinh(width / 2)
      ELSE k * (exp(-least(past, 600)) - exp(-least(past + width, 600)))
    END
  FROM (SELECT half_life_s / ln(2::double precision) AS k) scale,
    LATERAL (SELECT extract(epoch FROM seen - ended)::double precision / k AS past,
      extract(epoch FROM ended - began)::double precision / k AS width) spans
$$;

CREATE FUNCTION scheduling_usage_pending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO scheduling_usagepending (allocation_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER scheduling_usage_pending AFTER UPDATE OF state ON scheduling_allocation
  FOR EACH ROW WHEN (NEW.state = 'ended') EXECUTE FUNCTION scheduling_usage_pending();
INSERT INTO scheduling_usagepending (allocation_id) SELECT id FROM scheduling_allocation WHERE state = 'ended';
"""

REVERSE = """
DROP TRIGGER scheduling_usage_pending ON scheduling_allocation;
DROP FUNCTION scheduling_usage_pending();
DROP FUNCTION scheduling_decayed_s(timestamptz, timestamptz, timestamptz, double precision);
DROP FUNCTION scheduling_policy_frozen() CASCADE;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0002_rules"),
        ("scheduling", "0004_evictions"),
        ("tenants", "0002_rules"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="UsagePending",
            fields=[
                ("allocation_id", models.UUIDField(primary_key=True, serialize=False)),
            ],
        ),
        migrations.AddField(
            model_name="workload",
            name="band",
            field=models.PositiveSmallIntegerField(default=0, db_default=0),
        ),
        migrations.CreateModel(
            name="SchedulingPolicyVersion",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("number", models.PositiveIntegerField(unique=True)),
                ("document", models.JSONField()),
                ("note", models.CharField(max_length=400)),
                ("created_at", models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
                (
                    "author",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
            },
        ),
        migrations.CreateModel(
            name="BandGrant",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("band", models.PositiveSmallIntegerField()),
                ("cap", models.PositiveBigIntegerField()),
                ("reason", models.CharField(max_length=400)),
                ("created_at", models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "granted_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="band_grants",
                        to="tenants.team",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("revoked_at__isnull", True)),
                        fields=("team", "band"),
                        name="scheduling_bandgrant_one",
                        violation_error_message="The team has this right already. Take the old one back first.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("band__gte", 1), ("band__lte", 9)),
                        name="scheduling_bandgrant_band",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("cap__gte", 1)), name="scheduling_bandgrant_cap"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("expires_at__isnull", True),
                            ("expires_at__gt", models.F("created_at")),
                            _connector="OR",
                        ),
                        name="scheduling_bandgrant_expiry",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TeamUsage",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("unit_s", models.FloatField()),
                ("as_of", models.DateTimeField()),
                ("half_life_s", models.PositiveIntegerField()),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.team"
                    ),
                ),
                (
                    "tier",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="fleet.tier"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("team", "tier"), name="scheduling_teamusage_once")
                ],
            },
        ),
        migrations.RunSQL(FORWARD, REVERSE),
    ]
