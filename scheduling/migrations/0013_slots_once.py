"""One exclusion for holders and promises of a slot: the same rule with one index less to keep for each row."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0003_node_labels'),
        ('scheduling', '0012_attempts_one_live'),
        ('tenants', '0003_approval_engine'),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='allocation',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('state', 'dropped'), _negated=True), expressions=[('gpu', '='), ('slots', '&&'), ('span', '&&'), (models.Case(models.When(state='claimed', then=models.Func(1, 2, function='int4range', output_field=django.contrib.postgres.fields.ranges.IntegerRangeField())), models.When(state__in=['held', 'unconfirmed'], then=models.Func(1, 3, function='int4range', output_field=django.contrib.postgres.fields.ranges.IntegerRangeField())), default=models.Func(2, 3, function='int4range', output_field=django.contrib.postgres.fields.ranges.IntegerRangeField()), output_field=django.contrib.postgres.fields.ranges.IntegerRangeField()), '&&')], name='scheduling_slots_once'),
        ),
        migrations.RemoveConstraint(
            model_name='allocation',
            name='scheduling_two_holders',
        ),
        migrations.RemoveConstraint(
            model_name='allocation',
            name='scheduling_promise',
        ),
    ]
