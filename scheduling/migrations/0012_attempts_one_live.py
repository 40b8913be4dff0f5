"""The two indexes again that keep a workload to one live attempt.

Django looks for the index of a foreign key by its column alone: when 0011 gave up the one on the attempt's workload,
these went with it.
"""

from django.db import migrations

FORWARD = """
CREATE UNIQUE INDEX IF NOT EXISTS scheduling_attempt_one_live ON scheduling_attempt (workload_id)
  WHERE state IN ('claiming', 'starting', 'running');
CREATE UNIQUE INDEX IF NOT EXISTS scheduling_attempt_one_stopping ON scheduling_attempt (workload_id)
  WHERE state = 'stopping';
"""


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0011_ledger_chain")]
    operations = [migrations.RunSQL(FORWARD, migrations.RunSQL.noop)]
