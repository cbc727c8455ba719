-- Settle: end claims by their fence, exactly once. The fence is node and batch; it is current while that row of _claims holds the
-- message's id.

-- Moves a message from the queue to the archive. Returns the endpoint whose next message of the same key became ready.
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
  -- Its id may stay in a claim: it never comes back to the queue. A message behind its key makes no other message ready: another
  -- one of the key is current, or the key is held.
  IF v.ordering_key IS NOT NULL AND v.place <> :behind_key THEN
    RETURN postrider._advance_key(postrider._key(v.key_scope, v.ordering_key));
  END IF;
  RETURN NULL;
END $$;

-- A claimed message of a key is pending again. If a redriven message was put before it meanwhile, that one becomes ready instead.
CREATE FUNCTION postrider._put_back(p_id bigint, p_key bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF p_id = (SELECT id FROM postrider._head_of_key(p_key)) THEN
    RETURN NULL;
  END IF;
  UPDATE postrider.queue SET place = :behind_key WHERE id = p_id;
  RETURN postrider._advance_key(p_key);
END $$;

CREATE TYPE postrider._attempt AS (
  number integer,
  node_id bigint,
  started_at timestamptz,
  duration interval,
  outcome text,
  class text,
  error text,
  response_status integer,
  response_body bytea
);

-- One ended claim. `ended`: complete, retry, spare, dead, expire, released, expired_unstarted, unreadable. `reason`: why the message
-- is dead or unreadable.
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

-- Messages that one node simply delivered, which are nearly all; one entry in each array per message. `claims`: their batches, each
-- once.
CREATE TYPE postrider._delivered AS (
  claims bigint[],
  ids bigint[],
  batches bigint[],
  numbers integer[],
  started_at timestamptz[],
  durations interval[],
  response_statuses integer[]
);

-- What one settlement did. `effect`: applied (the message is in `state` now), recorded (it had left the queue before), noted,
-- fenced, later. `unblocked`: the endpoint whose next message of the same ordering key became ready.
CREATE TYPE postrider._settled AS (
  id bigint,
  effect text,
  state text,
  unblocked bigint
);

-- The first message in claim order that completed messages made ready at an endpoint. `completed_id`: one of those with an ordering
-- key.
CREATE TYPE postrider._unblocked AS (
  completed_id bigint,
  endpoint_id bigint,
  priority smallint,
  due_at timestamptz,
  id bigint
);

-- Settles all of it in one transaction. `completed`: those of p_delivered that were simply completed. `settled`: one for each of
-- p_others, in their order, then one for each of p_delivered that is not in `completed`. p_finished: batches of p_node that hold
-- nothing any more. p_left: what other batches still hold, so that their rows stay short: {"batch": [ids]}. p_wary: skip messages
-- and claims that another transaction has locked, and answer `later` for them.
CREATE FUNCTION postrider._settle(
  p_node bigint, p_delivered postrider._delivered, p_others postrider._settlement[], p_finished bigint[], p_left jsonb,
  p_wary boolean, OUT completed bigint[], OUT settled postrider._settled[], OUT unblocked postrider._unblocked[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_delivered postrider._delivered := p_delivered;
  v_others postrider._settlement[] := p_others;
  v_later bigint[] := '{}';
  -- Batches of p_node that hold some of v_later.
  v_kept bigint[] := '{}';
  v_departed bigint;
  -- Messages whose claim ended and that are still queued, or can be queued again.
  v_unclaimed bigint[] := '{}';
  v_gone boolean := false;
  -- How many claims still hold every message that they were made with.
  v_whole bigint;
  v_settlement postrider._settlement;
  v_settled postrider._settled;
BEGIN
  completed := '{}';
  settled := '{}';
  unblocked := '{}';
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
  -- A transaction that takes a claim back is waited for here, before the claim decides anything. Lock order everywhere: claims,
  -- then messages.
  SELECT count(*) FILTER (WHERE c.node_id = p_node AND c.batch = ANY (v_delivered.claims) AND NOT c.cut) INTO v_whole
  FROM (SELECT c.node_id, c.batch, c.cut FROM postrider._claims c
        WHERE (c.node_id, c.batch) IN (SELECT p_node, unnest(v_delivered.claims)
                                       UNION SELECT s.node_id, s.batch FROM unnest(p_others) AS s WHERE s.id <> ALL (v_later))
        ORDER BY c.node_id, c.batch FOR UPDATE) AS c;
  IF cardinality(v_delivered.ids) > 0 THEN
    SELECT c.completed, c.unblocked INTO completed, unblocked
    FROM postrider._complete(p_node, v_delivered, v_whole = cardinality(v_delivered.claims)) AS c;
  END IF;
  v_departed := cardinality(completed);
  IF v_departed < cardinality(p_delivered.ids) THEN
    v_others := v_others || ARRAY(
      SELECT ROW(d.id, NULL, p_node, d.batch, 'complete', NULL, NULL, false, NULL,
                 ROW(d.number, p_node, d.started_at, d.duration, 'delivered', NULL, NULL, d.response_status, NULL)
                   ::postrider._attempt)::postrider._settlement
      FROM unnest(p_delivered.ids, p_delivered.batches, p_delivered.numbers, p_delivered.started_at,
                  p_delivered.durations, p_delivered.response_statuses)
             AS d (id, batch, number, started_at, duration, response_status)
      WHERE d.id <> ALL (completed));
  END IF;
  FOREACH v_settlement IN ARRAY v_others LOOP
    IF v_settlement.id = ANY (v_later) THEN
      settled := settled || ROW(v_settlement.id, 'later', NULL, NULL)::postrider._settled;
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
    settled := settled || v_settled;
  END LOOP;
  IF v_departed > 0 THEN
    PERFORM postrider._departed(v_departed);
  END IF;
  IF cardinality(p_finished) > 0 THEN
    DELETE FROM postrider._claims WHERE node_id = p_node AND batch = ANY (p_finished) AND batch <> ALL (v_kept);
  END IF;
  IF p_left IS NOT NULL THEN
    -- Intersect: an id that was taken from the claim meanwhile must not come back.
    UPDATE postrider._claims c
    SET ids = ARRAY(SELECT unnest(c.ids) INTERSECT SELECT jsonb_array_elements_text(l.value)::bigint),
        cut = c.cut OR c.ids && v_unclaimed
    FROM jsonb_each(p_left) AS l WHERE c.node_id = p_node AND c.batch = l.key::bigint AND c.batch <> ALL (v_kept);
  END IF;
  -- Last, because most of those rows are deleted or shortened by now; one update per row, however many messages failed.
  IF cardinality(v_unclaimed) > 0 THEN
    UPDATE postrider._claims SET ids = ARRAY(SELECT unnest(ids) EXCEPT SELECT unnest(v_unclaimed)), cut = true
    WHERE ids && v_unclaimed;
  END IF;
  IF v_gone THEN
    -- Last: after this lock no other lock is waited for.
    PERFORM postrider._disable_gone_endpoints();
  END IF;
END $$;

-- The messages of these settlements that another transaction has locked, or whose claims it has locked. Locks the others, and does
-- not wait.
CREATE FUNCTION postrider._in_other_hands(p_ids bigint[], p_nodes bigint[], p_batches bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
  v_claims tid[] := ARRAY(
    SELECT c.ctid FROM postrider._claim_rows c
    WHERE (c.node_id, c.batch) IN (SELECT * FROM unnest(p_nodes, p_batches)) FOR UPDATE SKIP LOCKED);
  v_messages bigint[] := ARRAY(SELECT q.id FROM postrider.queue q WHERE q.id = ANY (p_ids) FOR UPDATE SKIP LOCKED);
BEGIN
  -- A message that left the queue is not locked.
  RETURN ARRAY(
    SELECT s.id FROM unnest(p_ids, p_nodes, p_batches) AS s (id, node_id, batch)
    -- Not EXISTS: a plan that was made for a short queue would hash all of a long one.
    WHERE s.id <> ALL (v_messages) AND (SELECT true FROM postrider.queue q WHERE q.id = s.id)
      OR (SELECT c.ctid <> ALL (v_claims) FROM postrider._claim_rows c WHERE c.node_id = s.node_id AND c.batch = s.batch));
END $$;

CREATE FUNCTION postrider._without(p postrider._delivered, p_ids bigint[]) RETURNS postrider._delivered
LANGUAGE sql IMMUTABLE AS $$
  SELECT ROW(coalesce(array_agg(DISTINCT d.batch), '{}'), coalesce(array_agg(d.id), '{}'), coalesce(array_agg(d.batch), '{}'),
    coalesce(array_agg(d.number), '{}'), coalesce(array_agg(d.started_at), '{}'), coalesce(array_agg(d.duration), '{}'),
    coalesce(array_agg(d.response_status), '{}'))::postrider._delivered
  FROM unnest(p.ids, p.batches, p.numbers, p.started_at, p.durations, p.response_statuses)
    AS d (id, batch, number, started_at, duration, response_status)
  WHERE d.id <> ALL (p_ids)
$$;

-- Completes the messages whose claim is current, in few statements. Skips those that need a reservation or other care, for
-- _settle_one(). p_whole: the claims still hold everything, so all of them are current.
CREATE FUNCTION postrider._complete(
  p_node bigint, p postrider._delivered, p_whole boolean, OUT completed bigint[], OUT unblocked postrider._unblocked[]
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
  INTO completed, v_keyed, v_keys FROM gone g;
  IF v_limits.attempt_log = 'all' THEN
    INSERT INTO postrider.attempts (message_id, number, node_id, started_at, duration, outcome, response_status)
    SELECT d.id, d.number, p_node, d.started_at, d.duration, 'delivered', d.response_status
    FROM unnest(p.ids, p.numbers, p.started_at, p.durations, p.response_statuses)
           AS d (id, number, started_at, duration, response_status)
    WHERE d.id = ANY (completed);
  ELSIF v_limits.attempt_log = 'off' THEN
    DELETE FROM postrider.attempts WHERE message_id = ANY (completed);
  END IF;
  unblocked := '{}';
  IF v_keys IS NOT NULL THEN
    unblocked := ARRAY(
      SELECT ROW(v_keyed[row_number() OVER ()], u.endpoint_id, u.priority, u.due_at, u.id)::postrider._unblocked
      FROM (SELECT DISTINCT ON (a.endpoint_id) a.* FROM postrider._advance_keys(v_keys) AS a
            ORDER BY a.endpoint_id, a.priority DESC, a.due_at, a.id) AS u);
  END IF;
END $$;

CREATE FUNCTION postrider._keep_attempt(p_message bigint, p postrider._attempt) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider.attempts (message_id, number, node_id, started_at, duration, outcome, class, error, response_status,
    response_body)
  VALUES (p_message, p.number, p.node_id, p.started_at, p.duration, p.outcome, p.class, p.error, p.response_status,
    p.response_body);
END $$;

CREATE FUNCTION postrider._record_attempt(p_message bigint, p postrider._attempt) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  -- A failed attempt is always recorded: the dead letter quotes it. What is kept afterwards is a setting.
  IF p.number IS NOT NULL AND (p.outcome <> 'delivered' OR (SELECT attempt_log FROM postrider._limits) = 'all') THEN
    PERFORM postrider._keep_attempt(p_message, p);
  END IF;
END $$;

CREATE FUNCTION postrider._applied(p_id bigint, p_state text, p_unblocked bigint) RETURNS postrider._settled
LANGUAGE sql AS $$ SELECT ROW(p_id, 'applied', p_state, p_unblocked)::postrider._settled $$;

-- A delivery of a message that is finished already. A message that was cancelled meanwhile, because its endpoint was dropped,
-- becomes completed (`recorded`: it left the queue before); for all others the attempt is recorded.
CREATE FUNCTION postrider._acknowledged_late(p_message bigint, p_attempt postrider._attempt) RETURNS postrider._settled
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
  UPDATE postrider.archive SET status = 'completed', finished_at = postrider._now()
  WHERE id = p_message AND status = 'cancelled';
  IF NOT FOUND THEN
    PERFORM postrider._record_attempt(p_message, p_attempt);
    RETURN ROW(p_message, 'fenced', NULL, NULL)::postrider._settled;
  END IF;
  IF (SELECT attempt_log FROM postrider._limits) <> 'off' THEN
    PERFORM postrider._keep_attempt(p_message, p_attempt);
  END IF;
  RETURN ROW(p_message, 'recorded', 'completed', NULL)::postrider._settled;
END $$;

-- p_unclaimed: messages that this transaction will take out of their claims.
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
                ELSE ROW(s.id, 'fenced', NULL, NULL)::postrider._settled END;
  END IF;
  SELECT count(*) > 0, coalesce(bool_or(c.node_id = s.node_id AND c.batch = s.batch), false)
  INTO v_is_claimed, v_is_current FROM postrider._claims c
  WHERE s.id = ANY (c.ids) AND s.id <> ALL (p_unclaimed);
  IF NOT v_is_current THEN
    IF NOT v_delivered THEN
      RETURN ROW(s.id, 'fenced', NULL, NULL)::postrider._settled;
    END IF;
    IF v_is_claimed AND v.ordering_key IS NOT NULL THEN
      UPDATE postrider.queue SET delivered_late = true WHERE id = s.id;
      RETURN ROW(s.id, 'noted', NULL, NULL)::postrider._settled;
    END IF;
  END IF;
  PERFORM postrider._record_attempt(s.id, s.attempt);
  IF s.hold_until IS NOT NULL THEN
    PERFORM postrider._hold_endpoint(s.endpoint_id, s.hold_until);
  END IF;
  -- A claim's attempt is added when the claim ends.
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
    WHEN 'retry', 'spare' THEN
      UPDATE postrider.queue SET due_at = s.due_at, attempts = v_attempts, last_error = (s.attempt).error,
        losses = losses + CASE WHEN (s.attempt).outcome = 'lost' THEN 1 ELSE 0 END,
        place = CASE WHEN place = :behind_key THEN :behind_key
                     WHEN losses > 0 OR (s.attempt).outcome = 'lost' THEN :on_probation ELSE :ready END
      WHERE id = s.id;
      IF s.ended = 'spare' THEN
        -- The attempt keeps its number and does not count against the budget.
        UPDATE postrider.queue SET attempts_before = attempts_before + 1 WHERE id = s.id;
      END IF;
  END CASE;
  IF v.ordering_key IS NOT NULL THEN
    v_unblocked := postrider._put_back(s.id, postrider._key(v.key_scope, v.ordering_key));
  END IF;
  RETURN postrider._applied(s.id, 'pending', v_unblocked);
END $$;
