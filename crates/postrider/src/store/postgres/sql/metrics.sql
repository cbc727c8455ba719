-- Figures and health, for monitoring.

CREATE FUNCTION postrider._count(p_name text, p_value bigint) RETURNS void LANGUAGE sql
AS $$ INSERT INTO postrider._counts (name, value) VALUES (p_name, p_value) $$;

-- 0 when p_from is null or later.
CREATE FUNCTION postrider._seconds_between(p_from timestamptz, p_to timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(greatest(extract(epoch FROM p_to - p_from), 0), 0)::double precision
$$;

-- One row per component; status is ok, warning or critical.
CREATE FUNCTION postrider.health_check() RETURNS TABLE (component text, status text, details jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := postrider._now();
  v_status record;
  v_limit bigint := (SELECT max_queue_size FROM postrider._limits);
  v_live bigint := postrider._live_nodes();
  v_ahead timestamp := (SELECT max(month) FROM postrider._months('archive'));
  v_copied text := postrider._copied();
  v_stray boolean := EXISTS (SELECT FROM postrider.archive_default) OR EXISTS (SELECT FROM postrider.attempts_default);
BEGIN
  SELECT * INTO v_status FROM postrider._status();
  RETURN QUERY SELECT 'nodes', CASE WHEN v_live = 0 THEN 'critical' ELSE 'ok' END, jsonb_build_object('live', v_live);
  RETURN QUERY SELECT 'identity', CASE WHEN v_copied IS NULL THEN 'ok' ELSE 'warning' END,
    jsonb_build_object('store', v_status.store, 'copied', v_copied);
  RETURN QUERY SELECT 'dispatch', CASE WHEN v_status.paused IS NULL THEN 'ok' ELSE 'warning' END,
    jsonb_build_object('paused', v_status.paused);
  RETURN QUERY SELECT 'queue',
    CASE WHEN v_limit > 0 AND v_status.pending + v_status.processing >= v_limit THEN 'critical'
         WHEN v_limit > 0 AND v_status.pending + v_status.processing >= v_limit * 8 / 10 THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('pending', v_status.pending, 'processing', v_status.processing, 'max_queue_size', v_limit,
      'oldest_pending', v_status.oldest_pending);
  RETURN QUERY SELECT 'endpoints',
    CASE WHEN count(*) FILTER (WHERE e.circuit <> 'closed' OR e.disabled_by = 'gone') > 0 THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('circuits_not_closed', count(*) FILTER (WHERE e.circuit <> 'closed'),
      'gone', count(*) FILTER (WHERE e.disabled_by = 'gone'), 'paused', count(*) FILTER (WHERE e.paused))
    FROM postrider._endpoints e WHERE e.dropped_at IS NULL;
  RETURN QUERY SELECT 'locks',
    CASE WHEN bool_or(w.stops_delivery) THEN 'critical' WHEN count(*) > 0 THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('held', coalesce(jsonb_agg(jsonb_build_object('lock', w.lock, 'session', w.session, 'since', w.since)
                                          ORDER BY w.since), '[]'))
    FROM (SELECT n.lock, n.session, n.since, n.stops_delivery FROM postrider._now_in_the_way() n WHERE v_live > 0
          UNION ALL
          -- Without a node nothing was stored: these hold a lock now, for an unknown time.
          SELECT DISTINCT h.lock, h.session, NULL::timestamptz, h.stops_delivery FROM postrider._lock_holders() h WHERE v_live = 0) AS w;
  RETURN QUERY SELECT 'dead_letters', CASE WHEN v_status.dead > 0 THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('failed', v_status.dead);
  RETURN QUERY SELECT 'archive',
    CASE WHEN v_ahead IS NULL OR v_ahead <= postrider._month(v_now) OR v_stray THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('months_until', v_ahead::date, 'rows_in_default', v_stray);
END $$;

-- Figures under the names of /metrics. The oldest hundred endpoints have their own series, so that a series stays with its endpoint;
-- the others are summed up as (others), and where a sum makes no sense the worst value is shown. Attempts are those that all nodes
-- reported; /metrics of a node has only its own. kind: counter or gauge.
CREATE FUNCTION postrider.metrics() RETURNS TABLE (name text, labels jsonb, value double precision, kind text)
-- The planner overestimates the rows and would use JIT.
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := postrider._now();
BEGIN
  RETURN QUERY
    WITH every AS MATERIALIZED (
      SELECT e.*, row_number() OVER (ORDER BY e.endpoint_id) AS place FROM postrider._endpoint_statuses() e
    ), bounded AS (
      SELECT CASE WHEN place <= 100 THEN name ELSE '(others)' END AS endpoint, min(place) AS place,
             sum(pending) AS pending, sum(processing) AS processing, sum(dead) AS dead,
             min(oldest_pending) AS oldest_pending,
             max(CASE circuit WHEN 'closed' THEN 0 WHEN 'half_open' THEN 1 ELSE 2 END) AS circuit
      FROM every GROUP BY 1
    ), attempted AS (
      -- Attempts of dropped endpoints stay in (others), so that no counter shrinks.
      SELECT coalesce(e.name, '(others)') AS endpoint, coalesce(min(e.place), 101) AS place, sum(r.delivered) AS delivered,
             sum(r.retryable) AS retryable, sum(r.permanent) AS permanent, sum(r.gone) AS gone, sum(r.lost) AS lost
      FROM postrider._results r LEFT JOIN every e ON e.endpoint_id = r.endpoint_id AND e.place <= 100 GROUP BY 1
    ), figures (place, line, name, labels, value) AS (
      SELECT 0, f.* FROM postrider._totals() t, postrider._store s, LATERAL (VALUES
        (1, 'postrider_messages', '{"state": "pending"}'::jsonb, t.pending::double precision),
        (2, 'postrider_messages', '{"state": "processing"}', t.processing),
        (3, 'postrider_messages', '{"state": "dead"}', t.dead),
        (4, 'postrider_oldest_pending_age_seconds', '{}',
          postrider._seconds_between((SELECT min(oldest_pending) FROM every), v_now)),
        (5, 'postrider_paused', '{}', (s.paused_because IS NOT NULL)::integer),
        (6, 'postrider_endpoints', '{"state": "enabled"}', (SELECT count(*) FROM every WHERE enabled AND NOT paused)),
        (7, 'postrider_endpoints', '{"state": "paused"}', (SELECT count(*) FROM every WHERE enabled AND paused)),
        (8, 'postrider_endpoints', '{"state": "disabled"}', (SELECT count(*) FROM every WHERE NOT enabled)),
        (9, 'postrider_retention_lag_seconds', '{"of": "dlq"}', postrider._seconds_between(
          (SELECT d.died_at FROM postrider.dlq d WHERE NOT d.holds_key ORDER BY d.died_at LIMIT 1),
          v_now - postrider._setting('dlq_retention_days')::integer * interval '24 hours')),
        (10, 'postrider_retention_lag_seconds', '{"of": "event_log"}', postrider._seconds_between(
          (SELECT l.at FROM postrider.event_log l ORDER BY l.at LIMIT 1),
          v_now - postrider._setting('event_log_retention_days')::integer * interval '24 hours')),
        (11, 'postrider_retention_lag_seconds', '{"of": "archive"}', postrider._seconds_between(
          ((SELECT min(m.month) FROM postrider._months('archive') m) + interval '1 month') AT TIME ZONE 'UTC',
          (v_now AT TIME ZONE 'UTC' - postrider._setting('archive_retention_months')::integer * interval '1 month')
            AT TIME ZONE 'UTC')),
        (12, 'postrider_nodes', '{"state": "live"}',
          (SELECT count(*) FROM postrider.nodes n WHERE n.state = 'live' AND n.lease_until > v_now))
      ) AS f
      UNION ALL
      SELECT 0, 13, format('postrider_%s_total', c.name), '{}', sum(c.value)
      FROM (SELECT name, value FROM postrider._counts
            UNION ALL VALUES ('capture_skipped', 0), ('evictions', 0), ('publish_skipped', 0)) AS c (name, value)
      GROUP BY c.name
      UNION ALL
      SELECT b.place, f.* FROM bounded b, LATERAL (VALUES
        (1, 'postrider_endpoint_messages', jsonb_build_object('endpoint', b.endpoint, 'state', 'pending'),
          b.pending::double precision),
        (2, 'postrider_endpoint_messages', jsonb_build_object('endpoint', b.endpoint, 'state', 'processing'), b.processing),
        (3, 'postrider_endpoint_messages', jsonb_build_object('endpoint', b.endpoint, 'state', 'dead'), b.dead),
        (4, 'postrider_endpoint_oldest_pending_age_seconds', jsonb_build_object('endpoint', b.endpoint),
          postrider._seconds_between(b.oldest_pending, v_now)),
        (5, 'postrider_endpoint_circuit_state', jsonb_build_object('endpoint', b.endpoint), b.circuit),
        -- Nothing is hot yet.
        (6, 'postrider_endpoint_mode', jsonb_build_object('endpoint', b.endpoint), 0)
      ) AS f
      UNION ALL
      SELECT a.place, 6 + f.line, 'postrider_attempts_total',
             jsonb_build_object('endpoint', a.endpoint, 'outcome', f.outcome, 'class', f.class), f.value
      FROM attempted a, LATERAL (VALUES
        (1, 'delivered', 'none', a.delivered), (2, 'failed', 'retryable', a.retryable),
        (3, 'failed', 'permanent', a.permanent), (4, 'failed', 'gone', a.gone), (5, 'lost', 'retryable', a.lost)
      ) AS f (line, outcome, class, value)
    )
    SELECT f.name, f.labels, f.value, CASE WHEN f.name ~ '_total$' THEN 'counter' ELSE 'gauge' END
    FROM figures f ORDER BY f.place, f.line, f.name;
END $$;
