"""The books recomputed in SQL, from raw allocations and conditions. Shares nothing with metering, on purpose.

Each check returns rows only where something is wrong. All of it looks at the time before each GPU's mark: what
lies after it is not in the books yet.
"""

# Everything that takes or gives units over a span (capacity, holders, uncharged time, claims, and what holders still
# have of a claim) is cut by conditions, hours and the mark; per GPU, hour and condition the rest belongs to the
# condition. Sums of intersections only: no walk over time, as metering does it.
_RAW = """
WITH claims AS (
  SELECT gpu_id, units, slots,
         CASE WHEN state IN ('claimed', 'dropped') THEN span ELSE tstzrange(claimed_at, lower(span)) END AS span
  FROM scheduling_allocation WHERE state IN ('claimed', 'dropped') OR claimed_at < lower(span)
), spans (gpu_id, what, units, span) AS (
  SELECT c.gpu_id, 'total', (7000 * g.compute_slices / g.card_slices)::numeric, c.span
  FROM fleet_gpucondition c JOIN fleet_gpu g ON g.id = c.gpu_id
  UNION ALL
  SELECT gpu_id, 'held', units, span FROM scheduling_allocation
  WHERE state IN ('held', 'stopping', 'unconfirmed', 'ended')
  UNION ALL
  SELECT gpu_id, 'uncharged', units, piece
  FROM scheduling_allocation, unnest(uncharged * tstzmultirange(span)) AS piece
  WHERE state IN ('held', 'stopping', 'unconfirmed', 'ended')
  UNION ALL
  SELECT gpu_id, 'reserved', units, span FROM claims
  UNION ALL
  SELECT k.gpu_id, 'reserved', -k.units::numeric * billing_slots(k.slots * a.slots) / billing_slots(k.slots),
         k.span * a.span
  FROM claims k JOIN scheduling_allocation a ON a.gpu_id = k.gpu_id AND a.slots && k.slots AND a.span && k.span
  WHERE a.state IN ('held', 'stopping', 'unconfirmed', 'ended')
), pieces AS (
  SELECT s.gpu_id, h.hour, c.tier_id, c.condition, s.what,
         sum(s.units * billing_us(cut.span * tstzrange(h.hour, h.hour + interval '1 hour'))) AS unit_us
  FROM spans s
  JOIN billing_metermark m ON m.gpu_id = s.gpu_id
  JOIN fleet_gpucondition c ON c.gpu_id = s.gpu_id AND c.span && s.span
  CROSS JOIN LATERAL (SELECT s.span * c.span * tstzrange(NULL, m.metered_until) AS span) cut
  CROSS JOIN LATERAL generate_series(date_trunc('hour', lower(cut.span), 'UTC'),
    upper(cut.span) - interval '1 microsecond', interval '1 hour') AS h (hour)
  GROUP BY s.gpu_id, h.hour, c.tier_id, c.condition, s.what
), sums AS (
  SELECT gpu_id, hour, tier_id, condition,
    coalesce(sum(unit_us) FILTER (WHERE what = 'total'), 0) AS total,
    coalesce(sum(unit_us) FILTER (WHERE what = 'held'), 0) AS held,
    coalesce(sum(unit_us) FILTER (WHERE what = 'uncharged'), 0) AS uncharged,
    coalesce(sum(unit_us) FILTER (WHERE what = 'reserved'), 0) AS reserved
  FROM pieces GROUP BY gpu_id, hour, tier_id, condition
), raw AS (
  SELECT gpu_id, hour, tier_id, sum(total) AS total, sum(held - uncharged) AS allocated, sum(reserved) AS reserved,
    sum(total - held - reserved) FILTER (WHERE condition = 'ready') AS unallocated,
    sum(total - held - reserved) FILTER (WHERE condition IN ('maintenance', 'cordoned')) AS maintenance,
    sum(uncharged + CASE WHEN condition = 'down' THEN total - held - reserved ELSE 0 END) AS down
  FROM sums GROUP BY gpu_id, hour, tier_id
), booked AS (
  SELECT gpu_id, hour, tier_id, sum(unit_us) AS total,
    sum(unit_us) FILTER (WHERE bucket IN ('active', 'idle_held', 'unknown', 'transition')) AS allocated,
    sum(unit_us) FILTER (WHERE bucket = 'reserved') AS reserved,
    sum(unit_us) FILTER (WHERE bucket = 'unallocated') AS unallocated,
    sum(unit_us) FILTER (WHERE bucket = 'maintenance') AS maintenance,
    sum(unit_us) FILTER (WHERE bucket = 'down') AS down
  FROM billing_usageline GROUP BY gpu_id, hour, tier_id
)
"""

