"""Shares of a card, work taken back, and work that grows and shrinks."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields
import django.db.models.deletion
import gpuyard.core.clock
import gpuyard.core.ids
from django.conf import settings
from django.db import migrations, models


# The guard of 0002 again, which keeps the scope of a share too.
FORWARD = """
ALTER TABLE scheduling_allocation ADD CONSTRAINT scheduling_allocation_slots_scope CHECK (
  (slots = '{[0,1000)}'::int4multirange) = (scope IS NULL));

CREATE OR REPLACE FUNCTION scheduling_allocation_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE edge text;
BEGIN
  IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
    RAISE EXCEPTION 'allocations are never deleted' USING ERRCODE = 'check_violation';
  END IF;
  IF TG_OP = 'INSERT' THEN
    IF NEW.state NOT IN ('claimed', 'held') THEN
      RAISE EXCEPTION 'an allocation begins claimed or held' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.state IN ('ended', 'dropped') THEN
    RAISE EXCEPTION 'an ended allocation does not change' USING ERRCODE = 'check_violation';
  END IF;
  edge := OLD.state || '>' || NEW.state;
  IF NEW.state <> OLD.state AND edge NOT IN (
      'claimed>held', 'claimed>dropped', 'held>stopping', 'held>unconfirmed', 'held>ended', 'stopping>unconfirmed',
      'stopping>ended', 'unconfirmed>held', 'unconfirmed>stopping', 'unconfirmed>ended') THEN
    RAISE EXCEPTION 'an allocation cannot go from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
  END IF;
  IF (NEW.id, NEW.company_id, NEW.team_id, NEW.workload_id, NEW.attempt_id, NEW.replica_id, NEW.gpu_id, NEW.card,
      NEW.is_instance, NEW.tier_id, NEW.slots, NEW.scope, NEW.units) IS DISTINCT FROM
     (OLD.id, OLD.company_id, OLD.team_id, OLD.workload_id, OLD.attempt_id, OLD.replica_id, OLD.gpu_id, OLD.card,
      OLD.is_instance, OLD.tier_id, OLD.slots, OLD.scope, OLD.units)
     OR (lower(NEW.span) IS DISTINCT FROM lower(OLD.span) AND edge <> 'claimed>held') THEN
    RAISE EXCEPTION 'gpu, slots, units, tier, owner and start of an allocation are frozen'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION scheduling_eviction_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'what was taken back is never changed or forgotten' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER scheduling_eviction_keep BEFORE UPDATE OR DELETE ON scheduling_eviction
  FOR EACH STATEMENT EXECUTE FUNCTION scheduling_eviction_keep();
CREATE TRIGGER scheduling_eviction_keep_all BEFORE TRUNCATE ON scheduling_eviction
  FOR EACH STATEMENT EXECUTE FUNCTION scheduling_eviction_keep();
"""

REVERSE = """
DROP FUNCTION scheduling_eviction_keep() CASCADE;
ALTER TABLE scheduling_allocation DROP CONSTRAINT scheduling_allocation_slots_scope;

CREATE OR REPLACE FUNCTION scheduling_allocation_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE edge text;
BEGIN
  IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
    RAISE EXCEPTION 'allocations are never deleted' USING ERRCODE = 'check_violation';
  END IF;
  IF TG_OP = 'INSERT' THEN
    IF NEW.state NOT IN ('claimed', 'held') THEN
      RAISE EXCEPTION 'an allocation begins claimed or held' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.state IN ('ended', 'dropped') THEN
    RAISE EXCEPTION 'an ended allocation does not change' USING ERRCODE = 'check_violation';
  END IF;
  edge := OLD.state || '>' || NEW.state;
  IF NEW.state <> OLD.state AND edge NOT IN (
      'claimed>held', 'claimed>dropped', 'held>stopping', 'held>unconfirmed', 'held>ended', 'stopping>unconfirmed',
      'stopping>ended', 'unconfirmed>held', 'unconfirmed>stopping', 'unconfirmed>ended') THEN
    RAISE EXCEPTION 'an allocation cannot go from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
  END IF;
  IF (NEW.id, NEW.company_id, NEW.team_id, NEW.workload_id, NEW.attempt_id, NEW.replica_id, NEW.gpu_id, NEW.card,
      NEW.is_instance, NEW.tier_id, NEW.slots, NEW.units) IS DISTINCT FROM
     (OLD.id, OLD.company_id, OLD.team_id, OLD.workload_id, OLD.attempt_id, OLD.replica_id, OLD.gpu_id, OLD.card,
      OLD.is_instance, OLD.tier_id, OLD.slots, OLD.units)
     OR (lower(NEW.span) IS DISTINCT FROM lower(OLD.span) AND edge <> 'claimed>held') THEN
    RAISE EXCEPTION 'gpu, slots, units, tier, owner and start of an allocation are frozen'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0002_rules'),
        ('scheduling', '0003_pass_replay'),
        ('tenants', '0002_rules'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Eviction',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('pass_number', models.BigIntegerField()),
                ('reason', models.CharField(max_length=16)),
                ('replicas', django.contrib.postgres.fields.ArrayField(base_field=models.PositiveIntegerField(), blank=True, null=True, size=None)),
                ('units', models.PositiveBigIntegerField()),
                ('lost_gpu_s', models.PositiveBigIntegerField(default=0)),
                ('why', models.JSONField(default=dict)),
                ('at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
            ],
            options={
                'ordering': ['-at'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='attempt',
            name='scheduling_attempt_one_live',
        ),
        migrations.RemoveConstraint(
            model_name='replica',
            name='scheduling_replica_index',
        ),
        migrations.AddField(
            model_name='allocation',
            name='scope',
            field=models.UUIDField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='attempt',
            name='band',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='replica',
            name='released',
            field=models.CharField(blank=True, db_default='', default='', max_length=16),
        ),
        migrations.AddIndex(
            model_name='workload',
            index=models.Index(fields=['-created_at'], name='scheduling_workload_newest'),
        ),
        migrations.AddConstraint(
            model_name='allocation',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('state__in', ['held', 'stopping', 'unconfirmed', 'ended']), ('scope__isnull', False)), expressions=[('card', '='), ('scope', '<>'), ('span', '&&')], name='scheduling_share_holders'),
        ),
        migrations.AddConstraint(
            model_name='allocation',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('scope__isnull', False), ('state__in', ['claimed', 'held', 'unconfirmed'])), expressions=[('card', '='), ('scope', '<>'), ('span', '&&')], name='scheduling_share_promise'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ['claiming', 'starting', 'running'])), fields=('workload',), name='scheduling_attempt_one_live'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'stopping')), fields=('workload',), name='scheduling_attempt_one_stopping'),
        ),
        migrations.AddConstraint(
            model_name='replica',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'exited'), _negated=True), fields=('attempt', 'index'), name='scheduling_replica_index'),
        ),
        migrations.AddField(
            model_name='eviction',
            name='attempt',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='evictions', to='scheduling.attempt'),
        ),
        migrations.AddField(
            model_name='eviction',
            name='company',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='eviction',
            name='gained_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='scheduling.workload'),
        ),
        migrations.AddField(
            model_name='eviction',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='eviction',
            name='workload',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='evictions', to='scheduling.workload'),
        ),
        migrations.AddIndex(
            model_name='eviction',
            index=models.Index(fields=['workload', '-at'], name='scheduling_eviction_workload'),
        ),
        migrations.AddIndex(
            model_name='eviction',
            index=models.Index(fields=['-at'], name='scheduling_eviction_newest'),
        ),
        migrations.RunSQL(FORWARD, REVERSE),
    ]
