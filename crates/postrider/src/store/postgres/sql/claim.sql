-- Claim: find due messages, record the claim, return them. Never reads messages that are not due, never waits for an application,
-- and changes no message: a claim is one row, however many messages it holds.

-- Ids that nodes have claimed; some may have left the queue already. PL/pgSQL, like everything on the path of a message: an SQL
-- function is planned at every call (130 instead of 8 microseconds here).
CREATE FUNCTION postrider._claimed_ids() RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN ARRAY(SELECT unnest(ids) FROM postrider._claims);
END $$;

CREATE FUNCTION postrider._is_claimed(p_id bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT FROM postrider._claims WHERE p_id = ANY (ids));
END $$;

-- A rate limit as a virtual schedule: how many of p_wanted may start now, the new position of the schedule, and when the next one
-- may start. The same arithmetic as in rate.rs, in microseconds.
CREATE FUNCTION postrider._rate_grant(
  p_limit jsonb, p_position timestamptz, p_now timestamptz, p_wanted integer,
  OUT granted integer, OUT new_position timestamptz, OUT next_at timestamptz
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_limit bigint := (p_limit->>'limit')::bigint;
  v_interval bigint := CASE p_limit->>'interval' WHEN 'second' THEN 1000000 WHEN 'minute' THEN 60000000
                       ELSE 3600000000 END;
  v_burst bigint := coalesce((p_limit->>'burst')::bigint, v_limit);
  -- Rounded up, so that the burst fits in.
  v_span bigint := (v_burst * v_interval + v_limit - 1) / v_limit;
  v_ahead bigint := least(greatest(extract(epoch FROM p_position - p_now) * 1000000, 0), v_span);
BEGIN
  v_ahead := coalesce(v_ahead, 0);
  granted := least(greatest((v_span - v_ahead) * v_limit / v_interval, 0), p_wanted);
  v_ahead := v_ahead + (granted * v_interval + v_limit - 1) / v_limit;
  new_position := p_now + v_ahead * interval '1 microsecond';
  next_at := p_now + greatest(v_ahead + (v_interval + v_limit - 1) / v_limit - v_span, 0) * interval '1 microsecond';
END $$;

-- A message that was archived because it was past its expiry.
CREATE TYPE postrider._expired AS (
  id bigint,
  endpoint_id bigint,
  attempts integer
);

CREATE TYPE postrider._claim_answer AS (
  want integer,
  -- The message; null in the last row of each want, which says when to ask again.
  id bigint,
  attempt integer,
  attempts_before integer,
  losses integer,
  endpoint_id bigint,
  priority smallint,
  due_at timestamptz,
  created_at timestamptz,
  expires_at timestamptz,
  correlation_id uuid,
  content_type text,
  ordering_key text,
  event_type text,
  headers jsonb,
  options jsonb,
  payload bytea,
  -- now, at, nothing: when to ask again. expired: this message expired and was archived.
  next text,
  next_at timestamptz
);

-- Each index of the arrays is one want: an endpoint, how many messages, and which: `due`, `probe`, or `suspects` (ids in
-- p_suspects). p_after_*: where the last claim of the endpoint ended, so that deleted messages before it are not walked over
-- again; null starts from the beginning. Endpoints are sorted, so that two nodes cannot deadlock.
CREATE FUNCTION postrider._claim(
  p_node bigint, p_batch bigint, p_alone boolean, p_endpoints bigint[], p_rooms integer[], p_picks text[],
  p_suspects jsonb, p_after_priority smallint[], p_after_due timestamptz[], p_after_id bigint[]
) RETURNS SETOF postrider._claim_answer LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz;
  -- Another node's claim holds the lock of these endpoints for too long.
  v_busy bigint[] := '{}';
  v_endpoint postrider.endpoints;
  v_noted postrider._endpoints;
  v_position timestamptz;
  v_state record;
  v_taken bigint[] := '{}';
  v_got bigint[];
  -- The rows are locked, so their ctids stay valid.
  v_rows tid[];
  v_expired postrider._expired[];
  v_gone postrider._expired;
  v_room integer;
  v_rate record;
  v_next text;
  v_next_at timestamptz;
  -- Endpoints with a message that just became ready, which may be before p_after_*.
  v_unblocked bigint[] := '{}';
BEGIN
  -- One claim per endpoint at a time, so that it sees what was claimed before.
  FOR i IN 1 .. cardinality(p_endpoints) LOOP
    -- After one timeout, do not wait for further busy endpoints.
    IF NOT pg_try_advisory_xact_lock(:lock_endpoint_claims, p_endpoints[i]::integer)
       AND (cardinality(v_busy) > 0 OR NOT postrider._wait_for_claims(p_endpoints[i])) THEN
      v_busy := v_busy || p_endpoints[i];
    END IF;
  END LOOP;
  v_now := postrider._now();
  SELECT paused_because IS NOT NULL AS paused, postrider._claimed_ids() AS claimed,
         EXISTS (SELECT FROM postrider._stalled_keys) AS stalled,
         EXISTS (SELECT FROM postrider.nodes WHERE id = p_node AND state = 'live') AS live,
         -- Checked once for all endpoints, because mostly there is nothing.
         EXISTS (SELECT FROM postrider._circuits WHERE endpoint_id = ANY (p_endpoints) AND state <> 'closed')
           OR EXISTS (SELECT FROM postrider._holds WHERE endpoint_id = ANY (p_endpoints) AND until > v_now)
           OR EXISTS (SELECT FROM postrider._gone WHERE endpoint_id = ANY (p_endpoints)) AS noted
  INTO v_state FROM postrider._store;
  IF NOT v_state.live THEN
    PERFORM postrider._conflict(format('node %s lost its lease', p_node));
  END IF;
  IF v_state.stalled THEN
    -- A key with global scope may advance at an endpoint that this claim does not want.
    v_unblocked := ARRAY(SELECT postrider._advance_stalled_keys(100, 100));
    PERFORM postrider._tell_unblocked(e) FROM unnest(v_unblocked) AS e
    WHERE NOT EXISTS (SELECT FROM unnest(p_endpoints, p_picks) AS w (endpoint, pick) WHERE w.endpoint = e AND w.pick = 'due');
  END IF;
  FOR i IN 1 .. cardinality(p_endpoints) LOOP
    SELECT * INTO v_endpoint FROM postrider.endpoints WHERE id = p_endpoints[i] AND dropped_at IS NULL;
    IF v_state.noted THEN
      SELECT * INTO v_noted FROM postrider._endpoints WHERE id = p_endpoints[i];
    END IF;
    v_next := 'nothing';
    v_next_at := NULL;
    v_got := '{}';
    v_rows := '{}';
    v_expired := '{}';
    v_room := p_rooms[i];
    IF v_endpoint.id = ANY (v_busy) THEN
      v_next := 'at';
      v_next_at := v_now + interval '1 second';
    ELSIF v_endpoint.id IS NULL OR v_state.paused OR v_endpoint.paused
       OR v_endpoint.disabled_by IS NOT NULL OR v_noted.disabled_by IS NOT NULL
       OR (v_noted.circuit = 'half_open' AND NOT (p_picks[i] = 'probe' AND v_noted.circuit_probe_node = p_node))
    THEN
      NULL;
    ELSIF v_noted.circuit = 'open' THEN
      v_next := 'at';
      v_next_at := v_noted.circuit_until;
    ELSIF v_noted.held_until > v_now THEN
      v_next := 'at';
      v_next_at := v_noted.held_until;
    ELSE
      IF v_endpoint.options ? 'rate_limit' THEN
        v_position := (SELECT position FROM postrider._rates WHERE endpoint_id = v_endpoint.id);
        SELECT * INTO v_rate FROM postrider._rate_grant(
          v_endpoint.options->'rate_limit', v_position, v_now, v_room);
        v_room := v_rate.granted;
      END IF;
      CASE p_picks[i]
        WHEN 'due' THEN
          SELECT got, rows, expired, next, next_at INTO v_got, v_rows, v_expired, v_next, v_next_at FROM postrider._pick_due(
            v_endpoint.id, v_room, v_state.claimed || v_taken, v_now,
            CASE WHEN v_endpoint.id <> ALL (v_unblocked) THEN p_after_priority[i] END, p_after_due[i], p_after_id[i]);
        WHEN 'probe' THEN
          SELECT got, next, next_at INTO v_got, v_next, v_next_at FROM postrider._pick_probe(
            v_endpoint.id, v_room, v_state.claimed || v_taken, v_now);
        WHEN 'suspects' THEN
          SELECT got, expired INTO v_got, v_expired FROM postrider._pick_suspects(
            ARRAY(SELECT jsonb_array_elements_text(p_suspects->(i - 1))::bigint LIMIT v_room), v_state.claimed, v_now);
      END CASE;
      IF p_picks[i] <> 'due' THEN
        v_rows := ARRAY(SELECT q.ctid FROM unnest(v_got) WITH ORDINALITY AS g (id, position)
                        JOIN postrider.queue q ON q.id = g.id ORDER BY g.position);
      END IF;
      IF v_endpoint.options ? 'rate_limit' THEN
        IF cardinality(v_got) > 0 THEN
          SELECT * INTO v_rate FROM postrider._rate_grant(
            v_endpoint.options->'rate_limit', v_position, v_now, cardinality(v_got));
          INSERT INTO postrider._rates (endpoint_id, position) VALUES (v_endpoint.id, v_rate.new_position)
          ON CONFLICT (endpoint_id) DO UPDATE SET position = excluded.position;
        END IF;
        IF v_next = 'now' AND v_room < p_rooms[i] THEN
          v_next := 'at';
          v_next_at := v_rate.next_at;
        END IF;
      END IF;
    END IF;
    v_taken := v_taken || v_got;
    RETURN QUERY
      SELECT i, q.id, q.attempts + 1, q.attempts_before, q.losses::integer, q.endpoint_id, q.priority, q.due_at,
             q.created_at, q.expires_at, q.correlation_id, q.content_type, q.ordering_key, q.event_type, q.headers,
             q.options, q.payload, NULL::text, NULL::timestamptz
      FROM unnest(v_rows) WITH ORDINALITY AS g (row, position) JOIN postrider.queue q ON q.ctid = g.row
      ORDER BY g.position;
    FOREACH v_gone IN ARRAY v_expired LOOP
      RETURN NEXT (i, v_gone.id, v_gone.attempts, NULL, NULL, p_endpoints[i], NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, NULL, NULL, NULL, NULL, 'expired', NULL)::postrider._claim_answer;
    END LOOP;
    RETURN NEXT (i, NULL, NULL, NULL, NULL, p_endpoints[i], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                 NULL, NULL, v_next, v_next_at)::postrider._claim_answer;
  END LOOP;
  IF cardinality(v_taken) > 0 THEN
    PERFORM postrider._hold_bound('claims');
    INSERT INTO postrider._claim_rows (node_id, batch, started_at, alone, ids)
    VALUES (p_node, p_batch, v_now, p_alone, v_taken);
  END IF;
END $$;

-- Waits for other claims of this endpoint, up to a second. A node that is frozen or cut off may hold the lock for longer; other
-- endpoints do not wait for that.
CREATE FUNCTION postrider._wait_for_claims(p_endpoint bigint) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '1s' AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(:lock_endpoint_claims, p_endpoint::integer);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  PERFORM postrider._hang_up_on_frozen(p_endpoint);
  RETURN false;
END $$;

-- Ends sessions that hold the lock and do not read their answer. Only on Unix sockets, where the server has no timeout for that.
CREATE FUNCTION postrider._hang_up_on_frozen(p_endpoint bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid = :lock_endpoint_claims AND l.objid = p_endpoint::oid
    AND a.datname = current_database() AND a.client_addr IS NULL AND a.wait_event = 'ClientWrite'
    AND a.query_start < clock_timestamp() - interval '10 seconds';
END $$;

-- Picks by priority, due time and id, and archives the expired messages that it meets.
CREATE FUNCTION postrider._pick_due(
  p_endpoint bigint, p_room integer, p_claimed bigint[], p_now timestamptz, p_after_priority smallint,
  p_after_due timestamptz, p_after_id bigint, OUT got bigint[], OUT rows tid[],
  OUT expired postrider._expired[], OUT next text,
  OUT next_at timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
  v_below smallint := 32767;
  v_priority smallint;
  v_first_due timestamptz;
  v_found bigint[];
  v_rows tid[];
  v_expired bigint[];
  v_due timestamptz;
  v_rest record;
BEGIN
  got := '{}';
  rows := '{}';
  expired := '{}';
  next := 'nothing';
  LOOP
    IF v_below = 32767 AND p_after_priority IS NOT NULL THEN
      SELECT q.priority, q.due_at INTO v_priority, v_first_due FROM postrider.queue q
      WHERE q.place = :ready AND q.endpoint_id = p_endpoint AND q.priority > p_after_priority
      ORDER BY q.priority DESC, q.due_at LIMIT 1;
      IF NOT FOUND THEN
        v_priority := p_after_priority;
        v_first_due := p_after_due;
      END IF;
    ELSE
      SELECT q.priority, q.due_at INTO v_priority, v_first_due FROM postrider.queue q
      WHERE q.place = :ready AND q.endpoint_id = p_endpoint AND q.priority < v_below
      ORDER BY q.priority DESC, q.due_at LIMIT 1;
      EXIT WHEN NOT FOUND;
    END IF;
    v_below := v_priority;
    IF v_first_due > p_now THEN
      next := 'at';
      next_at := least(next_at, v_first_due);
      CONTINUE;
    END IF;
    IF cardinality(got) >= p_room THEN
      next := 'now';
      next_at := NULL;
      RETURN;
    END IF;
    SELECT array_agg(f.id) FILTER (WHERE f.fresh), array_agg(f.ctid) FILTER (WHERE f.fresh),
      array_agg(f.id) FILTER (WHERE NOT f.fresh)
    INTO v_found, v_rows, v_expired
    FROM (
      SELECT q.id, q.ctid, q.expires_at IS NULL OR q.expires_at > p_now AS fresh FROM postrider.queue q
      WHERE q.place = :ready AND q.endpoint_id = p_endpoint AND q.priority = v_priority AND q.due_at <= p_now
        AND (q.due_at, q.id) > (CASE WHEN v_priority = p_after_priority THEN p_after_due ELSE '-infinity' END,
                                CASE WHEN v_priority = p_after_priority THEN p_after_id ELSE 0 END)
        -- A subquery is hashed; both sides can have hundreds of ids.
        AND q.id NOT IN (SELECT unnest(p_claimed))
      ORDER BY q.due_at, q.id
      LIMIT p_room - cardinality(got)
      FOR UPDATE SKIP LOCKED
    ) AS f;
    IF v_expired IS NOT NULL THEN
      expired := expired || ARRAY(
        SELECT e FROM unnest(v_expired) AS id, postrider._expire_message(id) AS e WHERE e.id IS NOT NULL);
    END IF;
    got := got || coalesce(v_found, '{}');
    rows := rows || coalesce(v_rows, '{}');
    IF cardinality(got) >= p_room OR cardinality(v_expired) > 0 THEN
      next := 'now';
      next_at := NULL;
      RETURN;
    END IF;
    -- The rest of this priority is due later.
    SELECT q.due_at INTO v_due FROM postrider.queue q
    WHERE q.place = :ready AND q.endpoint_id = p_endpoint AND q.priority = v_priority AND q.due_at > p_now
    ORDER BY q.due_at LIMIT 1;
    IF FOUND THEN
      next := 'at';
      next_at := least(next_at, v_due);
    END IF;
  END LOOP;
  -- The backlog ended: look for messages that appeared before p_after_*.
  IF p_after_priority IS NOT NULL THEN
    SELECT * INTO v_rest FROM postrider._pick_due(
      p_endpoint, p_room - cardinality(got), p_claimed || got, p_now, NULL, NULL, NULL);
    got := got || v_rest.got;
    rows := rows || v_rest.rows;
    expired := expired || v_rest.expired;
    next := v_rest.next;
    next_at := v_rest.next_at;
  END IF;
END $$;

-- Picks one: the due message with the fewest attempts, among the first thousand of each priority; a suspect when nothing else is
-- due.
CREATE FUNCTION postrider._pick_probe(
  p_endpoint bigint, p_room integer, p_claimed bigint[], p_now timestamptz,
  OUT got bigint[], OUT next text, OUT next_at timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
  v_id bigint;
BEGIN
  got := '{}';
  next := 'now';
  IF p_room = 0 THEN
    RETURN;
  END IF;
  SELECT c.id INTO v_id
  FROM generate_series(0, 10) AS p (priority),
       LATERAL (SELECT q.id, q.attempts, q.priority, q.due_at FROM postrider.queue q
                WHERE q.place = :ready AND q.endpoint_id = p_endpoint AND q.priority = p.priority AND q.due_at <= p_now
                  AND (q.expires_at IS NULL OR q.expires_at > p_now) AND q.id <> ALL (p_claimed)
                ORDER BY q.due_at, q.id LIMIT 1000) AS c
  ORDER BY c.attempts, c.priority DESC, c.due_at, c.id LIMIT 1;
  IF v_id IS NULL THEN
    SELECT q.id INTO v_id FROM postrider.queue q
    WHERE q.place = :on_probation AND q.endpoint_id = p_endpoint AND q.due_at <= p_now
      AND (q.expires_at IS NULL OR q.expires_at > p_now) AND q.id <> ALL (p_claimed)
    ORDER BY q.attempts, q.due_at LIMIT 1;
  END IF;
  IF v_id IS NOT NULL AND EXISTS (SELECT FROM postrider.queue WHERE id = v_id FOR UPDATE SKIP LOCKED) THEN
    got := ARRAY[v_id];
    RETURN;
  END IF;
  -- A due message that could not be picked is locked for a moment: ask again a little later.
  next_at := postrider._oldest_pending(p_endpoint, p_claimed);
  IF next_at IS NULL THEN
    next := 'nothing';
  ELSE
    next := 'at';
    next_at := greatest(next_at, p_now + interval '100 milliseconds');
  END IF;
END $$;

-- Picks those of these ids that are due, pending and still on probation.
CREATE FUNCTION postrider._pick_suspects(
  p_ids bigint[], p_claimed bigint[], p_now timestamptz, OUT got bigint[], OUT expired postrider._expired[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_row record;
  v_expired postrider._expired;
BEGIN
  got := '{}';
  expired := '{}';
  FOR v_row IN
    SELECT q.id, q.expires_at FROM postrider.queue q
    WHERE q.id = ANY (p_ids) AND q.place = :on_probation AND q.due_at <= p_now AND q.id <> ALL (p_claimed)
    ORDER BY array_position(p_ids, q.id) FOR UPDATE SKIP LOCKED
  LOOP
    IF v_row.expires_at <= p_now THEN
      v_expired := postrider._expire_message(v_row.id);
      IF v_expired.id IS NOT NULL THEN
        expired := expired || v_expired;
      END IF;
    ELSE
      got := got || v_row.id;
    END IF;
  END LOOP;
END $$;

-- The earliest due time of the endpoint's claimable messages; p_claimed are not claimable.
CREATE FUNCTION postrider._oldest_pending(p_endpoint bigint, p_claimed bigint[]) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT min(first.due_at)
  FROM generate_series(0, 10) AS p (priority),
       LATERAL (SELECT q.due_at FROM postrider.queue q
                WHERE q.place = :ready AND q.endpoint_id = p_endpoint AND q.priority = p.priority
                  AND q.id <> ALL (p_claimed)
                ORDER BY q.due_at LIMIT 1) AS first
$$;

-- Endpoints that have claimable messages, one step through the index for each.
CREATE FUNCTION postrider._waiting() RETURNS TABLE (endpoint_id bigint, due_at timestamptz)
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE step (endpoint_id) AS (
    (SELECT q.endpoint_id FROM postrider.queue q WHERE q.place = :ready ORDER BY q.endpoint_id LIMIT 1)
    UNION ALL
    SELECT (SELECT q.endpoint_id FROM postrider.queue q
            WHERE q.place = :ready AND q.endpoint_id > step.endpoint_id ORDER BY q.endpoint_id LIMIT 1)
    FROM step WHERE step.endpoint_id IS NOT NULL
  )
  SELECT step.endpoint_id, pending.due_at
  FROM step, LATERAL (SELECT postrider._oldest_pending(step.endpoint_id, postrider._claimed_ids())) AS pending (due_at)
  WHERE step.endpoint_id IS NOT NULL AND pending.due_at IS NOT NULL
$$;

CREATE FUNCTION postrider._suspects(p_limit integer)
RETURNS TABLE (id bigint, endpoint_id bigint, losses integer, due_at timestamptz, budget_used integer, options jsonb)
LANGUAGE sql STABLE AS $$
  SELECT q.id, q.endpoint_id, q.losses::integer, q.due_at, q.attempts - q.attempts_before, q.options
  FROM postrider.queue q
  WHERE q.place = :on_probation AND NOT postrider._is_claimed(q.id)
  ORDER BY q.due_at LIMIT p_limit
$$;
