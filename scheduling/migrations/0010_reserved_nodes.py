from django.db import migrations, models


class Migration(migrations.Migration):
    """On which nodes a waiting workload's start is reserved, so that pages can show how it clears."""

    dependencies = [("scheduling", "0009_fewer_ledger_indexes")]

    operations = [migrations.AddField("verdict", "reserved", models.JSONField(null=True))]
