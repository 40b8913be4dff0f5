"""The log only grows: sealing is the one change, once; what was found at verification stays too."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION audit_event_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.sequence IS NOT NULL OR NEW.prev IS NOT NULL OR NEW.hash IS NOT NULL THEN
      RAISE EXCEPTION 'an event is stored unsealed' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.sequence IS NOT NULL OR NEW.sequence IS NULL
     OR to_jsonb(NEW) - '{sequence,prev,hash}'::text[] IS DISTINCT FROM to_jsonb(OLD) - '{sequence,prev,hash}'::text[]
  THEN
    RAISE EXCEPTION 'an event never changes, but for its sealing, once' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER audit_event_guard BEFORE INSERT OR UPDATE ON audit_event
  FOR EACH ROW EXECUTE FUNCTION audit_event_guard();

CREATE FUNCTION audit_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% on % is refused: the log only grows', TG_OP, TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER audit_event_keep BEFORE DELETE ON audit_event
  FOR EACH STATEMENT EXECUTE FUNCTION audit_keep();
CREATE TRIGGER audit_event_keep_all BEFORE TRUNCATE ON audit_event
  FOR EACH STATEMENT EXECUTE FUNCTION audit_keep();
CREATE TRIGGER audit_verification_keep BEFORE UPDATE OR DELETE ON audit_verification
  FOR EACH STATEMENT EXECUTE FUNCTION audit_keep();
CREATE TRIGGER audit_verification_keep_all BEFORE TRUNCATE ON audit_verification
  FOR EACH STATEMENT EXECUTE FUNCTION audit_keep();
"""
BACKWARD = """
DROP FUNCTION audit_event_guard() CASCADE;
DROP FUNCTION audit_keep() CASCADE;
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
