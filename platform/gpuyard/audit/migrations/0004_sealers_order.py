from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("audit", "0003_checkpoints_denials_teams")]

    operations = [
        migrations.RemoveIndex(model_name='event', name='audit_event_unsealed'),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('sequence__isnull', True)), fields=['company_id', 'created_at', 'id'], name='audit_event_to_seal'),
        ),
    ]