HOURS = (
    _RAW
    + """
SELECT node.name, g.index, g.public_id, hour,
  coalesce(b.total, 0) - coalesce(r.total, 0),
  coalesce(b.allocated, 0) - coalesce(r.allocated, 0),
  coalesce(b.reserved, 0) - coalesce(r.reserved, 0),
  coalesce(b.unallocated, 0) - coalesce(r.unallocated, 0),
  coalesce(b.maintenance, 0) - coalesce(r.maintenance, 0),
  coalesce(b.down, 0) - coalesce(r.down, 0)
FROM raw r FULL JOIN booked b USING (gpu_id, hour, tier_id)
JOIN fleet_gpu g ON g.id = gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE (coalesce(b.total, 0), coalesce(b.allocated, 0), coalesce(b.reserved, 0), coalesce(b.unallocated, 0),
       coalesce(b.maintenance, 0), coalesce(b.down, 0))
  IS DISTINCT FROM (coalesce(r.total, 0), coalesce(r.allocated, 0), coalesce(r.reserved, 0),
                    coalesce(r.unallocated, 0), coalesce(r.maintenance, 0), coalesce(r.down, 0))
ORDER BY node.name, g.index, hour
"""
)

ALLOCATIONS = """
WITH raw AS (
  SELECT a.id, a.workload_id, a.gpu_id, a.units::numeric * billing_us(
    tstzmultirange(a.span * tstzrange(NULL, m.metered_until)) - a.uncharged) AS charged
  FROM scheduling_allocation a JOIN billing_metermark m ON m.gpu_id = a.gpu_id
  WHERE a.state IN ('held', 'stopping', 'unconfirmed', 'ended')
), booked AS (
  SELECT allocation_id AS id, sum(unit_us) AS charged FROM billing_usageline
  WHERE charge_id IS NOT NULL GROUP BY allocation_id
)
SELECT w.public_id, node.name, g.index, coalesce(b.charged, 0), coalesce(r.charged, 0)
FROM raw r FULL JOIN booked b USING (id)
JOIN scheduling_allocation a ON a.id = coalesce(r.id, b.id)
JOIN scheduling_workload w ON w.id = a.workload_id
JOIN fleet_gpu g ON g.id = a.gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE coalesce(b.charged, 0) <> coalesce(r.charged, 0) ORDER BY w.public_id, node.name, g.index
"""

DOUBLED_LINES = """
SELECT node.name, g.index, bucket, starts_at, coalesce(w.public_id, '') FROM (
  SELECT gpu_id, bucket, workload_id, starts_at, max(ends_at) OVER (
    PARTITION BY gpu_id, allocation_id, bucket ORDER BY starts_at, ends_at, id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reach
  FROM billing_usageline) l
JOIN fleet_gpu g ON g.id = l.gpu_id JOIN fleet_node node ON node.id = g.node_id
LEFT JOIN scheduling_workload w ON w.id = l.workload_id
WHERE starts_at < reach ORDER BY node.name, g.index, starts_at
"""

# A line outside its hour or day, before the GPU's first condition or after its mark, or with more in it than fits.
ODD_LINES = """
SELECT node.name, g.index, l.bucket, l.starts_at,
  CASE WHEN l.hour <> date_trunc('hour', l.starts_at, 'UTC') OR l.ends_at > l.hour + interval '1 hour' THEN 'hour'
       WHEN l.day <> (l.starts_at AT TIME ZONE coalesce(company.time_zone, 'UTC'))::date THEN 'day'
       WHEN m.metered_until IS NULL OR l.ends_at > m.metered_until THEN 'mark'
       ELSE 'size' END
FROM billing_usageline l
JOIN fleet_gpu g ON g.id = l.gpu_id JOIN fleet_node node ON node.id = g.node_id
LEFT JOIN billing_metermark m ON m.gpu_id = l.gpu_id
LEFT JOIN tenants_team company ON company.id = l.company_id
WHERE l.hour <> date_trunc('hour', l.starts_at, 'UTC') OR l.ends_at > l.hour + interval '1 hour'
   OR l.day <> (l.starts_at AT TIME ZONE coalesce(company.time_zone, 'UTC'))::date
   OR m.metered_until IS NULL OR l.ends_at > m.metered_until
   OR l.unit_us > billing_us(tstzrange(l.starts_at, l.ends_at)) * (7000 * g.compute_slices / g.card_slices)
ORDER BY node.name, g.index, l.starts_at
"""

