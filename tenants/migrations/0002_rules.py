"""Rules over several rows: guarantees fit into the parent's, paths follow parents, a step's requester is the case's."""

from django.db import migrations

FORWARD = """
-- Both sides lock the parent team's row, so that two children cannot share out the same units.
CREATE FUNCTION tenants_quota_fits() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE up uuid; parent_guaranteed bigint; shared_out bigint;
BEGIN
  IF NEW.tier_id IS NULL THEN RETURN NULL; END IF;
  SELECT parent_id INTO up FROM tenants_team WHERE id = NEW.team_id;
  PERFORM 1 FROM tenants_team WHERE id IN (up, NEW.team_id) ORDER BY id FOR NO KEY UPDATE;
  IF up IS NOT NULL THEN
    SELECT coalesce(sum(guaranteed), 0) INTO shared_out FROM tenants_quota q JOIN tenants_team t ON t.id = q.team_id
      WHERE t.parent_id = up AND q.tier_id = NEW.tier_id;
    SELECT coalesce(max(guaranteed), 0) INTO parent_guaranteed FROM tenants_quota
      WHERE team_id = up AND tier_id = NEW.tier_id;
    IF shared_out > parent_guaranteed THEN
      RAISE EXCEPTION 'the guarantees of the children (%) exceed the parent''s (%)', shared_out, parent_guaranteed
        USING ERRCODE = 'check_violation', CONSTRAINT = 'tenants_quota_fits';
    END IF;
  END IF;
  SELECT coalesce(sum(guaranteed), 0) INTO shared_out FROM tenants_quota q JOIN tenants_team t ON t.id = q.team_id
    WHERE t.parent_id = NEW.team_id AND q.tier_id = NEW.tier_id;
  IF shared_out > NEW.guaranteed THEN
    RAISE EXCEPTION 'the guarantees of the children (%) exceed the new guarantee (%)', shared_out, NEW.guaranteed
      USING ERRCODE = 'check_violation', CONSTRAINT = 'tenants_quota_fits';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER tenants_quota_fits AFTER INSERT OR UPDATE ON tenants_quota
  FOR EACH ROW EXECUTE FUNCTION tenants_quota_fits();

CREATE FUNCTION tenants_quota_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM tenants_quota q JOIN tenants_team t ON t.id = q.team_id
             WHERE t.parent_id = OLD.team_id AND q.tier_id = OLD.tier_id AND q.guaranteed > 0) THEN
    RAISE EXCEPTION 'children still hold guarantees of this quota'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'tenants_quota_fits';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER tenants_quota_delete BEFORE DELETE ON tenants_quota
  FOR EACH ROW EXECUTE FUNCTION tenants_quota_delete();

CREATE FUNCTION tenants_team_path() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE up_path uuid[]; up_company uuid;
BEGIN
  IF NEW.parent_id IS NULL THEN
    up_path := '{}'; up_company := NEW.id;
  ELSE
    SELECT path, company_id INTO up_path, up_company FROM tenants_team WHERE id = NEW.parent_id FOR SHARE;
  END IF;
  IF NEW.id = ANY (up_path) OR NEW.path IS DISTINCT FROM up_path || NEW.id OR NEW.company_id <> up_company THEN
    RAISE EXCEPTION 'the team''s path or company does not follow its parent'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'tenants_team_path_follows';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER tenants_team_path BEFORE INSERT OR UPDATE OF parent_id, path, company_id ON tenants_team
  FOR EACH ROW EXECUTE FUNCTION tenants_team_path();

CREATE FUNCTION tenants_casestep_requester() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.requester_id IS DISTINCT FROM (SELECT requester_id FROM tenants_case WHERE id = NEW.case_id) THEN
    RAISE EXCEPTION 'a step''s requester is the case''s' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER tenants_casestep_requester BEFORE INSERT OR UPDATE OF requester_id, case_id ON tenants_casestep
  FOR EACH ROW EXECUTE FUNCTION tenants_casestep_requester();

-- A case's rule, facts and people are what the decision was made on.
CREATE FUNCTION tenants_case_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state <> 'open' OR (NEW.subject_id, NEW.requester_id, NEW.policy_id, NEW.rule, NEW.facts)
     IS DISTINCT FROM (OLD.subject_id, OLD.requester_id, OLD.policy_id, OLD.rule, OLD.facts) THEN
    RAISE EXCEPTION 'a decided case, and the facts of any case, do not change' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER tenants_case_frozen BEFORE UPDATE ON tenants_case
  FOR EACH ROW EXECUTE FUNCTION tenants_case_frozen();
"""

REVERSE = """
DROP FUNCTION tenants_case_frozen() CASCADE;
DROP FUNCTION tenants_casestep_requester() CASCADE;
DROP FUNCTION tenants_team_path() CASCADE;
DROP FUNCTION tenants_quota_delete() CASCADE;
DROP FUNCTION tenants_quota_fits() CASCADE;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial"), ("fleet", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, REVERSE)]
