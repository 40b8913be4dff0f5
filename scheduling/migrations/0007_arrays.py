"""Arrays of workloads, and workloads that wait for others."""

import django.db.models.deletion
from django.db import migrations, models

import gpuyard.core.ids


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0006_checkpoints")]

    operations = [
        migrations.AddField(
            "workload",
            "array",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="members",
                to="scheduling.workload",
            ),
        ),
        migrations.AddField("workload", "array_index", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddConstraint(
            "workload",
            models.UniqueConstraint(fields=("array", "array_index"), name="scheduling_workload_array_member"),
        ),
        migrations.AddConstraint(
            "workload",
            models.CheckConstraint(
                condition=models.Q(array__isnull=True, array_index__isnull=True)
                | models.Q(array__isnull=False, array_index__isnull=False),
                name="scheduling_workload_array",
            ),
        ),
        migrations.CreateModel(
            "WorkloadDependency",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=gpuyard.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "on",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dependents",
                        to="scheduling.workload",
                    ),
                ),
                (
                    "workload",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dependencies",
                        to="scheduling.workload",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("workload", "on"), name="scheduling_workloaddependency_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("workload", models.F("on")), _negated=True),
                        name="scheduling_workloaddependency_other",
                    ),
                ],
            },
        ),
    ]
