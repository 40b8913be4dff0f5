"""Labels of nodes, which requests may ask for or exclude."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_rules")]

    operations = [
        migrations.AddField(
            "node",
            "labels",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=127), blank=True, default=list, size=None
            ),
        ),
    ]
