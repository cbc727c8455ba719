-- Nodes and their leases.

CREATE FUNCTION postrider._node_lease() RETURNS interval LANGUAGE sql STABLE
AS $$ SELECT postrider._setting('node_lease')::integer * interval '1 second' $$;

CREATE FUNCTION postrider._live_nodes() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT count(*) FROM postrider.nodes WHERE state = 'live' AND lease_until > postrider._now()
$$;

-- A node reached the store. Heartbeats come three times a lease, so half a lease without any means that the store was away.
CREATE FUNCTION postrider._note_sign_of_life(p_now timestamptz, p_lease interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT max(heartbeat_at) FROM postrider.nodes) > p_now - p_lease / 2
     AND EXISTS (SELECT FROM postrider._judgement WHERE server_started_at = pg_postmaster_start_time()) THEN
    RETURN;
  END IF;
  INSERT INTO postrider._judgement AS j (earliest_at, server_started_at)
  VALUES (p_now + p_lease, pg_postmaster_start_time())
  ON CONFLICT (single) DO UPDATE
    SET earliest_at = excluded.earliest_at, server_started_at = excluded.server_started_at;
END $$;

CREATE FUNCTION postrider._join(p_name text, OUT node bigint, OUT lease interval) LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := postrider._now();
BEGIN
  lease := postrider._node_lease();
  PERFORM postrider._note_sign_of_life(v_now, lease);
  INSERT INTO postrider.nodes (name, joined_at, heartbeat_at, lease_until)
  VALUES (p_name, v_now, v_now, v_now + lease) RETURNING id INTO node;
  PERFORM postrider._log_event('node.joined', p_name, jsonb_build_object('node', node));
END $$;

-- Confirms the lease and returns for how long; 55000 once it was lost.
CREATE FUNCTION postrider._heartbeat(p_node bigint) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := postrider._now();
  v_lease interval := postrider._node_lease();
BEGIN
  PERFORM postrider._note_sign_of_life(v_now, v_lease);
  UPDATE postrider.nodes SET heartbeat_at = v_now, lease_until = v_now + v_lease WHERE id = p_node AND state = 'live';
  IF NOT FOUND THEN
    PERFORM postrider._conflict(format('node %s lost its lease', p_node));
  END IF;
  RETURN v_lease;
END $$;