# Two holders of one slot. The running maximum finds suspects in one walk; only they are compared with others.
OVERLAPS = """
WITH holders AS (
  SELECT id, gpu_id, workload_id, slots, span, max(coalesce(upper(span), 'infinity')) OVER (
    PARTITION BY gpu_id ORDER BY lower(span), id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reach
  FROM scheduling_allocation WHERE state IN ('held', 'stopping', 'unconfirmed', 'ended')
)
SELECT node.name, g.index, one.public_id, other.public_id, lower(a.span * b.span)
FROM holders a
JOIN scheduling_allocation b ON b.gpu_id = a.gpu_id AND b.slots && a.slots AND b.span && a.span
  AND (lower(b.span), b.id) < (lower(a.span), a.id) AND b.state IN ('held', 'stopping', 'unconfirmed', 'ended')
JOIN scheduling_workload one ON one.id = b.workload_id JOIN scheduling_workload other ON other.id = a.workload_id
JOIN fleet_gpu g ON g.id = a.gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE lower(a.span) < a.reach
UNION ALL
SELECT node.name, g.index, one.public_id, other.public_id, lower(a.span * b.span)
FROM scheduling_allocation a
JOIN scheduling_allocation b ON b.card = a.card AND b.span && a.span AND a.is_instance = 0 AND b.is_instance = 1
JOIN scheduling_workload one ON one.id = b.workload_id JOIN scheduling_workload other ON other.id = a.workload_id
JOIN fleet_gpu g ON g.id = a.gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE a.state IN ('held', 'stopping', 'unconfirmed', 'ended')
  AND b.state IN ('held', 'stopping', 'unconfirmed', 'ended')
ORDER BY 1, 2, 5
"""

STOLEN_CLAIMS = """
SELECT node.name, g.index, one.public_id, other.public_id
FROM scheduling_allocation a
JOIN scheduling_allocation b ON b.gpu_id = a.gpu_id AND b.slots && a.slots AND b.span && a.span AND b.id <> a.id
JOIN scheduling_workload one ON one.id = a.workload_id JOIN scheduling_workload other ON other.id = b.workload_id
JOIN fleet_gpu g ON g.id = a.gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE a.state = 'claimed' AND (b.state IN ('held', 'unconfirmed') OR (b.state = 'claimed' AND a.id < b.id))
ORDER BY 1, 2
"""

CONDITION_GAPS = """
SELECT node.name, g.index, lower(c.span) FROM (
  SELECT gpu_id, span, lag(span) OVER (PARTITION BY gpu_id ORDER BY lower(span)) AS before FROM fleet_gpucondition) c
JOIN fleet_gpu g ON g.id = c.gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE c.before IS NOT NULL AND upper(c.before) IS DISTINCT FROM lower(c.span) ORDER BY 1, 2, 3
"""

COST_RATES = """
SELECT node.name, g.index, l.starts_at, l.cost_rate, coalesce(r.rate, 0)
FROM billing_usageline l
LEFT JOIN billing_costrate r ON r.tier_id = l.tier_id AND r.span @> l.starts_at
JOIN fleet_gpu g ON g.id = l.gpu_id JOIN fleet_node node ON node.id = g.node_id
WHERE l.cost_rate <> coalesce(r.rate, 0)
   OR EXISTS (SELECT 1 FROM billing_costrate inside WHERE inside.tier_id = l.tier_id
              AND lower(inside.span) > l.starts_at AND lower(inside.span) < l.ends_at)
ORDER BY 1, 2, 3
"""

