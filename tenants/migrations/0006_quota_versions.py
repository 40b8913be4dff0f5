"""Quotas have versions with a beginning; grants add to them for a time; both can be asked for."""

import django.db.models.deletion
import functools
import gpuyard.core.clock
import gpuyard.core.ids
from django.conf import settings
from django.db import migrations, models

FORWARD = """
DROP FUNCTION tenants_quota_delete() CASCADE;
DROP FUNCTION tenants_quota_fits() CASCADE;

-- What a team is guaranteed of a tier at a moment: the version of its quota in force, and its grants.
CREATE FUNCTION tenants_guarantee_at(p_team uuid, p_tier uuid, p_moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT guaranteed FROM tenants_quota WHERE team_id = p_team AND tier_id = p_tier
                   AND starts_at <= p_moment ORDER BY starts_at DESC LIMIT 1), 0)
       + coalesce((SELECT sum(units) FROM tenants_grant WHERE team_id = p_team AND tier_id = p_tier
                   AND state = 'approved' AND starts_at <= p_moment AND ends_at > p_moment), 0)::bigint
$$;

-- Whether the guarantees of the teams below p_up fit into its own, from p_since until p_until. Sums change only
-- where a version or a grant begins or ends, so these moments are all that need a look.
CREATE FUNCTION tenants_guarantees_fit(p_up uuid, p_tier uuid, p_since timestamptz, p_until timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE moment timestamptz; shared_out bigint; whole bigint;
BEGIN
  FOR moment IN
    SELECT p_since
    UNION SELECT edge FROM (
      SELECT q.starts_at FROM tenants_quota q JOIN tenants_team t ON t.id = q.team_id
        WHERE p_up IN (t.id, t.parent_id) AND q.tier_id = p_tier
      UNION ALL SELECT unnest(ARRAY[g.starts_at, g.ends_at]) FROM tenants_grant g JOIN tenants_team t
        ON t.id = g.team_id WHERE p_up IN (t.id, t.parent_id) AND g.tier_id = p_tier AND g.state = 'approved'
    ) AS edges (edge) WHERE edge > p_since AND edge < p_until
    ORDER BY 1
  LOOP
    SELECT coalesce(sum(tenants_guarantee_at(id, p_tier, moment)), 0) INTO shared_out
      FROM tenants_team WHERE parent_id = p_up;
    whole := tenants_guarantee_at(p_up, p_tier, moment);
    IF shared_out > whole THEN
      RAISE EXCEPTION 'guarantees of % below % exceed its own of % at %', shared_out, p_up, whole, moment
        USING ERRCODE = 'check_violation', CONSTRAINT = 'tenants_quota_fits';
    END IF;
  END LOOP;
END $$;

-- Whoever changes a guarantee locks the team's and its parent's row first, so that two children cannot share out the
-- same units. Each statement of the look that follows sees what was committed before the locks were had.
CREATE FUNCTION tenants_guarantee_check(p_team uuid, p_tier uuid, p_since timestamptz, p_until timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE up uuid; since timestamptz;
BEGIN
  SELECT parent_id INTO up FROM tenants_team WHERE id = p_team;
  PERFORM 1 FROM tenants_team WHERE id IN (up, p_team) ORDER BY id FOR NO KEY UPDATE;
  since := greatest(p_since, yard_now());
  IF since >= p_until THEN RETURN; END IF;
  IF up IS NOT NULL THEN PERFORM tenants_guarantees_fit(up, p_tier, since, p_until); END IF;
  PERFORM tenants_guarantees_fit(p_team, p_tier, since, p_until);
END $$;

CREATE FUNCTION tenants_quota_fits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' AND OLD.tier_id IS NOT NULL THEN
    PERFORM tenants_guarantee_check(OLD.team_id, OLD.tier_id, OLD.starts_at, 'infinity');
  END IF;
  IF TG_OP <> 'DELETE' AND NEW.tier_id IS NOT NULL THEN
    PERFORM tenants_guarantee_check(NEW.team_id, NEW.tier_id, NEW.starts_at, 'infinity');
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER tenants_quota_fits AFTER INSERT OR UPDATE OR DELETE ON tenants_quota
  FOR EACH ROW EXECUTE FUNCTION tenants_quota_fits();

CREATE FUNCTION tenants_grant_fits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.state = 'approved' THEN
    PERFORM tenants_guarantee_check(OLD.team_id, OLD.tier_id, OLD.starts_at, OLD.ends_at);
  END IF;
  IF NEW.state = 'approved' THEN
    PERFORM tenants_guarantee_check(NEW.team_id, NEW.tier_id, NEW.starts_at, NEW.ends_at);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER tenants_grant_fits AFTER INSERT OR UPDATE ON tenants_grant
  FOR EACH ROW EXECUTE FUNCTION tenants_grant_fits();

-- A team that moves takes its guarantees along: they must fit into the new parent's.
CREATE FUNCTION tenants_team_fits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE tier uuid;
BEGIN
  FOR tier IN SELECT tier_id FROM tenants_quota WHERE team_id = NEW.id AND tier_id IS NOT NULL
    UNION SELECT tier_id FROM tenants_grant WHERE team_id = NEW.id ORDER BY 1
  LOOP
    PERFORM tenants_guarantee_check(NEW.id, tier, yard_now(), 'infinity');
  END LOOP;
  RETURN NULL;
END $$;
CREATE TRIGGER tenants_team_fits AFTER UPDATE OF parent_id ON tenants_team
  FOR EACH ROW WHEN (OLD.parent_id IS DISTINCT FROM NEW.parent_id) EXECUTE FUNCTION tenants_team_fits();
"""

