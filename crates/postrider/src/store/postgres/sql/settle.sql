-- Settle: end a claim by its fence, exactly once. The fence of a claim is its node and batch: it is current as
-- long as that row of _claims holds the message's id.

CREATE FUNCTION postrider._setting(p_name text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce((SELECT value FROM postrider.settings WHERE name = p_name),
                  (SELECT default_value FROM postrider._known_settings WHERE name = p_name));
END $$;

CREATE FUNCTION postrider._departed(p_count bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._hold_bound('departures');
  INSERT INTO postrider._departure_rows (departed) VALUES (p_count);
END $$;

-- Queue to archive, with so many attempts begun. Returns the endpoint whose next message
-- of the same key may go now.
CREATE FUNCTION postrider._leave(p_id bigint, p_status text, p_attempts integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
  v_limits postrider._limits;
BEGIN
  DELETE FROM postrider.queue WHERE id = p_id RETURNING * INTO v;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  SELECT * INTO v_limits FROM postrider._limits;
  IF v_limits.archive <> 'off' THEN
    INSERT INTO postrider.archive (id, endpoint_id, status, finished_at, created_at, priority, attempts,
      scheduled_at, expires_at, correlation_id, content_type, ordering_key, idempotency_key, event_type, last_error,
      headers, options, payload)
    VALUES (v.id, v.endpoint_id, p_status, postrider._now(), v.created_at, v.priority, p_attempts, v.scheduled_at,
      v.expires_at, v.correlation_id, v.content_type, v.ordering_key, v.idempotency_key, v.event_type, v.last_error,
      CASE WHEN v_limits.archive = 'on' THEN v.headers END, v.options,
      CASE WHEN v_limits.archive = 'on' THEN v.payload END);
  END IF;
  IF v.idempotency_key IS NOT NULL AND p_status = 'completed' AND v_limits.idempotency_retention > interval '0' THEN
    INSERT INTO postrider._reservations AS r (endpoint_id, idempotency_key, message_id, digest, until)
    VALUES (v.endpoint_id, v.idempotency_key, v.id, postrider._digest(v.content_type, v.payload),
      postrider._now() + v_limits.idempotency_retention)
    ON CONFLICT (endpoint_id, idempotency_key) DO UPDATE
      SET message_id = excluded.message_id, digest = excluded.digest, until = excluded.until;
  END IF;
  IF v_limits.attempt_log = 'off' THEN
    DELETE FROM postrider.attempts WHERE message_id = v.id;
  END IF;
  -- Its id may stay among the claimed: it never comes back to the queue.
  -- Who was behind its key lets nobody go: another one of the key is current, or the key is held.
  IF v.ordering_key IS NOT NULL AND v.place <> 1 THEN
    RETURN postrider._advance_key(postrider._key(v.key_scope, v.ordering_key));
  END IF;
  RETURN NULL;
END $$;

-- A claimed message of a key went back to pending; a redriven one may have been put before it meanwhile.
CREATE FUNCTION postrider._put_back(p_id bigint, p_key bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF p_id = (SELECT id FROM postrider._head_of_key(p_key)) THEN
    RETURN NULL;
  END IF;
  UPDATE postrider.queue SET place = 1 WHERE id = p_id;
  RETURN postrider._advance_key(p_key);
END $$;

-- True when it was pending, past its expiry, and is archived now.
CREATE FUNCTION postrider._expire_message(p_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
  v_unblocked bigint;
BEGIN
  SELECT * INTO v FROM postrider.queue WHERE id = p_id AND expires_at <= postrider._now() FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR postrider._is_claimed(p_id) THEN
    RETURN false;
  END IF;
  v_unblocked := postrider._leave(p_id, 'expired', v.attempts);
  PERFORM postrider._departed(1);
  PERFORM postrider._tell_unblocked(v_unblocked);
  RETURN true;
END $$;

CREATE TYPE postrider._attempt AS (
  number integer,
  node_id bigint,
  started_at timestamptz,
  duration interval,
  outcome text,
  class text,
  error text,
  status integer,
  body bytea
);

-- One ended claim. `ended`: complete, retry, spare, dead, expire, released, expired_unstarted, unreadable. `reason`: why it is
-- dead; what is wrong with one that no node can read.
CREATE TYPE postrider._settlement AS (
  id bigint,
  endpoint_id bigint,
  node_id bigint,
  batch bigint,
  ended text,
  due_at timestamptz,
  reason text,
  disable_endpoint boolean,
  hold_until timestamptz,
  attempt postrider._attempt
);

-- Claims of one node that were simply delivered, which is nearly all on a good day; one of each array. `claims` are their
-- batches, each once.
CREATE TYPE postrider._delivered AS (
  claims bigint[],
  ids bigint[],
  batches bigint[],
  numbers integer[],
  started_at timestamptz[],
  durations interval[],
  statuses integer[]
);

-- `unblocked`: an endpoint of which somebody may go now. Where the first of them stands is said when it is known.
CREATE TYPE postrider._settled AS (
  id bigint,
  effect text,
  state text,
  unblocked bigint,
  at_priority smallint,
  at_due timestamptz,
  at_id bigint
);

-- In one transaction. Answers for each of p_others in order; then for those of p_delivered that were not simply
-- completed; and of those that unblocked somebody for one an endpoint. p_finished are batches of p_node of which nothing is left; p_left says what
-- is left of some others, so that their rows stay short: {"batch": [ids]}. p_wary: what somebody else holds is not waited for,
-- and answered with `later`.
CREATE FUNCTION postrider._settle(
  p_node bigint, p_delivered postrider._delivered, p_others postrider._settlement[], p_finished bigint[], p_left jsonb,
  p_wary boolean
) RETURNS SETOF postrider._settled LANGUAGE plpgsql AS $$
DECLARE
  v_delivered postrider._delivered := p_delivered;
  v_others postrider._settlement[] := p_others;
  v_later bigint[] := '{}';
  -- Claims of p_node with some of those.
  v_kept bigint[] := '{}';
  v_done bigint[] := '{}';
  v_unblocking postrider._settled[];
  v_departed bigint;
  -- Of these the claim ended, and they are still queued, or may be again.
  v_unclaimed bigint[] := '{}';
  v_gone boolean := false;
  -- So many of the claims are as they were made.
  v_whole bigint;
  v_settlement postrider._settlement;
  v_settled postrider._settled;
BEGIN
  IF p_wary THEN
    v_later := postrider._in_other_hands(
      p_delivered.ids || ARRAY(SELECT s.id FROM unnest(p_others) AS s),
      array_fill(p_node, ARRAY[coalesce(cardinality(p_delivered.ids), 0)]) || ARRAY(SELECT s.node_id FROM unnest(p_others) AS s),
      p_delivered.batches || ARRAY(SELECT s.batch FROM unnest(p_others) AS s));
  END IF;
  IF cardinality(v_later) > 0 THEN
    v_delivered := postrider._without(p_delivered, v_later);
    v_kept := ARRAY(
      SELECT d.batch FROM unnest(p_delivered.ids, p_delivered.batches) AS d (id, batch) WHERE d.id = ANY (v_later)
      UNION SELECT s.batch FROM unnest(p_others) AS s WHERE s.node_id = p_node AND s.id = ANY (v_later));
  END IF;
  -- Whoever takes a claim back is waited for here, before anything is judged by it. Like everybody who needs both, first the
  -- claims and then their messages.
  SELECT count(*) FILTER (WHERE c.node_id = p_node AND c.batch = ANY (v_delivered.claims) AND NOT c.cut) INTO v_whole
  FROM (SELECT c.node_id, c.batch, c.cut FROM postrider._claims c
        WHERE (c.node_id, c.batch) IN (SELECT p_node, unnest(v_delivered.claims)
                                       UNION SELECT s.node_id, s.batch FROM unnest(p_others) AS s WHERE s.id <> ALL (v_later))
        ORDER BY c.node_id, c.batch FOR UPDATE) AS c;
  IF cardinality(v_delivered.ids) > 0 THEN
    SELECT done, unblocking INTO v_done, v_unblocking
    FROM postrider._complete(p_node, v_delivered, v_whole = cardinality(v_delivered.claims));
  END IF;
  v_departed := cardinality(v_done);
  IF v_departed < cardinality(p_delivered.ids) THEN
    v_others := v_others || ARRAY(
      SELECT ROW(d.id, NULL, p_node, d.batch, 'complete', NULL, NULL, false, NULL,
                 ROW(d.number, p_node, d.started_at, d.duration, 'delivered', NULL, NULL, d.status, NULL)
                   ::postrider._attempt)::postrider._settlement
      FROM unnest(p_delivered.ids, p_delivered.batches, p_delivered.numbers, p_delivered.started_at,
                  p_delivered.durations, p_delivered.statuses) AS d (id, batch, number, started_at, duration, status)
      WHERE d.id <> ALL (v_done));
  END IF;
  FOREACH v_settlement IN ARRAY v_others LOOP
    IF v_settlement.id = ANY (v_later) THEN
      RETURN NEXT ROW(v_settlement.id, 'later', NULL, NULL, NULL, NULL, NULL)::postrider._settled;
      CONTINUE;
    END IF;
    v_settled := postrider._settle_one(v_settlement, v_unclaimed);
    v_gone := v_gone OR v_settlement.disable_endpoint;
    IF v_settled.effect = 'applied' AND v_settled.state <> 'pending' THEN
      v_departed := v_departed + 1;
    END IF;
    IF v_settled.effect = 'applied' AND v_settled.state IN ('pending', 'dead') THEN
      v_unclaimed := v_unclaimed || v_settled.id;
    END IF;
    RETURN NEXT v_settled;
  END LOOP;
  IF v_unblocking IS NOT NULL THEN
    RETURN QUERY SELECT * FROM unnest(v_unblocking);
  END IF;
  IF v_departed > 0 THEN
    PERFORM postrider._departed(v_departed);
  END IF;
  IF cardinality(p_finished) > 0 THEN
    DELETE FROM postrider._claims WHERE node_id = p_node AND batch = ANY (p_finished) AND batch <> ALL (v_kept);
  END IF;
  IF p_left IS NOT NULL THEN
    -- One that was taken from the node meanwhile, because it never settled it, does not come back.
    UPDATE postrider._claims c
    SET ids = ARRAY(SELECT unnest(c.ids) INTERSECT SELECT jsonb_array_elements_text(l.value)::bigint),
        cut = c.cut OR c.ids && v_unclaimed
    FROM jsonb_each(p_left) AS l WHERE c.node_id = p_node AND c.batch = l.key::bigint AND c.batch <> ALL (v_kept);
  END IF;
  -- Last, because most of those rows are gone or shortened by now; and once for each row, however many failed.
  IF cardinality(v_unclaimed) > 0 THEN
    UPDATE postrider._claims SET ids = ARRAY(SELECT unnest(ids) EXCEPT SELECT unnest(v_unclaimed)), cut = true
    WHERE ids && v_unclaimed;
  END IF;
  IF v_gone THEN
    -- At the very end: whoever has the lock for this waits for nothing more.
    PERFORM postrider._disable_gone_endpoints();
  END IF;
END $$;

-- Of these settlements the messages that somebody's open transaction holds, or whose claims it holds. Waits for nobody, and
-- locks the others.
CREATE FUNCTION postrider._in_other_hands(p_ids bigint[], p_nodes bigint[], p_batches bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
  v_claims tid[] := ARRAY(
    SELECT c.ctid FROM postrider._claim_rows c
    WHERE (c.node_id, c.batch) IN (SELECT * FROM unnest(p_nodes, p_batches)) FOR UPDATE SKIP LOCKED);
  v_messages bigint[] := ARRAY(SELECT q.id FROM postrider.queue q WHERE q.id = ANY (p_ids) FOR UPDATE SKIP LOCKED);
BEGIN
  -- What is not there any more is in nobody's hands.
  RETURN ARRAY(
    SELECT s.id FROM unnest(p_ids, p_nodes, p_batches) AS s (id, node_id, batch)
    -- Not by EXISTS: a plan that was made while the queue is short would hash all of it.
    WHERE s.id <> ALL (v_messages) AND (SELECT true FROM postrider.queue q WHERE q.id = s.id)
      OR (SELECT c.ctid <> ALL (v_claims) FROM postrider._claim_rows c WHERE c.node_id = s.node_id AND c.batch = s.batch));
END $$;

CREATE FUNCTION postrider._without(p postrider._delivered, p_ids bigint[]) RETURNS postrider._delivered
LANGUAGE sql IMMUTABLE AS $$
  SELECT ROW(coalesce(array_agg(DISTINCT d.batch), '{}'), coalesce(array_agg(d.id), '{}'), coalesce(array_agg(d.batch), '{}'),
    coalesce(array_agg(d.number), '{}'), coalesce(array_agg(d.started_at), '{}'), coalesce(array_agg(d.duration), '{}'),
    coalesce(array_agg(d.status), '{}'))::postrider._delivered
  FROM unnest(p.ids, p.batches, p.numbers, p.started_at, p.durations, p.statuses)
    AS d (id, batch, number, started_at, duration, status)
  WHERE d.id <> ALL (p_ids)
$$;

-- Those of which the claim is current, in few statements however many they are. Leaves alone what needs a closer look.
-- p_whole: nothing was taken out of their claims, so all of them are.
CREATE FUNCTION postrider._complete(
  p_node bigint, p postrider._delivered, p_whole boolean, OUT done bigint[], OUT unblocking postrider._settled[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_limits postrider._limits;
  v_current bigint[] := p.ids;
  v_keyed bigint[];
  v_keys bigint[];
BEGIN
  IF NOT p_whole THEN
    v_current := ARRAY(
      SELECT d.id FROM unnest(p.ids, p.batches) AS d (id, batch)
      JOIN (SELECT unnest(c.ids) AS id, c.batch FROM postrider._claims c
            WHERE c.node_id = p_node AND c.batch = ANY (p.claims)) AS held
        ON held.id = d.id AND held.batch = d.batch);
  END IF;
  SELECT * INTO v_limits FROM postrider._limits;
  WITH gone AS (
    DELETE FROM postrider.queue q
    WHERE q.id = ANY (v_current) AND (q.idempotency_key IS NULL OR v_limits.idempotency_retention = interval '0')
    RETURNING q.*
  ), kept AS (
    INSERT INTO postrider.archive (id, endpoint_id, status, finished_at, created_at, priority, attempts, scheduled_at,
      expires_at, correlation_id, content_type, ordering_key, idempotency_key, event_type, last_error, headers, options,
      payload)
    SELECT g.id, g.endpoint_id, 'completed', postrider._now(), g.created_at, g.priority, g.attempts + 1, g.scheduled_at,
      g.expires_at, g.correlation_id, g.content_type, g.ordering_key, g.idempotency_key, g.event_type, g.last_error,
      CASE WHEN v_limits.archive = 'on' THEN g.headers END, g.options,
      CASE WHEN v_limits.archive = 'on' THEN g.payload END
    FROM gone g WHERE v_limits.archive <> 'off'
  )
  SELECT coalesce(array_agg(g.id), '{}'), array_agg(g.id) FILTER (WHERE g.ordering_key IS NOT NULL),
    array_agg(postrider._key(g.key_scope, g.ordering_key)) FILTER (WHERE g.ordering_key IS NOT NULL)
  INTO done, v_keyed, v_keys FROM gone g;
  IF v_limits.attempt_log = 'all' THEN
    INSERT INTO postrider.attempts (message_id, number, node_id, started_at, duration, outcome, status)
    SELECT d.id, d.number, p_node, d.started_at, d.duration, 'delivered', d.status
    FROM unnest(p.ids, p.numbers, p.started_at, p.durations, p.statuses) AS d (id, number, started_at, duration, status)
    WHERE d.id = ANY (done);
  ELSIF v_limits.attempt_log = 'off' THEN
    DELETE FROM postrider.attempts WHERE message_id = ANY (done);
  END IF;
  IF v_keyed IS NOT NULL THEN
    unblocking := ARRAY(
      SELECT ROW(v_keyed[row_number() OVER ()], 'applied', 'completed', u.endpoint_id, u.priority, u.due_at, u.id)
               ::postrider._settled
      FROM (SELECT DISTINCT ON (a.endpoint_id) a.* FROM postrider._advance_keys(v_keys) AS a
            ORDER BY a.endpoint_id, a.priority DESC, a.due_at, a.id) AS u);
  END IF;
END $$;

CREATE FUNCTION postrider._keep_attempt(p_message bigint, p postrider._attempt) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider.attempts (message_id, number, node_id, started_at, duration, outcome, class, error, status, body)
  VALUES (p_message, p.number, p.node_id, p.started_at, p.duration, p.outcome, p.class, p.error, p.status, p.body);
END $$;

CREATE FUNCTION postrider._record_attempt(p_message bigint, p postrider._attempt) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  -- A failed attempt is always recorded: the dead letter quotes it. What is kept afterwards is a setting.
  IF p.number IS NOT NULL AND (p.outcome <> 'delivered' OR (SELECT attempt_log FROM postrider._limits) = 'all') THEN
    PERFORM postrider._keep_attempt(p_message, p);
  END IF;
END $$;

CREATE FUNCTION postrider._applied(p_id bigint, p_state text, p_unblocked bigint) RETURNS postrider._settled
LANGUAGE sql AS $$ SELECT ROW(p_id, 'applied', p_state, p_unblocked, NULL, NULL, NULL)::postrider._settled $$;

-- It is finished already. One that was cancelled meanwhile, because its endpoint was dropped, is completed after all
-- (`recorded`: it left the queue before); for every other the acknowledgement is worth a line in its story.
CREATE FUNCTION postrider._acknowledged_late(p_message bigint, p_attempt postrider._attempt) RETURNS postrider._settled
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
  UPDATE postrider.archive SET status = 'completed', finished_at = postrider._now()
  WHERE id = p_message AND status = 'cancelled';
  IF NOT FOUND THEN
    PERFORM postrider._record_attempt(p_message, p_attempt);
    RETURN ROW(p_message, 'fenced', NULL, NULL, NULL, NULL, NULL)::postrider._settled;
  END IF;
  IF (SELECT attempt_log FROM postrider._limits) <> 'off' THEN
    PERFORM postrider._keep_attempt(p_message, p_attempt);
  END IF;
  RETURN ROW(p_message, 'recorded', 'completed', NULL, NULL, NULL, NULL)::postrider._settled;
END $$;

-- p_unclaimed are about to be taken out of their claims.
CREATE FUNCTION postrider._settle_one(s postrider._settlement, p_unclaimed bigint[]) RETURNS postrider._settled
LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
  v_delivered boolean := s.ended = 'complete';
  v_is_claimed boolean;
  v_is_current boolean;
  v_attempts integer;
  v_unblocked bigint;
BEGIN
  SELECT * INTO v FROM postrider.queue WHERE id = s.id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN CASE WHEN v_delivered THEN postrider._acknowledged_late(s.id, s.attempt)
                ELSE ROW(s.id, 'fenced', NULL, NULL, NULL, NULL, NULL)::postrider._settled END;
  END IF;
  SELECT count(*) > 0, coalesce(bool_or(c.node_id = s.node_id AND c.batch = s.batch), false)
  INTO v_is_claimed, v_is_current FROM postrider._claims c
  WHERE s.id = ANY (c.ids) AND s.id <> ALL (p_unclaimed);
  IF NOT v_is_current THEN
    IF NOT v_delivered THEN
      RETURN ROW(s.id, 'fenced', NULL, NULL, NULL, NULL, NULL)::postrider._settled;
    END IF;
    IF v_is_claimed AND v.ordering_key IS NOT NULL THEN
      UPDATE postrider.queue SET delivered_late = true WHERE id = s.id;
      RETURN ROW(s.id, 'noted', NULL, NULL, NULL, NULL, NULL)::postrider._settled;
    END IF;
  END IF;
  PERFORM postrider._record_attempt(s.id, s.attempt);
  IF s.hold_until IS NOT NULL THEN
    PERFORM postrider._hold_endpoint(s.endpoint_id, s.hold_until);
  END IF;
  -- What a claim counts is counted when it ends.
  v_attempts := v.attempts + CASE WHEN v_is_claimed AND s.ended NOT IN ('released', 'expired_unstarted', 'unreadable')
                                  THEN 1 ELSE 0 END;
  IF v_delivered OR v.delivered_late THEN
    RETURN postrider._applied(s.id, 'completed', postrider._leave(s.id, 'completed', v_attempts));
  END IF;
  CASE s.ended
    WHEN 'expire', 'expired_unstarted' THEN
      RETURN postrider._applied(s.id, 'expired', postrider._leave(s.id, 'expired', v_attempts));
    WHEN 'dead' THEN
      v_unblocked := postrider._bury(s.id, v_attempts, s.reason, (s.attempt).error);
      IF s.disable_endpoint THEN
        PERFORM postrider._note_gone(s.endpoint_id);
      END IF;
      RETURN postrider._applied(s.id, 'dead', v_unblocked);
    WHEN 'unreadable' THEN
      RETURN postrider._applied(s.id, 'dead', postrider._bury(s.id, v_attempts, 'unreadable', s.reason));
    WHEN 'released' THEN
      NULL;
    ELSE
      UPDATE postrider.queue SET due_at = s.due_at, attempts = v_attempts, last_error = (s.attempt).error,
        losses = losses + CASE WHEN (s.attempt).outcome = 'lost' THEN 1 ELSE 0 END,
        place = CASE WHEN place = 1 THEN 1 WHEN losses > 0 OR (s.attempt).outcome = 'lost' THEN 3 ELSE 0 END
      WHERE id = s.id;
      IF s.ended = 'spare' THEN
        -- It keeps its number and costs no budget.
        UPDATE postrider.queue SET attempts_before = attempts_before + 1 WHERE id = s.id;
      END IF;
  END CASE;
  IF v.ordering_key IS NOT NULL THEN
    v_unblocked := postrider._put_back(s.id, postrider._key(v.key_scope, v.ordering_key));
  END IF;
  RETURN postrider._applied(s.id, 'pending', v_unblocked);
END $$;
