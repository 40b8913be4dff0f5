import gpuyard.core.ids
from django.db import migrations, models

FORWARD = """
CREATE TRIGGER audit_checkpoint_keep BEFORE UPDATE OR DELETE ON audit_checkpoint
  FOR EACH STATEMENT EXECUTE FUNCTION audit_keep();
CREATE TRIGGER audit_checkpoint_keep_all BEFORE TRUNCATE ON audit_checkpoint
  FOR EACH STATEMENT EXECUTE FUNCTION audit_keep();
"""
BACKWARD = """
DROP TRIGGER audit_checkpoint_keep ON audit_checkpoint;
DROP TRIGGER audit_checkpoint_keep_all ON audit_checkpoint;
"""


class Migration(migrations.Migration):

    dependencies = [("audit", "0002_rules")]

    operations = [
        migrations.AddField(model_name='event', name='team_id', field=models.UUIDField(null=True)),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('team_id__isnull', False)), fields=['team_id', 'created_at'], name='audit_event_team'),
        ),
        migrations.CreateModel(
            name='Checkpoint',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('company_id', models.UUIDField(null=True)),
                ('created_at', models.DateTimeField()),
                ('sequence', models.BigIntegerField()),
                ('hash', models.CharField(max_length=64)),
                ('key_id', models.CharField(max_length=16)),
                ('signature', models.CharField(max_length=88)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('company_id', 'sequence'), name='audit_checkpoint_once', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='Denial',
            fields=[
                ('id', models.UUIDField(default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('company_id', models.UUIDField(null=True)),
                ('actor_id', models.UUIDField(null=True)),
                ('actor_label', models.CharField(max_length=200)),
                ('action', models.CharField(max_length=80)),
                ('source', models.CharField(choices=[('web', 'Web'), ('api', 'Api'), ('agent', 'Agent'), ('system', 'System'), ('command', 'Command')], max_length=16)),
                ('method', models.CharField(max_length=10)),
                ('route', models.CharField(max_length=200)),
                ('status', models.PositiveSmallIntegerField()),
                ('minute', models.DateTimeField()),
                ('count', models.PositiveIntegerField(default=1)),
                ('path', models.CharField(max_length=200)),
                ('address', models.CharField(default='', max_length=45)),
                ('code', models.CharField(default='', max_length=80)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('company_id', 'actor_id', 'action', 'source', 'method', 'route', 'status', 'minute'), name='audit_denial_once', nulls_distinct=False)],
            },
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