REVERSE = """
DROP FUNCTION tenants_team_fits() CASCADE;
DROP FUNCTION tenants_grant_fits() CASCADE;
DROP FUNCTION tenants_quota_fits() CASCADE;
DROP FUNCTION tenants_guarantee_check(uuid, uuid, timestamptz, timestamptz);
DROP FUNCTION tenants_guarantees_fit(uuid, uuid, timestamptz, timestamptz);
DROP FUNCTION tenants_guarantee_at(uuid, uuid, timestamptz);
CREATE FUNCTION tenants_quota_fits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE FUNCTION tenants_quota_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0003_node_labels'),
        ('tenants', '0005_sign_ins'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Grant',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('public_id', models.CharField(default=functools.partial(gpuyard.core.ids.new_public_id, *('q',), **{}), editable=False, max_length=16, unique=True)),
                ('reason', models.CharField(max_length=2000)),
                ('state', models.CharField(choices=[('asked', 'Asked'), ('approved', 'Approved'), ('rejected', 'Rejected'), ('withdrawn', 'Withdrawn'), ('expired', 'Expired'), ('revoked', 'Revoked')], default='asked', max_length=16)),
                ('created_at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('units', models.PositiveBigIntegerField()),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='QuotaChange',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('public_id', models.CharField(default=functools.partial(gpuyard.core.ids.new_public_id, *('q',), **{}), editable=False, max_length=16, unique=True)),
                ('reason', models.CharField(max_length=2000)),
                ('state', models.CharField(choices=[('asked', 'Asked'), ('approved', 'Approved'), ('rejected', 'Rejected'), ('withdrawn', 'Withdrawn'), ('expired', 'Expired'), ('revoked', 'Revoked')], default='asked', max_length=16)),
                ('created_at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('guaranteed', models.PositiveBigIntegerField(default=0)),
                ('limit', models.PositiveBigIntegerField(blank=True, null=True)),
                ('lend_limit', models.PositiveBigIntegerField(blank=True, null=True)),
                ('weight', models.PositiveIntegerField(default=1)),
                ('starts_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='quota',
            name='tenants_quota_once',
        ),
        migrations.RenameField(
            model_name='quota',
            old_name='updated_at',
            new_name='starts_at',
        ),
        migrations.AddField(
            model_name='quota',
            name='created_at',
            field=models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False),
        ),
        migrations.AddField(
            model_name='quota',
            name='reason',
            field=models.CharField(blank=True, db_default='', default='', max_length=2000),
        ),
        migrations.AddField(
            model_name='quota',
            name='set_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.UniqueConstraint(fields=('team', 'tier', 'starts_at'), name='tenants_quota_version', nulls_distinct=False),
        ),
        migrations.AddField(
            model_name='grant',
            name='company',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='grant',
            name='renews',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='renewals', to='tenants.grant'),
        ),
        migrations.AddField(
            model_name='grant',
            name='requester',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='grant',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='%(class)ss', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='grant',
            name='tier',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.tier'),
        ),
        migrations.AddField(
            model_name='quotachange',
            name='company',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='quotachange',
            name='requester',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='quotachange',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='%(class)ss', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='quotachange',
            name='tier',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.tier'),
        ),
        migrations.AddIndex(
            model_name='grant',
            index=models.Index(fields=['team', 'tier', 'state'], name='tenants_grant_team'),
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['asked', 'approved', 'rejected', 'withdrawn', 'expired', 'revoked'])), name='tenants_grant_state'),
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.CheckConstraint(condition=models.Q(('tier__isnull', False), ('units__gt', 0)), name='tenants_grant_something'),
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.CheckConstraint(condition=models.Q(('ends_at__gte', models.F('starts_at'))), name='tenants_grant_span', violation_error_message='It ends before it starts. Give a later end.'),
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ('asked', 'approved'))), fields=('renews',), name='tenants_grant_one_renewal', violation_error_message='This grant is being renewed already.'),
        ),
        migrations.AddConstraint(
            model_name='quotachange',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['asked', 'approved', 'rejected', 'withdrawn', 'expired', 'revoked'])), name='tenants_quotachange_state'),
        ),
        migrations.AddConstraint(
            model_name='quotachange',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'asked')), fields=('team', 'tier'), name='tenants_quotachange_one_open', nulls_distinct=False, violation_error_message='A change of this quota is being asked for already.'),
        ),
        migrations.RunSQL(FORWARD, REVERSE),
    ]
