-- The event log: changes and lost nodes, for people.

CREATE FUNCTION postrider._log_event(p_kind text, p_subject text, p_detail jsonb) RETURNS bigint
LANGUAGE sql AS $$
  INSERT INTO postrider.event_log (at, kind, subject, detail)
  VALUES (postrider._now(), p_kind, p_subject, coalesce(p_detail, '{}')) RETURNING id
$$;

-- Deletes up to p_limit old entries, oldest first; returns how many.
CREATE FUNCTION postrider._clean_event_log(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_before timestamptz := postrider._now()
    - postrider._setting('event_log_retention_days')::integer * interval '24 hours';
  v_count integer;
BEGIN
  DELETE FROM postrider.event_log WHERE id IN (
    SELECT id FROM postrider.event_log WHERE at <= v_before ORDER BY at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Deletes everything past event_log_retention_days; returns how many.
CREATE FUNCTION postrider.cleanup_event_log() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN postrider._clean_event_log(2147483647);
END $$;
