"""Indexes of the ledger that nothing reads: each made every start dearer."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0003_node_labels'),
        ('scheduling', '0008_queue_facts'),
        ('tenants', '0002_rules'),
    ]

    operations = [
        migrations.AlterField(
            model_name='allocation',
            name='company',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AlterField(
            model_name='allocation',
            name='team',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.team'),
        ),
        migrations.AlterField(
            model_name='allocation',
            name='tier',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.tier'),
        ),
    ]
