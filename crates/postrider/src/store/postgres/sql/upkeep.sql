-- What nodes do besides delivering: _upkeep() every second, _clean_up() every cleanup_interval.

-- Returns the messages that expired, and the endpoints with work that no notification told of. Waits for no lock longer than a
-- second: upkeep runs again.
CREATE FUNCTION postrider._upkeep(
  p_limit integer, p_is_idle boolean, OUT expired postrider._expired[], OUT endpoints bigint[]
) LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
BEGIN
  expired := ARRAY(SELECT e FROM postrider._expire(p_limit) AS e);
  -- Endpoints that were dropped longer ago are left to _clean_up().
  PERFORM postrider._cancel_orphans(postrider._now() - interval '1 day', p_limit);
  -- With what expires, fewer keys than one transaction may lock; more unheard sends than senders make in a second.
  endpoints := ARRAY(SELECT postrider._advance_stalled_keys(400)) || postrider._take_unheard(50000);
  -- Messages whose sender left the notification to a transaction that rolled back. A busy node would have to walk over too many
  -- messages that just left, and claims from the beginning every few seconds anyway.
  IF p_is_idle THEN
    endpoints := endpoints || ARRAY(SELECT endpoint_id FROM postrider._waiting() WHERE due_at <= postrider._now());
  END IF;
  PERFORM postrider._recount_queue();
  PERFORM postrider._disable_gone_endpoints();
END $$;

-- One bounded step of all retention. Returns whether there is more to do, and what it evicted. One node at a time; the others skip it.
CREATE FUNCTION postrider._clean_up(p_limit integer, OUT more boolean, OUT evicted jsonb[])
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
  v_left integer := p_limit;
  v_months integer := postrider._setting('archive_retention_months')::integer;
  v_evicted jsonb;
BEGIN
  more := false;
  evicted := '{}';
  IF NOT pg_try_advisory_xact_lock(:lock_store, :store_months) THEN
    RETURN;
  END IF;
  -- Settling and reading wait for a transaction that creates or drops a month: nothing else is done in it.
  IF postrider._maintain_months('archive', 3) + postrider._maintain_months('attempts', 3) > 0
     OR postrider._drop_old_month(v_months) THEN
    more := true;
    RETURN;
  END IF;
  v_left := v_left - postrider._clean_event_log(v_left);
  v_left := v_left - postrider._clean_reservations(v_left);
  v_left := v_left - postrider._clean_holds(v_left);
  v_left := v_left - postrider._clean_nodes(v_left);
  v_left := v_left - postrider._clean_replayed(v_left);
  v_left := v_left - postrider._clean_replays(v_left);
  v_left := v_left - postrider._cancel_orphans('-infinity', v_left);
  v_left := v_left - postrider._clean_old_attempts(v_months, v_left);
  v_evicted := postrider._clean_dlq(v_left);
  v_left := v_left - postrider._evicted_count(v_evicted);
  evicted := array_remove(ARRAY[v_evicted], NULL);
  IF v_left > 0 THEN
    v_evicted := postrider._evict_dlq(v_left);
    v_left := v_left - postrider._evicted_count(v_evicted);
    evicted := evicted || array_remove(ARRAY[v_evicted], NULL);
  END IF;
  more := v_left <= 0;
END $$;

CREATE FUNCTION postrider._clean_reservations(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_count integer;
BEGIN
  DELETE FROM postrider._reservations WHERE (endpoint_id, idempotency_key) IN (
    SELECT endpoint_id, idempotency_key FROM postrider._reservations WHERE until <= postrider._now()
    LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Links from replayed messages to their originals, kept as long as the archive.
CREATE FUNCTION postrider._clean_replayed(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_before timestamptz := postrider._now()
    - postrider._setting('archive_retention_months')::integer * interval '1 month';
  v_count integer;
BEGIN
  DELETE FROM postrider._replayed WHERE id IN (
    SELECT id FROM postrider._replayed WHERE at <= v_before ORDER BY at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;
