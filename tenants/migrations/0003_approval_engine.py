"""Approval in stages and rounds: groups, delegation, deadlines, and what was said about a case."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
import gpuyard.core.clock
import gpuyard.core.ids
from django.conf import settings
from django.db import migrations, models


FORWARD = """
-- A case's rule and facts are what it is decided on: only an amendment, which begins a new round, changes them.
CREATE OR REPLACE FUNCTION tenants_case_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state NOT IN ('open', 'sent_back') OR (NEW.subject_id, NEW.requester_id)
     IS DISTINCT FROM (OLD.subject_id, OLD.requester_id) THEN
    RAISE EXCEPTION 'a decided case, and whose case it is, do not change' USING ERRCODE = 'check_violation';
  END IF;
  IF NEW.round NOT IN (OLD.round, OLD.round + 1) OR (NEW.round = OLD.round
     AND (NEW.policy_id, NEW.rule, NEW.facts) IS DISTINCT FROM (OLD.policy_id, OLD.rule, OLD.facts)) THEN
    RAISE EXCEPTION 'the facts of a case change with a new round only' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;

-- A step belongs to a round for good, and what somebody decided stays theirs.
CREATE FUNCTION tenants_casestep_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.case_id, NEW.round, NEW."order", NEW.position, NEW.needs, NEW.team_id, NEW.role, NEW.group_id)
     IS DISTINCT FROM
     (OLD.case_id, OLD.round, OLD."order", OLD.position, OLD.needs, OLD.team_id, OLD.role, OLD.group_id)
     OR OLD.state <> 'pending' AND (NEW.state, NEW.decided_by_id, NEW.on_behalf_of_id, NEW.decided_at, NEW.reason)
     IS DISTINCT FROM
     (CASE WHEN OLD.state = 'approved' THEN 'void' ELSE OLD.state END,
      OLD.decided_by_id, OLD.on_behalf_of_id, OLD.decided_at, OLD.reason) THEN
    RAISE EXCEPTION 'a step, and a decision, do not change' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER tenants_casestep_frozen BEFORE UPDATE ON tenants_casestep
  FOR EACH ROW EXECUTE FUNCTION tenants_casestep_frozen();