CREATE FUNCTION postrider._end_node(p_node bigint, p_state text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
BEGIN
  UPDATE postrider.nodes SET state = p_state WHERE id = p_node AND state = 'live' RETURNING name INTO v_name;
  IF FOUND THEN
    PERFORM postrider._log_event('node.' || p_state, v_name, jsonb_build_object('node', p_node));
  END IF;
END $$;

CREATE FUNCTION postrider._refuse_beside_nodes(p_then text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_live text := (SELECT string_agg(name, ', ' ORDER BY id) FROM postrider.nodes
                  WHERE state = 'live' AND lease_until > postrider._now());
BEGIN
  IF v_live IS NOT NULL THEN
    PERFORM postrider._conflict(format(
      'nodes are running on this store: %s; stop them, or wait for the lease of one that was killed, and %s',
      v_live, p_then));
  END IF;
END $$;

-- Waits up to a second for transactions that have locked a claim of this node, or a message of one.
CREATE FUNCTION postrider._wait_for_holders(p_node bigint) RETURNS void LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  v_ids bigint[];
BEGIN
  SELECT array_agg(id) INTO v_ids
  FROM (SELECT ids FROM postrider._claims WHERE node_id = p_node ORDER BY batch FOR UPDATE) AS c, unnest(c.ids) AS id;
  PERFORM FROM postrider.queue WHERE id = ANY (v_ids) AND ordering_key IS NOT NULL ORDER BY id FOR UPDATE;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  NULL;
END $$;

-- A clean stop: the node's claims go back as if they had not been made. Claims and keyed messages that another transaction has
-- locked stay behind, and other nodes treat them as lost.
CREATE FUNCTION postrider._leave_node(p_node bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_batches bigint[];
  v_ids bigint[];
  v_keyed bigint[];
  v_message record;
BEGIN
  PERFORM FROM postrider.nodes WHERE id = p_node AND state = 'live' FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM postrider._wait_for_holders(p_node);
  v_batches := ARRAY(SELECT batch FROM postrider._claims WHERE node_id = p_node FOR UPDATE SKIP LOCKED);
  v_ids := ARRAY(SELECT unnest(ids) FROM postrider._claims WHERE node_id = p_node AND batch = ANY (v_batches));
  v_keyed := ARRAY(SELECT id FROM postrider.queue WHERE id = ANY (v_ids) AND ordering_key IS NOT NULL
                   FOR UPDATE SKIP LOCKED);
  UPDATE postrider._claims SET cut = true, ids = ARRAY(
    SELECT q.id FROM postrider.queue q
    WHERE q.id = ANY (ids) AND q.ordering_key IS NOT NULL AND q.id <> ALL (v_keyed))
  WHERE node_id = p_node AND batch = ANY (v_batches);
  DELETE FROM postrider._claims WHERE node_id = p_node AND batch = ANY (v_batches) AND ids = '{}';
  FOR v_message IN
    SELECT id, key_scope, ordering_key, attempts, delivered_late FROM postrider.queue WHERE id = ANY (v_keyed) ORDER BY id
  LOOP
    IF v_message.delivered_late THEN
      PERFORM postrider._tell_unblocked(postrider._leave(v_message.id, 'completed', v_message.attempts));
      PERFORM postrider._departed(1);
    ELSE
      PERFORM postrider._tell_unblocked(
        postrider._put_back(v_message.id, postrider._key(v_message.key_scope, v_message.ordering_key)));
    END IF;
  END LOOP;
  PERFORM postrider._tell_unblocked(endpoint_id)
  FROM (SELECT DISTINCT endpoint_id FROM postrider.queue WHERE id = ANY (v_ids)) AS returned;
  PERFORM postrider._end_node(p_node, 'left');
END $$;

-- May leases run out now? Not before nodes had one lease to reconnect to this server.
CREATE FUNCTION postrider._may_judge(p_now timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM postrider._judgement
                 WHERE server_started_at = pg_postmaster_start_time() AND earliest_at <= p_now)
$$;

-- Claims of nodes whose lease ran out, and claims that were not settled within stale_recovery_timeout.
CREATE FUNCTION postrider._lost_claims(p_limit integer)
RETURNS TABLE (id bigint, endpoint_id bigint, node_id bigint, batch bigint, attempt integer, attempts_before integer,
               losses integer, alone boolean, started_at timestamptz, expires_at timestamptz, options jsonb)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := postrider._now();
  v_may_judge boolean := postrider._may_judge(v_now);
  v_stale timestamptz := '-infinity';
BEGIN
  IF v_may_judge AND EXISTS (SELECT FROM postrider.nodes n WHERE n.state = 'live' AND n.lease_until <= v_now) THEN
    PERFORM postrider._end_node(n.id, 'lost')
    FROM (SELECT n.id FROM postrider.nodes n WHERE n.state = 'live' AND n.lease_until <= v_now
          ORDER BY n.id FOR UPDATE SKIP LOCKED) AS n;
  END IF;
  IF v_may_judge THEN
    v_stale := v_now - (SELECT l.stale_recovery_timeout FROM postrider._limits l);
  END IF;
  IF NOT EXISTS (SELECT FROM postrider._current_claims() c WHERE c.started_at <= v_stale
                   OR NOT EXISTS (SELECT FROM postrider.nodes n WHERE n.id = c.node_id AND n.state = 'live')) THEN
    RETURN;
  END IF;
  -- Rows of lost claims whose messages have all left the queue.
  DELETE FROM postrider._claims c WHERE (c.node_id, c.batch) IN (
    SELECT r.node_id, r.batch
    FROM postrider._current_claims() o JOIN postrider._claim_rows r ON r.node_id = o.node_id AND r.batch = o.batch
    WHERE (o.started_at <= v_stale
           OR NOT EXISTS (SELECT FROM postrider.nodes n WHERE n.id = o.node_id AND n.state = 'live'))
      AND NOT EXISTS (SELECT FROM postrider.queue q WHERE q.id = ANY (o.ids))
    FOR UPDATE OF r SKIP LOCKED);
  RETURN QUERY
    SELECT q.id, q.endpoint_id, c.node_id, c.batch, q.attempts + 1, q.attempts_before, q.losses::integer, c.alone,
           c.started_at, q.expires_at, q.options
    FROM postrider._current_claims() c JOIN postrider._claim_rows r ON r.node_id = c.node_id AND r.batch = c.batch,
      unnest(c.ids) AS held (id), postrider.queue q
    WHERE (c.started_at <= v_stale
           OR NOT EXISTS (SELECT FROM postrider.nodes n WHERE n.id = c.node_id AND n.state = 'live'))
      AND q.id = held.id
    LIMIT p_limit
    -- Locked rows are skipped until the next call.
    FOR UPDATE OF r, q SKIP LOCKED;
END $$;

-- Nodes that run, and nodes that ended lately.
CREATE FUNCTION postrider.get_worker_status()
RETURNS TABLE (node_id bigint, name text, state text, joined_at timestamptz, heartbeat_at timestamptz,
               lease_until timestamptz, seconds_since_heartbeat numeric, in_flight bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
  SELECT n.id, n.name, n.state, n.joined_at, n.heartbeat_at, n.lease_until,
         round(extract(epoch FROM postrider._now() - n.heartbeat_at)::numeric, 3),
         (SELECT count(*) FROM postrider._current_claims() c, unnest(c.ids) AS held (id)
          JOIN postrider.queue q ON q.id = held.id WHERE c.node_id = n.id)
  FROM postrider.nodes n ORDER BY n.id
$$;

-- Deletes nodes that ended long ago and have no claims.
CREATE FUNCTION postrider._clean_nodes(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_before timestamptz := postrider._now()
    - postrider._setting('event_log_retention_days')::integer * interval '24 hours';
  v_count integer;
BEGIN
  DELETE FROM postrider.nodes WHERE id IN (
    SELECT id FROM postrider.nodes n WHERE state <> 'live' AND heartbeat_at <= v_before
      AND NOT EXISTS (SELECT FROM postrider._current_claims() c WHERE c.node_id = n.id)
    LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;