PRICE_RATES = """
SELECT w.public_id, l.starts_at, l.price_rate, coalesce(p.rate, 0)
FROM billing_usageline l
JOIN scheduling_allocation a ON a.id = l.allocation_id
JOIN scheduling_attempt attempt ON attempt.id = a.attempt_id
JOIN scheduling_workload w ON w.id = a.workload_id
JOIN tenants_team team ON team.id = a.team_id
LEFT JOIN LATERAL (
  SELECT p.rate FROM billing_pricerate p
  WHERE p.team_id = ANY (team.path) AND p.tier_id = a.tier_id AND p.kind IN (w.kind, 'any')
    AND p.service_class IN (CASE WHEN attempt.borrowed THEN 'borrowed' ELSE 'guaranteed' END, 'any')
    AND p.span @> l.starts_at
  ORDER BY array_position(team.path, p.team_id) DESC, p.kind = 'any', p.service_class = 'any' LIMIT 1) p ON true
WHERE l.charge_id IS NOT NULL AND l.price_rate <> coalesce(p.rate, 0) ORDER BY 1, 2
"""

CHARGES = """
SELECT w.public_id, c.day, c.unit_us, coalesce(sum(l.unit_us), 0),
  coalesce(bool_or((l.company_id, l.team_id, l.workload_id, l.day, l.price_rate, l.currency)
           IS DISTINCT FROM (c.company_id, c.team_id, c.workload_id, c.day, c.price_rate, c.currency)), false)
FROM billing_charge c JOIN scheduling_workload w ON w.id = c.workload_id
LEFT JOIN billing_usageline l ON l.charge_id = c.id
WHERE c.kind = 'usage' GROUP BY c.id, w.public_id
HAVING c.unit_us <> coalesce(sum(l.unit_us), 0)
  OR coalesce(bool_or((l.company_id, l.team_id, l.workload_id, l.day, l.price_rate, l.currency)
           IS DISTINCT FROM (c.company_id, c.team_id, c.workload_id, c.day, c.price_rate, c.currency)), false)
UNION ALL
SELECT w.public_id, c.day, c.unit_us, -old.unit_us, true
FROM billing_charge c JOIN billing_charge old ON old.id = c.corrects_id
JOIN scheduling_workload w ON w.id = c.workload_id
WHERE c.kind = 'reversal' AND (c.unit_us, c.team_id, c.workload_id, c.price_rate)
  IS DISTINCT FROM (-old.unit_us, old.team_id, old.workload_id, old.price_rate)
ORDER BY 1, 2
"""

GUARDS_MISSING = """
SELECT wanted.name FROM unnest(ARRAY[
  'scheduling_slots_once', 'scheduling_card_or_mig', 'fleet_gpucondition_once',
  'billing_usageline_once', 'billing_costrate_once', 'billing_pricerate_once']) AS wanted (name)
WHERE NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conname = wanted.name AND c.convalidated)
UNION ALL
SELECT wanted.name FROM unnest(ARRAY[
  'scheduling_allocation_guard', 'scheduling_allocation_no_truncate', 'fleet_gpucondition_guard',
  'fleet_gpucondition_no_truncate', 'fleet_gpucondition_gapless', 'billing_usageline_append_only',
  'billing_usageline_no_truncate', 'billing_charge_append_only', 'billing_charge_no_truncate']) AS wanted (name)
WHERE NOT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgname = wanted.name AND t.tgenabled IN ('O', 'A'))
"""

# The fleet's cost without any line: capacity before the mark times the rates that applied.
FLEET_COST = """
SELECT coalesce(sum((7000 * g.compute_slices / g.card_slices)
    * billing_us(c.span * r.span * tstzrange(NULL, m.metered_until))::numeric * r.rate), 0)
FROM fleet_gpu g JOIN billing_metermark m ON m.gpu_id = g.id
JOIN fleet_gpucondition c ON c.gpu_id = g.id
JOIN billing_costrate r ON r.tier_id = c.tier_id AND r.span && c.span
WHERE NOT isempty(c.span * r.span * tstzrange(NULL, m.metered_until))
"""

BUCKETS = """
SELECT bucket, sum(unit_us), sum(unit_us * cost_rate), sum(unit_us * price_rate)
FROM billing_usageline GROUP BY bucket
"""

CHARGED = """
SELECT coalesce(sum(unit_us * price_rate), 0), coalesce(sum(unit_us * price_rate) FILTER (WHERE kind = 'usage'), 0)
FROM billing_charge
"""

MARKS = "SELECT count(*), min(metered_until), max(metered_until), yard_now() FROM billing_metermark"
