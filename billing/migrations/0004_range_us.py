"""The exact length of a span, for the check of the books."""

from django.db import migrations

FORWARD = """
-- Microseconds in a finite span; NULL for an empty one.
CREATE FUNCTION billing_us(span tstzrange) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM upper(span) - lower(span)) * 1000000)::bigint $$;
-- The same over all pieces of a multirange.
CREATE FUNCTION billing_us(spans tstzmultirange) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT coalesce(sum((extract(epoch FROM upper(piece) - lower(piece)) * 1000000)::bigint), 0)::bigint
   FROM unnest(spans) AS piece $$;
CREATE FUNCTION billing_slots(slots int4multirange) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT coalesce(sum(upper(piece) - lower(piece)), 0)::int FROM unnest(slots) AS piece $$;
"""
REVERSE = """
DROP FUNCTION billing_slots(int4multirange);
DROP FUNCTION billing_us(tstzmultirange);
DROP FUNCTION billing_us(tstzrange);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_append_only"), ("scheduling", "0002_ledger")]
    operations = [migrations.RunSQL(FORWARD, REVERSE)]