"""

REVERSE = """
DROP FUNCTION tenants_casestep_frozen() CASCADE;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0002_rules'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='ApproverGroup',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('created_at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='CaseMessage',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('round', models.PositiveSmallIntegerField()),
                ('act', models.CharField(max_length=16)),
                ('text', models.CharField(blank=True, default='', max_length=2000)),
                ('changes', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
            ],
            options={
                'ordering': ['created_at', 'id'],
            },
        ),
        migrations.CreateModel(
            name='Delegation',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('span', django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ('kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), blank=True, default=list, size=None)),
                ('teams', django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), blank=True, default=list, size=None)),
                ('reason', models.CharField(blank=True, default='', max_length=400)),
                ('created_at', models.DateTimeField(db_default=gpuyard.core.clock.YardNow(), editable=False)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.AlterModelOptions(
            name='approvalpolicy',
            options={'ordering': ['-version']},
        ),
        migrations.AlterModelOptions(
            name='casestep',
            options={'ordering': ['round', 'order', 'position']},
        ),
        migrations.RemoveConstraint(
            model_name='case',
            name='tenants_case_one_open',
        ),
        migrations.RemoveConstraint(
            model_name='case',
            name='tenants_case_decided',
        ),
        migrations.RemoveConstraint(
            model_name='casestep',
            name='tenants_casestep_order',
        ),
        migrations.RemoveConstraint(
            model_name='casestep',
            name='tenants_casestep_decided',
        ),
        migrations.AddField(
            model_name='approvalpolicy',
            name='note',
            field=models.CharField(blank=True, db_default='', default='', max_length=400),
        ),
        migrations.AddField(
            model_name='case',
            name='due_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='escalated_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='expires_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='fingerprint',
            field=models.CharField(blank=True, db_default='', default='', max_length=64),
        ),
        migrations.AddField(
            model_name='case',
            name='granted',
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='notice_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='noticed_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='remind_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='case',
            name='round',
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='casestep',
            name='escalated_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='casestep',
            name='needs',
            field=models.CharField(db_default='all', default='all', max_length=3),
        ),
        migrations.AddField(
            model_name='casestep',
            name='on_behalf_of',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='casestep',
            name='position',
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='casestep',
            name='round',
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='casestep',
            name='up_role',
            field=models.CharField(blank=True, db_default='', default='', max_length=16),
        ),
        migrations.AddField(
            model_name='casestep',
            name='up_team',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AlterField(
            model_name='case',
            name='state',
            field=models.CharField(choices=[('open', 'Open'), ('sent_back', 'Sent back'), ('approved', 'Approved'), ('rejected', 'Rejected'), ('withdrawn', 'Withdrawn'), ('expired', 'Expired')], default='open', max_length=16),
        ),
        migrations.AlterField(
            model_name='casestep',
            name='state',
            field=models.CharField(choices=[('pending', 'Pending'), ('approved', 'Approved'), ('rejected', 'Rejected'), ('skipped', 'Skipped'), ('void', 'Void')], default='pending', max_length=16),
        ),
        migrations.AddIndex(
            model_name='case',
            index=models.Index(fields=['subject_type', 'subject_id'], name='tenants_case_subject'),
        ),
        migrations.AddConstraint(
            model_name='case',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ('open', 'sent_back'))), fields=('subject_type', 'subject_id'), name='tenants_case_one_open'),
        ),
        migrations.AddConstraint(
            model_name='case',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['open', 'sent_back', 'approved', 'rejected', 'withdrawn', 'expired'])), name='tenants_case_state'),
        ),
        migrations.AddConstraint(
            model_name='case',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('decided_at__isnull', True), ('state__in', ('open', 'sent_back'))), models.Q(models.Q(('state__in', ('open', 'sent_back')), _negated=True), ('decided_at__isnull', False)), _connector='OR'), name='tenants_case_decided'),
        ),
        migrations.AddField(
            model_name='approvergroup',
            name='company',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='approver_groups', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='approvergroup',
            name='people',
            field=models.ManyToManyField(related_name='approver_groups', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='casestep',
            name='group',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.approvergroup'),
        ),
        migrations.AddField(
            model_name='casestep',
            name='up_group',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.approvergroup'),
        ),
        migrations.AddConstraint(
            model_name='casestep',
            constraint=models.UniqueConstraint(fields=('case', 'round', 'order', 'position'), name='tenants_casestep_order'),
        ),
        migrations.AddConstraint(
            model_name='casestep',
            constraint=models.UniqueConstraint(fields=('case', 'round', 'decided_by'), name='tenants_casestep_other_people', violation_error_message='Each step of a request is decided by another person.'),
        ),
        migrations.AddConstraint(
            model_name='casestep',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['pending', 'approved', 'rejected', 'skipped', 'void'])), name='tenants_casestep_state'),
        ),
        migrations.AddConstraint(
            model_name='casestep',
            constraint=models.CheckConstraint(condition=models.Q(('on_behalf_of__isnull', True), models.Q(('decided_by__isnull', False), models.Q(('on_behalf_of', models.F('requester')), _negated=True), models.Q(('on_behalf_of', models.F('decided_by')), _negated=True)), _connector='OR'), name='tenants_casestep_not_for_own', violation_error_message='Nobody decides on their own request, nor lets somebody else do so.'),
        ),
        migrations.AddConstraint(
            model_name='casestep',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('decided_by__isnull', True), ('state__in', ('pending', 'skipped'))), models.Q(models.Q(('state__in', ('pending', 'skipped')), _negated=True), ('decided_by__isnull', False)), _connector='OR'), name='tenants_casestep_decided'),
        ),
        migrations.AddField(
            model_name='casemessage',
            name='author',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='casemessage',
            name='case',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='tenants.case'),
        ),
        migrations.AddField(
            model_name='casemessage',
            name='on_behalf_of',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='delegation',
            name='company',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AddField(
            model_name='delegation',
            name='created_by',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='delegation',
            name='delegate',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='delegated', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='delegation',
            name='person',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='delegations', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='approvergroup',
            constraint=models.UniqueConstraint(fields=('company', 'name'), name='tenants_approvergroup_name', violation_error_message='A group of this name exists. Choose another name.'),
        ),
        migrations.AddConstraint(
            model_name='delegation',
            constraint=models.CheckConstraint(condition=models.Q(('person', models.F('delegate')), _negated=True), name='tenants_delegation_other', violation_error_message='Nobody stands in for themselves. Choose somebody else.'),
        ),
        migrations.AddConstraint(
            model_name='delegation',
            constraint=models.CheckConstraint(condition=models.Q(('span__isempty', False), ('span__lower_inf', False), ('span__upper_inf', False)), name='tenants_delegation_span'),
        ),
        migrations.AddConstraint(
            model_name='delegation',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('revoked_at__isnull', True)), expressions=[('person', '='), ('company', '='), ('span', '&&')], name='tenants_delegation_once', violation_error_message='Somebody stands in for this person then already.'),
        ),
        migrations.RunSQL(FORWARD, REVERSE),
    ]
