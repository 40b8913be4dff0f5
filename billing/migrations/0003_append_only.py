"""Usage lines and charges are only ever added to, whoever asks."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION billing_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% rows are only ever added: write a correction', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER billing_usageline_append_only BEFORE UPDATE OR DELETE ON billing_usageline
  FOR EACH ROW EXECUTE FUNCTION billing_append_only();
CREATE TRIGGER billing_usageline_no_truncate BEFORE TRUNCATE ON billing_usageline
  FOR EACH STATEMENT EXECUTE FUNCTION billing_append_only();
CREATE TRIGGER billing_charge_append_only BEFORE UPDATE OR DELETE ON billing_charge
  FOR EACH ROW EXECUTE FUNCTION billing_append_only();
CREATE TRIGGER billing_charge_no_truncate BEFORE TRUNCATE ON billing_charge
  FOR EACH STATEMENT EXECUTE FUNCTION billing_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_initial")]
    operations = [migrations.RunSQL(FORWARD, "DROP FUNCTION billing_append_only() CASCADE")]
