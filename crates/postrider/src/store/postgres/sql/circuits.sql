-- Circuits, holds and attempt results of endpoints: what nodes write about endpoints.

-- A receiver asked for a pause. Stored, so that a restart does not lose it.
CREATE FUNCTION postrider._hold_endpoint(p_endpoint bigint, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._holds (endpoint_id, until) SELECT p_endpoint, p_until
  WHERE NOT EXISTS (SELECT FROM postrider._holds WHERE endpoint_id = p_endpoint AND until >= p_until);
END $$;

-- Deletes holds that have ended.
CREATE FUNCTION postrider._clean_holds(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_count integer;
BEGIN
  DELETE FROM postrider._holds WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM postrider._holds WHERE until <= postrider._now() LIMIT p_limit FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Compare-and-swap on the epoch; false when another transaction was first, or has locked the circuit. p_until: when an open circuit
-- may be probed, or how long p_probe_node has the probe of a half-open one. p_kind: of the event, default circuit.<state>.
CREATE FUNCTION postrider._move_circuit(
  p_endpoint bigint, p_from_epoch bigint, p_state text, p_epoch bigint, p_until timestamptz, p_probe_node bigint,
  p_kind text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  v_name text;
BEGIN
  UPDATE postrider._circuits c SET state = p_state, epoch = p_epoch, until = p_until, probe_node = p_probe_node
  FROM postrider.endpoints e
  WHERE c.endpoint_id = p_endpoint AND c.epoch = p_from_epoch AND e.id = p_endpoint AND e.dropped_at IS NULL
  RETURNING e.name INTO v_name;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM postrider._log_event(coalesce(p_kind, 'circuit.' || p_state), v_name, jsonb_build_object('epoch', p_epoch));
  PERFORM pg_notify('postrider', 'circuit');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;

CREATE FUNCTION postrider.reset_circuit_breaker(name text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_id bigint;
  v_epoch bigint;
BEGIN
  PERFORM postrider._begin_change();
  v_id := (postrider._endpoint(name)).id;
  SELECT epoch INTO v_epoch FROM postrider._circuits WHERE endpoint_id = v_id FOR UPDATE;
  DELETE FROM postrider._holds WHERE endpoint_id = v_id;
  PERFORM postrider._move_circuit(v_id, v_epoch, 'closed', v_epoch + 1, NULL, NULL, 'circuit.reset');
END $$;

-- For programs that deliver by themselves: reports one attempt. Within the cooldown a report does not count, because the attempt
-- began before the circuit opened; after it a report counts like a probe.
CREATE FUNCTION postrider.update_circuit_breaker(endpoint_id bigint, success boolean) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v postrider._endpoints;
  v_consecutive integer;
  v_now timestamptz := postrider._now();
  v_until timestamptz := v_now + postrider._setting('circuit_breaker_cooldown')::integer * interval '1 second';
  v_is_probe boolean;
BEGIN
  IF success IS NULL THEN
    PERFORM postrider._invalid('success', 'must be true or false');
  END IF;
  PERFORM postrider._begin_change();
  PERFORM FROM postrider._circuits c WHERE c.endpoint_id = update_circuit_breaker.endpoint_id FOR UPDATE;
  SELECT * INTO v FROM postrider._endpoints e WHERE e.id = update_circuit_breaker.endpoint_id AND e.dropped_at IS NULL;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', update_circuit_breaker.endpoint_id::text);
  END IF;
  UPDATE postrider._results r SET delivered = r.delivered + success::integer,
    retryable = r.retryable + (NOT success)::integer,
    consecutive_failures = CASE WHEN success THEN 0 ELSE r.consecutive_failures + 1 END,
    last_success_at = CASE WHEN success THEN v_now ELSE r.last_success_at END,
    last_failure_at = CASE WHEN success THEN r.last_failure_at ELSE v_now END,
    last_error = CASE WHEN success THEN r.last_error ELSE '[RETRYABLE] reported by update_circuit_breaker()' END
  WHERE r.endpoint_id = v.id;
  v_is_probe := v.circuit = 'half_open' OR (v.circuit = 'open' AND v.circuit_until <= v_now);
  IF v_is_probe AND success THEN
    PERFORM postrider._move_circuit(v.id, v.circuit_epoch, 'closed', v.circuit_epoch + 1, NULL, NULL);
  ELSIF v_is_probe THEN
    PERFORM postrider._move_circuit(v.id, v.circuit_epoch, 'open', v.circuit_epoch + 1, v_until, NULL);
  ELSIF v.circuit = 'closed' AND success THEN
    DELETE FROM postrider._reported_failures r WHERE r.endpoint_id = v.id;
  ELSIF v.circuit = 'closed' THEN
    INSERT INTO postrider._reported_failures AS r (endpoint_id, epoch, consecutive) VALUES (v.id, v.circuit_epoch, 1)
    ON CONFLICT (endpoint_id) DO UPDATE SET epoch = excluded.epoch,
      consecutive = CASE WHEN r.epoch = excluded.epoch THEN r.consecutive + 1 ELSE 1 END
    RETURNING consecutive INTO v_consecutive;
    IF v_consecutive >= postrider._setting('circuit_breaker_threshold')::integer THEN
      DELETE FROM postrider._reported_failures r WHERE r.endpoint_id = v.id;
      PERFORM postrider._move_circuit(v.id, v.circuit_epoch, 'open', v.circuit_epoch + 1, v_until, NULL);
    END IF;
  END IF;
END $$;

-- Adds the attempt results since the node's last report, and returns the endpoints that were stored. Rows locked by another
-- transaction are skipped; the node reports them again. In order, so that no two nodes wait for each other.
CREATE FUNCTION postrider._note_results(
  p_endpoints bigint[], p_delivered bigint[], p_retryable bigint[], p_permanent bigint[], p_gone bigint[], p_lost bigint[],
  p_failed_since bigint[], p_last_success_at timestamptz[], p_last_failure_at timestamptz[], p_last_errors text[]
) RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN QUERY
    WITH free AS MATERIALIZED (
      SELECT r.endpoint_id FROM postrider._results r WHERE r.endpoint_id = ANY (p_endpoints)
      ORDER BY r.endpoint_id FOR UPDATE SKIP LOCKED
    )
    UPDATE postrider._results r SET delivered = r.delivered + n.delivered, retryable = r.retryable + n.retryable,
      permanent = r.permanent + n.permanent, gone = r.gone + n.gone, lost = r.lost + n.lost,
      consecutive_failures = CASE WHEN n.last_success_at IS NULL THEN r.consecutive_failures ELSE 0 END + n.failed_since,
      last_success_at = coalesce(n.last_success_at, r.last_success_at),
      last_failure_at = coalesce(n.last_failure_at, r.last_failure_at),
      last_error = coalesce(n.last_error, r.last_error)
    FROM free JOIN unnest(p_endpoints, p_delivered, p_retryable, p_permanent, p_gone, p_lost, p_failed_since,
                          p_last_success_at, p_last_failure_at, p_last_errors)
                AS n (endpoint_id, delivered, retryable, permanent, gone, lost, failed_since, last_success_at,
                      last_failure_at, last_error) USING (endpoint_id)
    WHERE r.endpoint_id = free.endpoint_id
    RETURNING r.endpoint_id;
END $$;
