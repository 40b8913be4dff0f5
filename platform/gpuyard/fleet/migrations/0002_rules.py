"""Rules that Django has no words for: tier rules may not overlap, a GPU's condition has no gap, GPU rows stay."""

from django.db import migrations

FORWARD = """
ALTER TABLE fleet_tierrule ADD CONSTRAINT fleet_tierrule_once EXCLUDE USING gist
  (model WITH =, int8range(memory_mib_min::bigint, memory_mib_max::bigint, '[]'::text) WITH &&, span WITH &&);

ALTER TABLE fleet_gpucondition ADD CONSTRAINT fleet_gpucondition_bounds CHECK (
  NOT lower_inf(span) AND lower_inc(span) AND NOT upper_inc(span) AND isfinite(lower(span))
  AND (upper_inf(span) OR isfinite(upper(span))));

-- Only the end of a condition may move, and only once: from open to a time.
CREATE FUNCTION fleet_gpucondition_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION 'a GPU''s condition is never deleted' USING ERRCODE = 'check_violation';
  END IF;
  IF NOT upper_inf(OLD.span) OR (NEW.id, NEW.gpu_id, NEW.tier_id, NEW.condition, lower(NEW.span))
     IS DISTINCT FROM (OLD.id, OLD.gpu_id, OLD.tier_id, OLD.condition, lower(OLD.span)) THEN
    RAISE EXCEPTION 'only the end of an open condition may change' USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fleet_gpucondition_guard BEFORE UPDATE OR DELETE ON fleet_gpucondition
  FOR EACH ROW EXECUTE FUNCTION fleet_gpucondition_guard();
CREATE TRIGGER fleet_gpucondition_no_truncate BEFORE TRUNCATE ON fleet_gpucondition
  FOR EACH STATEMENT EXECUTE FUNCTION fleet_gpucondition_guard();

-- Gapless: at the end of the transaction each span but the first starts where another ends, and a GPU
-- has exactly one open span until it retires.
CREATE FUNCTION fleet_gpucondition_gapless() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE spans int; links int; open_spans int; retired timestamptz;
BEGIN
  SELECT count(*), count(*) FILTER (WHERE upper_inf(span)),
         count(*) FILTER (WHERE EXISTS (SELECT 1 FROM fleet_gpucondition before
                                        WHERE before.gpu_id = c.gpu_id AND upper(before.span) = lower(c.span)))
    INTO spans, open_spans, links FROM fleet_gpucondition c WHERE c.gpu_id = NEW.gpu_id;
  SELECT retired_at INTO retired FROM fleet_gpu WHERE id = NEW.gpu_id;
  IF links <> spans - 1 THEN
    RAISE EXCEPTION 'the conditions of GPU % have a gap', NEW.gpu_id USING ERRCODE = 'check_violation';
  END IF;
  IF open_spans <> (CASE WHEN retired IS NULL THEN 1 ELSE 0 END) THEN
    RAISE EXCEPTION 'GPU % has % open conditions', NEW.gpu_id, open_spans USING ERRCODE = 'check_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER fleet_gpucondition_gapless AFTER INSERT OR UPDATE ON fleet_gpucondition
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fleet_gpucondition_gapless();

-- The one way to change a GPU's condition: ends the open span and opens the next at the same instant.
CREATE FUNCTION gpu_condition_set(target uuid, new_id uuid, new_tier uuid, new_condition text, why text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE at timestamptz; began timestamptz;
BEGIN
  PERFORM 1 FROM fleet_gpu WHERE id = target FOR UPDATE;
  SELECT lower(span) INTO began FROM fleet_gpucondition WHERE gpu_id = target AND upper_inf(span);
  at := greatest(yard_now(), began + interval '1 microsecond');
  UPDATE fleet_gpucondition SET span = tstzrange(lower(span), at) WHERE gpu_id = target AND upper_inf(span);
  INSERT INTO fleet_gpucondition (id, gpu_id, tier_id, condition, reason, span)
    VALUES (new_id, target, new_tier, new_condition, why, tstzrange(at, NULL));
END $$;
"""

REVERSE = """
DROP FUNCTION gpu_condition_set(uuid, uuid, uuid, text, text);
DROP FUNCTION fleet_gpucondition_gapless() CASCADE;
DROP FUNCTION fleet_gpucondition_guard() CASCADE;
ALTER TABLE fleet_gpucondition DROP CONSTRAINT fleet_gpucondition_bounds;
ALTER TABLE fleet_tierrule DROP CONSTRAINT fleet_tierrule_once;
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, REVERSE)]
