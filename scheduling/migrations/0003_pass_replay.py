from django.db import migrations, models


class Migration(migrations.Migration):
    """What a pass needs to be replayed, and what it took back."""

    dependencies = [("scheduling", "0002_ledger")]

    operations = [
        migrations.AddField("passrecord", "claimed", models.PositiveIntegerField(default=0)),
        migrations.AddField("passrecord", "stopped", models.PositiveIntegerField(default=0)),
        migrations.AddField("passrecord", "grown", models.PositiveIntegerField(default=0)),
        migrations.AddField("passrecord", "stops", models.JSONField(default=list)),
        migrations.AddField("passrecord", "snapshot_bytes", models.PositiveIntegerField(default=0)),
        migrations.AddField("passrecord", "now_us", models.BigIntegerField(null=True)),
        migrations.AddField("passrecord", "policy", models.JSONField(null=True)),
        migrations.AddField("passrecord", "engine_version", models.CharField(blank=True, default="", max_length=32)),
        migrations.AddField("passrecord", "plan_digest", models.CharField(blank=True, default="", max_length=64)),
    ]
