"""When a replica's newest checkpoint was written, as its agent reports it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0005_policy_and_usage")]
    operations = [
        migrations.AddField(
            model_name="replica",
            name="checkpoint_at",
            field=models.DateTimeField(blank=True, null=True),
        )
    ]
