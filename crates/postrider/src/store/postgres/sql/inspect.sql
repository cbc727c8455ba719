-- For people: a message's story, and the state of the store. The cost does not grow with the queue.

-- A time as the program writes it: in UTC, without trailing zeros.
CREATE FUNCTION postrider._shown(p_at timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT regexp_replace(to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), E'\\.?0+$', '') || 'Z'
$$;

-- A payload as JSON; null when it is not JSON.
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
  -- It becomes ready when the transaction that holds the key or the message ends. Only nodes know how long that has taken.
  v_holder := postrider._key_holder(v_key);
  RETURN format('behind key %s', postrider._quoted(q.ordering_key))
    || coalesce(': held by the open transaction of ' || v_holder, '')
    || coalesce(' since ' || postrider._shown((SELECT min(w.since) FROM postrider._now_in_the_way() w
         WHERE w.session = v_holder AND w.lock = 'an ordering or idempotency key')), '');
END $$;

-- The first reason that has nothing to do with the receiver, in the order in which a node checks.
CREATE FUNCTION postrider._held_back(q postrider.queue, e postrider._endpoints) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_paused text := (SELECT paused_because FROM postrider._store);
BEGIN
  RETURN CASE
    WHEN v_paused IS NOT NULL THEN 'everything is paused: ' || v_paused
    WHEN e.dropped_at IS NOT NULL THEN format('endpoint %s was dropped', postrider._quoted(e.name))
    WHEN e.paused THEN format('endpoint %s is paused', postrider._quoted(e.name))
    WHEN e.disabled_by IS NOT NULL THEN format('endpoint %s is disabled', postrider._quoted(e.name))
    WHEN q.place = :behind_key THEN postrider._behind_key(q)
    WHEN q.due_at > postrider._now() AND q.attempts = 0
      THEN 'scheduled: next try at ' || postrider._shown(q.due_at)
  END;
END $$;

-- The first reason why a message is not delivered, in the order in which a node checks.
CREATE FUNCTION postrider._why_not_yet(q postrider.queue, e postrider._endpoints) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_now timestamptz := postrider._now();
  v_limited_until timestamptz := (
    SELECT r.next_at FROM postrider._rate_grant(e.options->'rate_limit', e.rate_position, v_now, 1) AS r
    WHERE e.options ? 'rate_limit' AND r.granted = 0);
BEGIN
  RETURN CASE WHEN postrider._live_nodes() = 0 THEN 'no node runs; ' ELSE '' END
    || coalesce(postrider._held_back(q, e), CASE
    WHEN q.due_at > v_now AND e.circuit = 'open'
      THEN format('waiting after attempt %s, circuit open: next try at %s', q.attempts,
        postrider._shown(greatest(q.due_at, e.circuit_until)))
    WHEN q.due_at > v_now
      THEN format('waiting after attempt %s: next try at %s', q.attempts, postrider._shown(q.due_at))
    WHEN e.circuit = 'open' THEN 'circuit open: next try at ' || postrider._shown(e.circuit_until)
    WHEN e.circuit = 'half_open' THEN 'circuit half open: one probe at a time'
    WHEN e.held_until > v_now
      THEN 'the receiver asked to wait: next try at ' || postrider._shown(e.held_until)
    WHEN q.place = :on_probation THEN 'on probation: its claim was lost with a node, so it is tried with few others'
    WHEN v_limited_until IS NOT NULL THEN 'rate limited: next try at ' || postrider._shown(v_limited_until)
    ELSE coalesce(
      (SELECT format('due now, but %s holds the lock of %s since %s', w.session, w.lock, postrider._shown(w.since))
       FROM postrider._now_in_the_way() w
       WHERE w.stops_delivery AND (w.endpoint_id IS NULL OR w.endpoint_id = e.id) LIMIT 1),
      'due now')
  END);
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

-- Everything but the attempts, wherever the message is now; 42704 when it is unknown.
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

-- The last p_limit messages that were replayed from it, oldest first.
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
        'response_status', a.response_status,
        'response_body_base64', replace(encode(a.response_body, 'base64'), E'\n', '')) ORDER BY a.number, a.started_at), '[]')
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

-- The due time of the message that has been waiting longest, behind its ordering key or not.
CREATE FUNCTION postrider._waits_longest(p_endpoint bigint, p_claimed bigint[], p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  -- Another program may have written -infinity, which has no distance from now.
  SELECT CASE WHEN min(first.due_at) < timestamptz 'epoch' THEN timestamptz 'epoch' ELSE min(first.due_at) END
  FROM (SELECT postrider._oldest_pending(p_endpoint, p_claimed) AS due_at
        UNION ALL
        (SELECT q.due_at FROM postrider.queue q WHERE q.place = :behind_key AND q.endpoint_id = p_endpoint
         ORDER BY q.due_at LIMIT 1)) AS first
  WHERE first.due_at <= p_now
$$;

-- One row per endpoint, by name. SECURITY DEFINER: roles that may read the views may not read the queue.
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

-- Messages in all, by state.
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
