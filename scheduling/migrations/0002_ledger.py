"""The ledger's checks and guard, the fence's row, and the sequences of fencing tokens and wake-ups."""

from django.db import migrations

FORWARD = """
ALTER TABLE scheduling_allocation
  ADD CONSTRAINT scheduling_allocation_slots CHECK (NOT isempty(slots) AND slots <@ '{[0,1000)}'::int4multirange),
  ADD CONSTRAINT scheduling_allocation_span CHECK (
    NOT isempty(span) AND NOT lower_inf(span) AND lower_inc(span) AND NOT upper_inc(span) AND isfinite(lower(span))
    AND (upper_inf(span) OR isfinite(upper(span)))),
  -- open if and only if live ('infinity' would pass upper_inf's negation: hence isfinite above)
  ADD CONSTRAINT scheduling_allocation_open CHECK (
    upper_inf(span) = (state IN ('claimed', 'held', 'stopping', 'unconfirmed'))),
  ADD CONSTRAINT scheduling_allocation_claim CHECK (state <> 'claimed' OR expires_at IS NOT NULL),
  ADD CONSTRAINT scheduling_allocation_state CHECK (
    state IN ('claimed', 'held', 'stopping', 'unconfirmed', 'ended', 'dropped'));

CREATE FUNCTION scheduling_allocation_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE edge text;
BEGIN
  IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
    RAISE EXCEPTION 'allocations are never deleted' USING ERRCODE = 'check_violation';
  END IF;
  IF TG_OP = 'INSERT' THEN
    IF NEW.state NOT IN ('claimed', 'held') THEN
      RAISE EXCEPTION 'an allocation begins claimed or held' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.state IN ('ended', 'dropped') THEN
    RAISE EXCEPTION 'an ended allocation does not change' USING ERRCODE = 'check_violation';
  END IF;
  edge := OLD.state || '>' || NEW.state;
  IF NEW.state <> OLD.state AND edge NOT IN (
      'claimed>held', 'claimed>dropped', 'held>stopping', 'held>unconfirmed', 'held>ended', 'stopping>unconfirmed',
      'stopping>ended', 'unconfirmed>held', 'unconfirmed>stopping', 'unconfirmed>ended') THEN
    RAISE EXCEPTION 'an allocation cannot go from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
  END IF;
  IF (NEW.id, NEW.company_id, NEW.team_id, NEW.workload_id, NEW.attempt_id, NEW.replica_id, NEW.gpu_id, NEW.card,
      NEW.is_instance, NEW.tier_id, NEW.slots, NEW.units) IS DISTINCT FROM
     (OLD.id, OLD.company_id, OLD.team_id, OLD.workload_id, OLD.attempt_id, OLD.replica_id, OLD.gpu_id, OLD.card,
      OLD.is_instance, OLD.tier_id, OLD.slots, OLD.units)
     OR (lower(NEW.span) IS DISTINCT FROM lower(OLD.span) AND edge <> 'claimed>held') THEN
    RAISE EXCEPTION 'gpu, slots, units, tier, owner and start of an allocation are frozen'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER scheduling_allocation_guard BEFORE INSERT OR UPDATE OR DELETE ON scheduling_allocation
  FOR EACH ROW EXECUTE FUNCTION scheduling_allocation_guard();
CREATE TRIGGER scheduling_allocation_no_truncate BEFORE TRUNCATE ON scheduling_allocation
  FOR EACH STATEMENT EXECUTE FUNCTION scheduling_allocation_guard();

CREATE FUNCTION scheduling_workloadspec_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a spec revision does not change' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER scheduling_workloadspec_frozen BEFORE UPDATE OR DELETE ON scheduling_workloadspec
  FOR EACH ROW EXECUTE FUNCTION scheduling_workloadspec_frozen();

INSERT INTO scheduler_state (id, pass) VALUES (1, 0);
CREATE SEQUENCE scheduling_fencing_token AS bigint;
-- Counts wake-ups of the pass. A sequence, because it must not make submitters wait for one another or for a commit.
CREATE SEQUENCE scheduling_wake AS bigint;
"""

REVERSE = """
DROP SEQUENCE scheduling_wake;
DROP SEQUENCE scheduling_fencing_token;
DELETE FROM scheduler_state;
DROP FUNCTION scheduling_workloadspec_frozen() CASCADE;
DROP FUNCTION scheduling_allocation_guard() CASCADE;
ALTER TABLE scheduling_allocation DROP CONSTRAINT scheduling_allocation_slots,
  DROP CONSTRAINT scheduling_allocation_span, DROP CONSTRAINT scheduling_allocation_open,
  DROP CONSTRAINT scheduling_allocation_claim, DROP CONSTRAINT scheduling_allocation_state;
"""


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0001_initial"), ("fleet", "0002_rules")]
    operations = [migrations.RunSQL(FORWARD, REVERSE)]
