-- What people ask: a message's story, and the state of the store. Figures cost the same at any size.

-- As the program writes a time: in UTC, with as many digits as there are.
CREATE FUNCTION postrider._shown(p_at timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT regexp_replace(to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), E'\\.?0+$', '') || 'Z'
$$;

-- A payload as JSON; null where it is none.
CREATE FUNCTION postrider._as_json(p_content_type text, p_payload bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE
SET search_path = postrider, pg_temp AS $$
BEGIN
  IF p_payload IS NULL OR p_content_type !~* E'^[a-z0-9.+-]+/([a-z0-9.-]+\\+)?json\\M' THEN
    RETURN NULL;
  END IF;
  RETURN convert_from(p_payload, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
  RETURN NULL;
END $$;

CREATE FUNCTION postrider._behind_key(q postrider.queue) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_key bigint := postrider._key(q.key_scope, q.ordering_key);
  v_head bigint;
  v_holder text;
BEGIN
  SELECT message_id INTO v_head FROM postrider.dlq
  WHERE holds_key AND postrider._key(key_scope, ordering_key) = v_key LIMIT 1;
  IF FOUND THEN
    RETURN format('behind key %s: held by dead message %s; redrive, discard or release it',
      postrider._quoted(q.ordering_key), v_head);
  END IF;
  SELECT f.id INTO v_head FROM postrider.queue f
  WHERE postrider._key(f.key_scope, f.ordering_key) = v_key
    AND postrider._turn(f.place, f.key_position) < q.key_position
  ORDER BY postrider._turn(f.place, f.key_position) LIMIT 1;
  IF FOUND THEN
    RETURN format('behind key %s: message %s is before it', postrider._quoted(q.ordering_key), v_head);
  END IF;
  -- Its turn comes as soon as the transaction that holds the key or the message has ended. Only nodes know since when it does.
  v_holder := postrider._key_holder(v_key);
  RETURN format('behind key %s', postrider._quoted(q.ordering_key))
    || coalesce(': held by the open transaction of ' || v_holder, '')
    || coalesce(' since ' || postrider._shown((SELECT min(w.since) FROM postrider._now_in_the_way() w
         WHERE w.session = v_holder AND w.lock = 'an ordering or idempotency key')), '');
END $$;

CREATE FUNCTION postrider._live_nodes() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT count(*) FROM postrider.nodes WHERE state = 'live' AND lease_until > postrider._now()
$$;

-- The first thing in the way, in the order in which a node would meet it.
CREATE FUNCTION postrider._why_not_yet(q postrider.queue, e postrider._endpoints) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_now timestamptz := postrider._now();
  v_paused text := (SELECT paused_because FROM postrider._store);
  v_limited_until timestamptz := (
    SELECT r.next_at FROM postrider._rate_grant(e.options->'rate_limit', e.rate_position, v_now, 1) AS r
    WHERE e.options ? 'rate_limit' AND r.granted = 0);
BEGIN
  RETURN CASE WHEN postrider._live_nodes() = 0 THEN 'no node runs; ' ELSE '' END || CASE
    WHEN v_paused IS NOT NULL THEN 'everything is paused: ' || v_paused
    WHEN e.dropped_at IS NOT NULL THEN format('endpoint %s was dropped', postrider._quoted(e.name))
    WHEN e.paused THEN format('endpoint %s is paused', postrider._quoted(e.name))
    WHEN e.disabled_by IS NOT NULL THEN format('endpoint %s is disabled', postrider._quoted(e.name))
    WHEN q.place = 1 THEN postrider._behind_key(q)
    WHEN q.due_at > v_now AND q.attempts = 0 THEN 'scheduled: next try at ' || postrider._shown(q.due_at)
    WHEN q.due_at > v_now
      THEN format('waiting after attempt %s: next try at %s', q.attempts, postrider._shown(q.due_at))
    WHEN e.circuit = 'open' THEN 'circuit open: next try at ' || postrider._shown(e.circuit_until)
    WHEN e.circuit = 'half_open' THEN 'circuit half open: one probe at a time'
    WHEN e.held_until > v_now
      THEN 'the receiver asked to wait: next try at ' || postrider._shown(e.held_until)
    WHEN q.place = 3 THEN 'on probation: its claim was lost with a node, so it is tried with few others'
    WHEN v_limited_until IS NOT NULL THEN 'rate limited: next try at ' || postrider._shown(v_limited_until)
    ELSE coalesce(
      (SELECT format('due now, but %s holds the lock of %s since %s', w.session, w.lock, postrider._shown(w.since))
       FROM postrider._now_in_the_way() w
       WHERE w.stops_delivery AND (w.endpoint_id IS NULL OR w.endpoint_id = e.id) LIMIT 1),
      'due now')
  END;
END $$;

CREATE TYPE postrider._story AS (
  id bigint,
  endpoint text,
  state text,
  priority smallint,
  payload bytea,
  content_type text,
  headers jsonb,
  options jsonb,
  idempotency_key text,
  correlation_id uuid,
  ordering_key text,
  event_type text,
  created_at timestamptz,
  scheduled_at timestamptz,
  expires_at timestamptz,
  finished_at timestamptz,
  due_at timestamptz,
  attempt_count integer,
  last_error text,
  reason text,
  dlq_id bigint
);

-- Everything but the attempts, wherever the message is now; 42704 when nothing is known of it.
CREATE FUNCTION postrider._story(p_id bigint) RETURNS postrider._story LANGUAGE plpgsql STABLE AS $$
DECLARE
  q postrider.queue;
  e postrider._endpoints;
  s postrider._story;
BEGIN
  SELECT * INTO q FROM postrider.queue WHERE id = p_id;
  IF FOUND THEN
    SELECT * INTO e FROM postrider._endpoints WHERE id = q.endpoint_id;
    IF postrider._is_claimed(p_id) THEN
      RETURN (q.id, e.name, 'processing', q.priority, q.payload, q.content_type, q.headers, q.options,
        q.idempotency_key, q.correlation_id, q.ordering_key, q.event_type, q.created_at, q.scheduled_at, q.expires_at,
        NULL, NULL, q.attempts + 1, q.last_error, NULL, NULL)::postrider._story;
    END IF;
    RETURN (q.id, e.name, 'pending', q.priority, q.payload, q.content_type, q.headers, q.options, q.idempotency_key,
      q.correlation_id, q.ordering_key, q.event_type, q.created_at, q.scheduled_at, q.expires_at, NULL, q.due_at,
      q.attempts, q.last_error, postrider._why_not_yet(q, e), NULL)::postrider._story;
  END IF;
  SELECT a.id, n.name, a.status, a.priority, a.payload, a.content_type, a.headers, a.options, a.idempotency_key,
    a.correlation_id, a.ordering_key, a.event_type, a.created_at, a.scheduled_at, a.expires_at, a.finished_at,
    NULL::timestamptz, a.attempts, a.last_error, NULL::text, NULL::bigint
  INTO s FROM postrider.archive a JOIN postrider.endpoints n ON n.id = a.endpoint_id WHERE a.id = p_id LIMIT 1;
  IF FOUND THEN
    RETURN s;
  END IF;
  SELECT d.message_id, n.name, 'dead', d.priority, d.payload, d.content_type, d.headers, d.options, d.idempotency_key,
    d.correlation_id, d.ordering_key, d.event_type, d.created_at, d.scheduled_at, d.expires_at, d.died_at,
    NULL::timestamptz, d.attempts, d.last_error, d.reason, d.id
  INTO s FROM postrider.dlq d JOIN postrider.endpoints n ON n.id = d.endpoint_id
  WHERE d.message_id = p_id AND d.status <> 'redriven' ORDER BY d.id DESC LIMIT 1;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('message', p_id::text);
  END IF;
  RETURN s;
END $$;

-- The recorded attempts, first to last.
CREATE FUNCTION postrider._attempts_of(p_id bigint) RETURNS SETOF postrider.attempts LANGUAGE sql STABLE
AS $$ SELECT * FROM postrider.attempts WHERE message_id = p_id ORDER BY number, started_at $$;

-- What was made from it, oldest first, at most the last so many.
CREATE FUNCTION postrider._replayed_as(p_id bigint, p_limit integer) RETURNS bigint[] LANGUAGE sql STABLE AS $$
  SELECT ARRAY(SELECT l.id FROM (SELECT r.id FROM postrider._replayed r WHERE r.original_id = p_id
                                 ORDER BY r.id DESC LIMIT p_limit) AS l ORDER BY l.id)
$$;

-- A message's whole story: state, attempts, and why it is not delivered yet.
CREATE FUNCTION postrider.message(id bigint) RETURNS jsonb LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  s postrider._story := postrider._story(message.id);
  v_json jsonb := postrider._as_json(s.content_type, s.payload);
BEGIN
  RETURN (to_jsonb(s) - 'payload') || jsonb_build_object(
    'replay_of', (SELECT r.original_id FROM postrider._replayed r WHERE r.id = message.id),
    'replayed_as', to_jsonb(postrider._replayed_as(message.id, 100)),
    'payload', v_json,
    'payload_base64', CASE WHEN v_json IS NULL THEN replace(encode(s.payload, 'base64'), E'\n', '') END,
    'headers', coalesce(s.headers, '{}'),
    'options', coalesce(s.options, '{}'),
    'attempts', (
      SELECT coalesce(jsonb_agg(jsonb_build_object(
        'number', a.number, 'node', a.node_id, 'started_at', a.started_at,
        'duration_seconds', extract(epoch FROM a.duration), 'outcome', a.outcome, 'class', a.class, 'error', a.error,
        'status', a.status, 'body_base64', replace(encode(a.body, 'base64'), E'\n', '')) ORDER BY a.number, a.started_at), '[]')
      FROM postrider.attempts a WHERE a.message_id = message.id));
END $$;

-- Every message once, with its latest state.
CREATE VIEW postrider.messages AS
  SELECT q.id, e.name AS endpoint,
         CASE WHEN c.claimed THEN 'processing' ELSE 'pending' END AS state,
         q.priority, q.attempts + c.claimed::integer AS attempts, CASE WHEN NOT c.claimed THEN q.due_at END AS due_at,
         q.created_at, q.scheduled_at, q.expires_at, NULL::timestamptz AS finished_at,
         q.ordering_key, q.idempotency_key, q.correlation_id, q.event_type, q.content_type, q.last_error,
         NULL::bigint AS dlq_id, q.headers, q.options, postrider._as_json(q.content_type, q.payload) AS payload
  FROM postrider.queue q JOIN postrider.endpoints e ON e.id = q.endpoint_id,
       LATERAL (SELECT EXISTS (SELECT FROM postrider._claims WHERE q.id = ANY (ids)) AS claimed) AS c
  UNION ALL
  SELECT d.message_id, e.name, 'dead', d.priority, d.attempts, NULL, d.created_at, d.scheduled_at, d.expires_at,
         d.died_at, d.ordering_key, d.idempotency_key, d.correlation_id, d.event_type, d.content_type, d.last_error,
         d.id, d.headers, d.options, postrider._as_json(d.content_type, d.payload)
  FROM postrider.dlq d JOIN postrider.endpoints e ON e.id = d.endpoint_id WHERE d.status <> 'redriven'
  UNION ALL
  SELECT a.id, e.name, a.status, a.priority, a.attempts, NULL, a.created_at, a.scheduled_at, a.expires_at,
         a.finished_at, a.ordering_key, a.idempotency_key, a.correlation_id, a.event_type, a.content_type,
         a.last_error, NULL, a.headers, a.options, postrider._as_json(a.content_type, a.payload)
  FROM postrider.archive a JOIN postrider.endpoints e ON e.id = a.endpoint_id;

-- How many of each endpoint were queued and dead at the last exact count.
CREATE TABLE postrider._endpoint_gauge (
  endpoint_id bigint PRIMARY KEY,
  queued bigint NOT NULL,
  dead bigint NOT NULL
);
CREATE TABLE postrider._exact_count (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  at timestamptz NOT NULL,
  dead bigint NOT NULL
);

-- Up to so many rows are counted whenever somebody asks.
CREATE FUNCTION postrider._counted_at_once() RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 10000 $$;

-- Takes the gauge's figure up to now: ids given since are added, departures taken off. A node does this every
-- second. Ids of rolled back sends make it too high, so it is counted exactly while there is little, and at times when
-- there is much: a second of counting for some minutes without. One node at a time; the others have nothing to do.
CREATE FUNCTION postrider._recount_queue() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := postrider._now();
  v_last bigint;
  v_departed bigint;
  v_queued bigint;
  v_exact_at timestamptz := (SELECT at FROM postrider._exact_count);
  v_limit bigint := (SELECT max_queue_size FROM postrider._limits);
  g postrider._gauge;
  v_much_queued boolean;
BEGIN
  IF NOT pg_try_advisory_xact_lock(1886548338, 2) THEN
    RETURN;
  END IF;
  -- The sum stays the same here, too.
  IF EXISTS (SELECT FROM postrider._counts GROUP BY name HAVING count(*) > 1) THEN
    WITH folded AS (DELETE FROM postrider._counts RETURNING name, value)
    INSERT INTO postrider._counts (name, value) SELECT name, sum(value) FROM folded GROUP BY name;
  END IF;
  -- Queue and departures in one snapshot. An id given before it and committed after it is not seen by either.
  v_last := (SELECT last_value FROM postrider.message_ids);
  SELECT (SELECT coalesce(sum(departed), 0) FROM postrider._departures),
         (SELECT count(*) FROM (SELECT FROM postrider.queue LIMIT postrider._counted_at_once() + 1) AS first_of_them)
  INTO v_departed, v_queued;
  v_much_queued := v_queued > postrider._counted_at_once();
  SELECT * INTO g FROM postrider._gauge;
  IF v_much_queued THEN
    v_queued := g.queued + (v_last - g.at_id) - (v_departed - g.departed);
  ELSE
    g.exact_id := v_last;
  END IF;
  -- Where senders are about to be refused, they have to know how far it can be off.
  IF v_limit > postrider._counted_at_once() AND v_queued >= v_limit - v_limit / 10 AND v_last - g.exact_id > v_limit / 40 THEN
    v_exact_at := NULL;
  END IF;
  IF (v_much_queued OR EXISTS (SELECT FROM postrider.dlq WHERE status = 'failed' OFFSET postrider._counted_at_once()))
     AND (v_exact_at IS NULL OR v_exact_at > v_now
          OR v_exact_at < v_now - greatest(30, v_queued / 10000) * interval '1 second') THEN
    v_last := (SELECT last_value FROM postrider.message_ids);
    DELETE FROM postrider._endpoint_gauge;
    WITH queued AS (SELECT endpoint_id, count(*) AS count FROM postrider.queue GROUP BY endpoint_id),
         dead AS (SELECT endpoint_id, count(*) AS count FROM postrider.dlq WHERE status = 'failed' GROUP BY endpoint_id),
         kept AS (INSERT INTO postrider._endpoint_gauge (endpoint_id, queued, dead)
                  SELECT endpoint_id, coalesce(q.count, 0), coalesce(d.count, 0)
                  FROM queued q FULL JOIN dead d USING (endpoint_id) RETURNING queued, dead),
         noted AS (INSERT INTO postrider._exact_count AS x (at, dead) SELECT v_now, coalesce(sum(dead), 0) FROM kept
                   ON CONFLICT (single) DO UPDATE SET at = excluded.at, dead = excluded.dead)
    SELECT coalesce(sum(queued), 0), (SELECT coalesce(sum(departed), 0) FROM postrider._departures)
    INTO v_queued, v_departed FROM kept;
    g.exact_id := v_last;
  END IF;
  IF v_last <> g.at_id OR v_departed <> g.departed THEN
    PERFORM postrider._recount_parts(v_last, v_departed);
  END IF;
  UPDATE postrider._gauge SET queued = greatest(v_queued, 0), at_id = v_last, departed = v_departed, counted_at = v_now,
    exact_id = g.exact_id;
  PERFORM postrider._fold_departures();
  -- Last, because until the commit whoever settles these claims waits, or does it later.
  PERFORM postrider._take_claims_along();
END $$;

-- Counts the parts of endpoints of which it is open whether senders are to be refused, because more than a fortieth of
-- the limit came and left since they were counted: the most doubtful first, up to so many messages at a time. Of the
-- others senders count a part themselves when they have to.
CREATE FUNCTION postrider._recount_parts(p_last bigint, p_departed bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH limited AS (
    SELECT e.id, (e.options->>'max_queue_size')::bigint AS queue_max,
           coalesce(p.queued - (p_departed - p.departed), 0) AS least, p.queued + (p_last - p.at_id) AS most
    FROM postrider.endpoints e LEFT JOIN postrider._parts p ON p.endpoint_id = e.id
    WHERE e.dropped_at IS NULL AND (e.options->>'max_queue_size')::bigint > 0
  ), doubtful AS (
    SELECT *, sum(queue_max) OVER (ORDER BY least::float8 / queue_max, id) - queue_max AS before
    FROM limited WHERE (most < queue_max) IS NOT TRUE AND least < queue_max - queue_max / 40
  ), counted AS (
    SELECT id, queue_max, cardinality(postrider._queued_of(id, queue_max + 1)) AS count
    FROM doubtful WHERE before < 10 * postrider._counted_at_once()
  )
  INSERT INTO postrider._parts (endpoint_id, queued, at_id, departed)
  SELECT id, count, CASE WHEN count <= queue_max THEN p_last END, p_departed FROM counted
  ON CONFLICT (endpoint_id) DO UPDATE
  SET queued = excluded.queued, at_id = excluded.at_id, departed = excluded.departed;
END $$;

-- When the claimable message was or is due that comes first; those in a node's hands are not claimable.
CREATE FUNCTION postrider._oldest_pending(p_endpoint bigint, p_claimed bigint[]) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT min(first.due_at)
  FROM generate_series(0, 10) AS p (priority),
       LATERAL (SELECT q.due_at FROM postrider.queue q
                WHERE q.place = 0 AND q.endpoint_id = p_endpoint AND q.priority = p.priority
                  AND q.id <> ALL (p_claimed)
                ORDER BY q.due_at LIMIT 1) AS first
$$;

-- Since when the message waits that waits longest; behind an ordering key, too. What is due in the future does not yet.
CREATE FUNCTION postrider._waits_longest(p_endpoint bigint, p_claimed bigint[], p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  -- Another program may have written that one is due since the beginning of time, which has no distance from now.
  SELECT CASE WHEN min(first.due_at) < timestamptz 'epoch' THEN timestamptz 'epoch' ELSE min(first.due_at) END
  FROM (SELECT postrider._oldest_pending(p_endpoint, p_claimed) AS due_at
        UNION ALL
        (SELECT q.due_at FROM postrider.queue q WHERE q.place = 1 AND q.endpoint_id = p_endpoint
         ORDER BY q.due_at LIMIT 1)) AS first
  WHERE first.due_at <= p_now
$$;

-- None where it has not begun or is not over.
CREATE FUNCTION postrider._seconds_between(p_from timestamptz, p_to timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(greatest(extract(epoch FROM p_to - p_from), 0), 0)::double precision
$$;

-- How many are queued in all, cheaply.
CREATE FUNCTION postrider._queued() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_queued bigint := (SELECT count(*) FROM (SELECT FROM postrider.queue LIMIT postrider._counted_at_once() + 1) AS first_of_them);
BEGIN
  IF v_queued > postrider._counted_at_once() THEN
    SELECT greatest(v_queued, g.queued + (m.last_value - g.at_id)
             - ((SELECT coalesce(sum(departed), 0) FROM postrider._departures) - g.departed))
    INTO v_queued FROM postrider._gauge g, postrider.message_ids m;
  END IF;
  RETURN v_queued;
END $$;

-- One row for each endpoint, by name. With its owner's rights: views look here for people who may not read the queue.
CREATE FUNCTION postrider._endpoint_statuses()
RETURNS TABLE (endpoint_id bigint, name text, protocol text, enabled boolean, disabled_by text, paused boolean,
               circuit text, circuit_until timestamptz, held_until timestamptz, pending bigint, processing bigint,
               dead bigint, oldest_pending timestamptz, delivered bigint, failed bigint, consecutive_failures bigint,
               last_success_at timestamptz, last_failure_at timestamptz, last_error text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := postrider._now();
  v_once integer := postrider._counted_at_once();
  v_claimed bigint[] := postrider._claimed_ids();
  v_small boolean := NOT EXISTS (SELECT FROM postrider.queue OFFSET v_once);
  v_few_dead boolean := NOT EXISTS (SELECT FROM postrider.dlq WHERE status = 'failed' OFFSET v_once);
BEGIN
  RETURN QUERY
    WITH queued AS (
      SELECT q.endpoint_id, count(*) AS count FROM postrider.queue q WHERE v_small GROUP BY q.endpoint_id
      UNION ALL SELECT g.endpoint_id, g.queued FROM postrider._endpoint_gauge g WHERE NOT v_small
    ), dead AS (
      SELECT d.endpoint_id, count(*) AS count FROM postrider.dlq d WHERE v_few_dead AND d.status = 'failed'
      GROUP BY d.endpoint_id
      UNION ALL SELECT g.endpoint_id, g.dead FROM postrider._endpoint_gauge g WHERE NOT v_few_dead
    ), claimed AS (
      SELECT q.endpoint_id, count(*) AS count FROM postrider.queue q WHERE q.id = ANY (v_claimed)
      GROUP BY q.endpoint_id
    ), figures AS (
      SELECT e.id, greatest(coalesce(q.count, 0) - coalesce(c.count, 0), 0) AS pending, coalesce(c.count, 0) AS processing,
             coalesce(d.count, 0) AS dead
      FROM postrider.endpoints e LEFT JOIN queued q ON q.endpoint_id = e.id LEFT JOIN dead d ON d.endpoint_id = e.id
        LEFT JOIN claimed c ON c.endpoint_id = e.id
      WHERE e.dropped_at IS NULL
    )
    SELECT e.id, e.name, e.protocol, e.disabled_by IS NULL, e.disabled_by, e.paused, e.circuit, e.circuit_until,
           e.held_until, f.pending, f.processing, f.dead,
           CASE WHEN f.pending > 0 OR NOT v_small THEN postrider._waits_longest(e.id, v_claimed, v_now) END,
           r.delivered, r.retryable + r.permanent + r.gone + r.lost, r.consecutive_failures, r.last_success_at,
           r.last_failure_at, r.last_error
    FROM figures f JOIN postrider._endpoints e ON e.id = f.id JOIN postrider._results r ON r.endpoint_id = f.id
    ORDER BY e.name COLLATE "C";
END $$;

-- How many there are in all.
CREATE FUNCTION postrider._totals() RETURNS TABLE (pending bigint, processing bigint, dead bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_queued bigint := postrider._queued();
  v_processing bigint := (SELECT count(*) FROM postrider.queue WHERE id = ANY (postrider._claimed_ids()));
  v_dead bigint := (SELECT count(*) FROM (
    SELECT FROM postrider.dlq WHERE status = 'failed' LIMIT postrider._counted_at_once() + 1) AS first_of_them);
BEGIN
  IF v_dead > postrider._counted_at_once() THEN
    v_dead := greatest(v_dead, (SELECT dead FROM postrider._exact_count));
  END IF;
  RETURN QUERY VALUES (greatest(v_queued - v_processing, 0), v_processing, v_dead);
END $$;

-- The store as a whole.
CREATE FUNCTION postrider._status()
RETURNS TABLE (store text, schema_version integer, paused text, pending bigint, processing bigint, dead bigint,
               oldest_pending timestamptz)
LANGUAGE sql STABLE AS $$
  SELECT s.name, s.schema_version, s.paused_because, t.pending, t.processing, t.dead,
         (SELECT min(e.oldest_pending) FROM postrider._endpoint_statuses() e)
  FROM postrider._store s, postrider._totals() t
$$;

-- No secrets: neither config nor policies.
CREATE VIEW postrider.endpoint_status AS
  SELECT name, protocol, enabled, disabled_by, paused, circuit, circuit_until, held_until, pending, processing, dead,
         oldest_pending, delivered, failed, consecutive_failures, last_success_at, last_failure_at, last_error
  FROM postrider._endpoint_statuses();

CREATE FUNCTION postrider.get_endpoint_health(name text DEFAULT NULL)
RETURNS TABLE (endpoint text, healthy boolean, protocol text, enabled boolean, disabled_by text, paused boolean,
               circuit text, circuit_until timestamptz, held_until timestamptz, mode text, pending bigint,
               processing bigint, dead bigint, oldest_pending timestamptz, oldest_pending_seconds numeric,
               delivered bigint, failed bigint, consecutive_failures bigint, last_success_at timestamptz,
               last_failure_at timestamptz, last_error text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := postrider._now();
BEGIN
  IF get_endpoint_health.name IS NOT NULL AND NOT EXISTS (
       SELECT FROM postrider.endpoints e WHERE e.name = get_endpoint_health.name AND e.dropped_at IS NULL) THEN
    PERFORM postrider._unknown('endpoint', get_endpoint_health.name);
  END IF;
  RETURN QUERY
    SELECT s.name, s.enabled AND NOT s.paused AND s.circuit = 'closed', s.protocol, s.enabled, s.disabled_by, s.paused,
           s.circuit, s.circuit_until, CASE WHEN s.held_until > v_now THEN s.held_until END, 'cold', s.pending,
           s.processing, s.dead, s.oldest_pending,
           CASE WHEN s.oldest_pending IS NOT NULL
                THEN round(greatest(extract(epoch FROM v_now - s.oldest_pending), 0)::numeric, 3) END,
           s.delivered, s.failed, s.consecutive_failures, s.last_success_at, s.last_failure_at, s.last_error
    FROM postrider._endpoint_statuses() s
    WHERE get_endpoint_health.name IS NULL OR s.name = get_endpoint_health.name;
END $$;

-- One row for each part; status is ok, warning or critical.
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
          -- Without a node nothing was noted: these hold a lock now, and it is not known since when.
          SELECT DISTINCT h.lock, h.session, NULL::timestamptz, h.stops_delivery FROM postrider._lock_holders() h WHERE v_live = 0) AS w;
  RETURN QUERY SELECT 'dead_letters', CASE WHEN v_status.dead > 0 THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('failed', v_status.dead);
  RETURN QUERY SELECT 'archive',
    CASE WHEN v_ahead IS NULL OR v_ahead <= postrider._month(v_now) OR v_stray THEN 'warning' ELSE 'ok' END,
    jsonb_build_object('months_until', v_ahead::date, 'rows_in_default', v_stray);
END $$;

-- Figures under the names that /metrics has. The oldest hundred endpoints have their own, so that a series stays with
-- its endpoint however busy the others get; the rest is summed, and of what cannot be summed the worst is told. Attempts are
-- those of all nodes, as far as they told of them; /metrics of a node has its own. kind: counter or gauge.
CREATE FUNCTION postrider.metrics() RETURNS TABLE (name text, labels jsonb, value double precision, kind text)
-- The planner takes it for a long list, which would be worth compiling for.
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
      -- What dropped endpoints did stays among the others, so that no sum ever shrinks.
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
