"""One chain of foreign keys from an allocation to its team, and fewer indexes in a start's way."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


# A check for each of five columns let an allocation name another team than its workload's. The chain does not, and
# is two checks shorter.
CHAIN = """
ALTER TABLE scheduling_allocation
  ADD CONSTRAINT scheduling_allocation_of_replica FOREIGN KEY (replica_id, attempt_id)
    REFERENCES scheduling_replica (id, attempt_id) DEFERRABLE INITIALLY DEFERRED,
  ADD CONSTRAINT scheduling_allocation_of_attempt FOREIGN KEY (attempt_id, workload_id)
    REFERENCES scheduling_attempt (id, workload_id) DEFERRABLE INITIALLY DEFERRED,
  ADD CONSTRAINT scheduling_allocation_of_workload FOREIGN KEY (workload_id, team_id, company_id)
    REFERENCES scheduling_workload (id, team_id, company_id) DEFERRABLE INITIALLY DEFERRED;
"""
UNCHAIN = """
ALTER TABLE scheduling_allocation
  DROP CONSTRAINT scheduling_allocation_of_replica,
  DROP CONSTRAINT scheduling_allocation_of_attempt,
  DROP CONSTRAINT scheduling_allocation_of_workload;
"""

# The guard as it was, but that the function is called for a new row only where it has something to refuse.
GUARD = """
DROP TRIGGER scheduling_allocation_guard ON scheduling_allocation;
CREATE TRIGGER scheduling_allocation_guard BEFORE UPDATE OR DELETE ON scheduling_allocation
  FOR EACH ROW EXECUTE FUNCTION scheduling_allocation_guard();
CREATE TRIGGER scheduling_allocation_guard_new BEFORE INSERT ON scheduling_allocation
  FOR EACH ROW WHEN (NEW.state NOT IN ('claimed', 'held')) EXECUTE FUNCTION scheduling_allocation_guard();
"""
UNGUARD = """
DROP TRIGGER scheduling_allocation_guard_new ON scheduling_allocation;
DROP TRIGGER scheduling_allocation_guard ON scheduling_allocation;
CREATE TRIGGER scheduling_allocation_guard BEFORE INSERT OR UPDATE OR DELETE ON scheduling_allocation
  FOR EACH ROW EXECUTE FUNCTION scheduling_allocation_guard();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0003_node_labels'),
        ('scheduling', '0010_reserved_nodes'),
        ('tenants', '0002_rules'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name='allocation',
            name='attempt',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='scheduling.attempt'),
        ),
        migrations.AlterField(
            model_name='allocation',
            name='company',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AlterField(
            model_name='allocation',
            name='replica',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='scheduling.replica'),
        ),
        migrations.AlterField(
            model_name='allocation',
            name='team',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AlterField(
            model_name='allocation',
            name='workload',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='scheduling.workload'),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='tier',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.tier'),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='workload',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='attempts', to='scheduling.workload'),
        ),
        migrations.AlterField(
            model_name='portlease',
            name='node',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='port_leases', to='fleet.node'),
        ),
        migrations.AlterField(
            model_name='portlease',
            name='replica',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='port_leases', to='scheduling.replica'),
        ),
        migrations.AlterField(
            model_name='replica',
            name='spec',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='scheduling.workloadspec'),
        ),
        migrations.AlterField(
            model_name='workload',
            name='array',
            field=models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='members', to='scheduling.workload'),
        ),
        migrations.AlterField(
            model_name='workload',
            name='company',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AlterField(
            model_name='workload',
            name='spec',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='scheduling.workloadspec'),
        ),
        migrations.AlterField(
            model_name='workload',
            name='stop_requested_by',
            field=models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name='workload',
            name='team',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='workloads', to='tenants.team'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(fields=('id', 'workload'), name='scheduling_attempt_owned'),
        ),
        migrations.AddConstraint(
            model_name='replica',
            constraint=models.UniqueConstraint(fields=('id', 'attempt'), name='scheduling_replica_owned'),
        ),
        migrations.AddConstraint(
            model_name='workload',
            constraint=models.UniqueConstraint(fields=('id', 'team', 'company'), name='scheduling_workload_owned'),
        ),
        migrations.RunSQL(CHAIN, UNCHAIN),
        migrations.RunSQL(GUARD, UNGUARD),
    ]
