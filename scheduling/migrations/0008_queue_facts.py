from django.db import migrations, models


class Migration(migrations.Migration):
    """What the queue page tells: fair shares, and how each verdict was before. Stops are in the evictions."""

    dependencies = [("scheduling", "0007_arrays")]

    operations = [
        migrations.RemoveField("passrecord", "stops"),
        migrations.AddField("schedulerstate", "shares", models.JSONField(default=dict)),
        migrations.AddField("verdict", "before", models.JSONField(null=True)),
    ]
