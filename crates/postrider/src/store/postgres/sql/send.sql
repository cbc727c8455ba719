-- Send one message or a batch, in the caller's transaction: check, look for the holder of the idempotency key, insert.

-- Everything that a send needs to know of its endpoint, in one read.
CREATE TYPE postrider._destination AS (
  id bigint,
  name text,
  protocol text,
  key_scope bigint,
  queue_max bigint,
  disabled_by text,
  paused boolean,
  config jsonb,
  override_headers jsonb,
  max_queue_size bigint,
  max_payload_bytes bigint,
  max_headers_bytes bigint,
  max_key_bytes bigint,
  max_batch_messages bigint,
  stale_recovery_timeout interval,
  -- `queued`: an upper bound, before departures since `counted_at`. `unsure`: how many of these may be sends that rolled back.
  -- See _gauge.
  queued bigint,
  unsure bigint,
  departed bigint,
  counted_at timestamptz,
  at_id bigint,
  last_id bigint
);

-- A list of messages, column by column.
CREATE TYPE postrider._batch AS (
  payloads bytea[],
  content_types text[],
  priorities integer[],
  scheduled_at timestamptz[],
  idempotency_keys text[],
  correlation_ids uuid[],
  expires_at timestamptz[],
  ordering_keys text[],
  headers jsonb[],
  options jsonb[],
  event_types text[]
);

CREATE FUNCTION postrider._destination(p_endpoint text) RETURNS postrider._destination
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v postrider._destination;
BEGIN
  SELECT e.id, e.name, e.protocol, CASE WHEN e.options->>'key_scope' = 'global' THEN 0 ELSE e.id END,
         (e.options->>'max_queue_size')::bigint, e.disabled_by, e.paused, e.config, e.options->'override_headers',
         l.max_queue_size, l.max_payload_bytes, l.max_headers_bytes, l.max_key_bytes, l.max_batch_messages,
         l.stale_recovery_timeout, g.queued + (m.last_value - g.at_id), m.last_value - g.exact_id, g.departed, g.counted_at,
         g.at_id, m.last_value
  INTO v
  FROM postrider.endpoints e, postrider._limits l, postrider._gauge g, postrider.message_ids m
  -- `single`: the planner keeps a plan for exactly one row.
  WHERE e.name = p_endpoint AND e.dropped_at IS NULL AND l.single AND g.single;
  IF v.id IS NULL THEN
    PERFORM postrider._unknown('endpoint', p_endpoint);
  END IF;
  IF v.disabled_by = 'operator' THEN
    RAISE EXCEPTION USING ERRCODE = '55000', COLUMN = 'endpoint', CONSTRAINT = p_endpoint,
      MESSAGE = format('endpoint "%s" is disabled; enable it to send to it', p_endpoint);
  END IF;
  RETURN v;
END $$;

-- The destinations of all these names, in one read.
CREATE FUNCTION postrider._destinations(p_names text[]) RETURNS postrider._destination[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  v postrider._destination[];
BEGIN
  SELECT array_agg(ROW(e.id, e.name, e.protocol, CASE WHEN e.options->>'key_scope' = 'global' THEN 0 ELSE e.id END,
           (e.options->>'max_queue_size')::bigint, e.disabled_by, e.paused, e.config, e.options->'override_headers',
           l.max_queue_size, l.max_payload_bytes, l.max_headers_bytes, l.max_key_bytes, l.max_batch_messages,
           l.stale_recovery_timeout, l.queued, l.unsure, l.departed, l.counted_at, l.at_id,
           l.last_id)::postrider._destination)
  INTO v
  FROM (SELECT l.*, g.queued + (m.last_value - g.at_id) AS queued, m.last_value - g.exact_id AS unsure, g.departed,
          g.counted_at, g.at_id, m.last_value AS last_id
        FROM postrider._limits l, postrider._gauge g, postrider.message_ids m WHERE l.single AND g.single LIMIT 1) AS l
    CROSS JOIN postrider.endpoints e
  WHERE e.name = ANY (p_names) AND e.dropped_at IS NULL AND e.disabled_by IS DISTINCT FROM 'operator';
  IF cardinality(v) IS DISTINCT FROM cardinality(p_names) THEN
    -- Raises the error of the missing one.
    PERFORM postrider._destination(n) FROM unnest(p_names) AS n;
  END IF;
  RETURN v;
END $$;

CREATE FUNCTION postrider._check_key(p_field text, p_key text, p_max bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF octet_length(p_key) > p_max THEN
    PERFORM postrider._too_large(p_field, octet_length(p_key), p_max, 'max_key_bytes');
  END IF;
  IF p_key = '' OR p_key ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
    PERFORM postrider._invalid(p_field, 'must not be empty and has no control characters');
  END IF;
END $$;

-- The range that nodes can represent.
CREATE FUNCTION postrider._check_time(p_field text, p_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT isfinite(p_at) OR p_at >= '9999-12-30 00:00:00+00' THEN
    PERFORM postrider._invalid(p_field, 'must be a time before 9999-12-30');
  END IF;
END $$;

-- The rules of every message. p_within is the prefix of fields in a batch, `messages[3].`, or empty.
CREATE FUNCTION postrider._check_message(
  p_within text, d postrider._destination, p_bytes bigint, p_content_type text, p_priority integer,
  p_scheduled_at timestamptz, p_expires_at timestamptz, p_idempotency_key text, p_ordering_key text, p_event_type text,
  p_headers jsonb, p_options jsonb
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_priority IS NULL OR p_priority NOT BETWEEN 0 AND 10 THEN
    PERFORM postrider._invalid(p_within || 'priority', 'must be from 0 to 10');
  END IF;
  IF p_bytes IS NULL THEN
    PERFORM postrider._invalid(p_within || 'payload', 'is required');
  END IF;
  IF p_bytes > d.max_payload_bytes THEN
    PERFORM postrider._too_large(p_within || 'payload', p_bytes, d.max_payload_bytes, 'max_payload_bytes');
  END IF;
  IF p_content_type IS NULL OR octet_length(p_content_type) NOT BETWEEN 1 AND 256 OR p_content_type ~ '[^ -~]' THEN
    PERFORM postrider._invalid(p_within || 'content_type', 'must be 1 to 256 printable ASCII characters');
  END IF;
  IF p_headers IS NOT NULL THEN
    PERFORM postrider._check_message_headers(p_within || 'headers', d.protocol, d.config, d.override_headers,
      d.max_headers_bytes, p_headers);
  END IF;
  IF p_ordering_key IS NOT NULL THEN
    PERFORM postrider._check_key(p_within || 'ordering_key', p_ordering_key, d.max_key_bytes);
  END IF;
  IF p_idempotency_key IS NOT NULL THEN
    PERFORM postrider._check_key(p_within || 'idempotency_key', p_idempotency_key, d.max_key_bytes);
  END IF;
  IF p_event_type IS NOT NULL THEN
    PERFORM postrider._check_key(p_within || 'event_type', p_event_type, d.max_key_bytes);
  END IF;
  IF p_options IS NOT NULL AND p_options <> '{}' THEN
    PERFORM postrider._check_message_options(p_within || 'options', d.protocol, d.config, p_options,
      d.stale_recovery_timeout);
    -- Maps of names and texts are headers by another name.
    PERFORM postrider._too_large(p_within || 'options', v_bytes, d.max_headers_bytes, 'max_headers_bytes')
    FROM (SELECT sum(octet_length(e.key) + octet_length(e.value)) AS v_bytes
          FROM jsonb_each(p_options) AS o (key, value),
               jsonb_each_text(CASE WHEN postrider._is_object(o.value) THEN o.value ELSE '{}' END) AS e) AS maps
    WHERE v_bytes > d.max_headers_bytes;
  END IF;
  IF p_scheduled_at IS NOT NULL THEN
    PERFORM postrider._check_time(p_within || 'scheduled_at', p_scheduled_at);
  END IF;
  IF p_expires_at IS NOT NULL THEN
    PERFORM postrider._check_time(p_within || 'expires_at', p_expires_at);
  END IF;
  IF p_expires_at <= p_scheduled_at THEN
    PERFORM postrider._invalid(p_within || 'expires_at', 'must be later than scheduled_at');
  END IF;
END $$;

-- Compared when the payload itself has left the queue.
CREATE FUNCTION postrider._digest(p_content_type text, p_payload bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT sha256(convert_to(p_content_type, 'UTF8') || E'\\x00'::bytea || p_payload) $$;

-- Senders of one idempotency key wait for each other here, so that exactly one inserts; under REPEATABLE READ the second cannot
-- see the first and gets 40001. As with ordering keys, a batch with very many locks whole stripes.
CREATE FUNCTION postrider._lock_idempotency_keys(p_endpoints bigint[], p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._lock_sorted(:lock_idempotency_stripe,
    ARRAY(SELECT postrider._key(~k.endpoint, k.key) FROM unnest(p_endpoints, p_keys) AS k (endpoint, key)));
END $$;

-- Without a holder the key belongs to an earlier message of the same batch, whose id is rolled back. DETAIL has the index of the
-- refused message.
CREATE FUNCTION postrider._idempotency_conflict(p_holder bigint, p_at integer, p_listed boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_field text := CASE WHEN p_listed THEN format('messages[%s].', p_at) ELSE '' END || 'idempotency_key';
BEGIN
  RAISE EXCEPTION USING ERRCODE = '23505', COLUMN = v_field, CONSTRAINT = coalesce(p_holder::text, ''),
    DETAIL = json_build_object('at', p_at)::text,
    MESSAGE = format('%s: %s has the same key and another payload or content type, or was erased', v_field,
      CASE WHEN p_holder IS NULL THEN 'a message before it in the batch'
           ELSE format('message %s of this endpoint', p_holder) END);
END $$;

-- The message that holds the key, or null. The key is locked. Planner settings: see _place_of_new.
CREATE FUNCTION postrider._idempotency_holder(
  d postrider._destination, p_key text, p_payload bytea, p_content_type text, p_now timestamptz, p_at integer,
  p_listed boolean
) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_held record;
  v_same boolean;
BEGIN
  SELECT id, expires_at, payload = p_payload AND content_type = p_content_type AS same INTO v_held
  FROM postrider.queue WHERE endpoint_id = d.id AND idempotency_key = p_key;
  IF FOUND THEN
    IF v_held.expires_at <= p_now AND NOT postrider._is_read_committed() THEN
      -- An old snapshot does not show whether a node is delivering it. Nodes expire it within a second.
      RAISE EXCEPTION USING ERRCODE = '40001',
        MESSAGE = 'could not serialize access: the message with the same idempotency key is expiring; try again';
    END IF;
    IF v_held.expires_at <= p_now THEN
      -- Wait for a transaction that expires or claims it.
      PERFORM FROM postrider.queue WHERE id = v_held.id FOR UPDATE;
      IF NOT FOUND THEN
        -- It may have been delivered instead, and its key reserved.
        RETURN postrider._idempotency_holder(d, p_key, p_payload, p_content_type, p_now, p_at, p_listed);
      END IF;
      IF (postrider._expire_message(v_held.id)).id IS NOT NULL THEN
        RETURN NULL;
      END IF;
    END IF;
  ELSE
    SELECT message_id AS id, digest = postrider._digest(p_content_type, p_payload) AS same INTO v_held
    FROM postrider._reservations WHERE endpoint_id = d.id AND idempotency_key = p_key AND until > p_now;
  END IF;
  IF NOT FOUND THEN
    -- An old snapshot may hide a reservation: inserting one that has already ended conflicts with it and raises 40001.
    IF NOT postrider._is_read_committed() AND (SELECT idempotency_retention > interval '0' FROM postrider._limits) THEN
      INSERT INTO postrider._reservations (endpoint_id, idempotency_key, message_id, digest, until)
      VALUES (d.id, p_key, 0, '', p_now) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
  END IF;
  IF v_held.same IS NOT TRUE THEN
    PERFORM postrider._idempotency_conflict(v_held.id, p_at, p_listed);
  END IF;
  RETURN v_held.id;
END $$;

-- The place of a new message with this key. The key is locked. A sender with an old snapshot cannot see whether other messages
-- come first, so the message goes behind the key and a node checks. Planner settings: plans are cached, and one that was made for a
-- short queue must not read all of a long one.
CREATE FUNCTION postrider._place_of_new(p_key bigint) RETURNS smallint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  IF NOT postrider._is_read_committed() THEN
    INSERT INTO postrider._stalled_keys (key) VALUES (p_key);
    RETURN :behind_key;
  END IF;
  IF EXISTS (SELECT FROM postrider.queue WHERE postrider._key(key_scope, ordering_key) = p_key)
     OR postrider._key_is_held(p_key) OR EXISTS (SELECT FROM postrider._stalled_keys WHERE key = p_key) THEN
    RETURN :behind_key;
  END IF;
  RETURN :ready;
END $$;

CREATE FUNCTION postrider._send(
  p_endpoint text, p_payload bytea, p_content_type text, p_priority integer, p_scheduled_at timestamptz,
  p_idempotency_key text, p_correlation_id uuid, p_expires_at timestamptz, p_ordering_key text, p_headers jsonb,
  p_options jsonb, p_event_type text, OUT id bigint, OUT duplicate boolean
) LANGUAGE plpgsql AS $$
DECLARE
  d postrider._destination := postrider._destination(p_endpoint);
  v_now timestamptz := postrider._now();
  v_key bigint := postrider._key(d.key_scope, p_ordering_key);
  v_place smallint := :ready;
BEGIN
  PERFORM postrider._check_message('', d, octet_length(p_payload), p_content_type, p_priority, p_scheduled_at,
    p_expires_at, p_idempotency_key, p_ordering_key, p_event_type, p_headers, p_options);
  duplicate := false;
  -- _send_batch handles a key whose holder is not visible.
  IF p_idempotency_key IS NOT NULL AND NOT postrider._is_read_committed() THEN
    SELECT b.id, b.duplicate INTO id, duplicate FROM postrider._send_batch(NULL, ARRAY[p_endpoint], ARRAY[p_payload],
      ARRAY[p_content_type], ARRAY[p_priority], ARRAY[p_scheduled_at], ARRAY[p_idempotency_key], ARRAY[p_correlation_id],
      ARRAY[p_expires_at], ARRAY[p_ordering_key], ARRAY[p_headers], ARRAY[p_options], ARRAY[p_event_type]) AS b;
    RETURN;
  END IF;
  IF p_idempotency_key IS NOT NULL THEN
    -- Both locks before any look-up: expiring the holder advances its ordering key, and a transaction that holds that key must
    -- not wait for another one.
    PERFORM postrider._lock_idempotency_keys(ARRAY[d.id], ARRAY[p_idempotency_key]);
    IF v_key IS NOT NULL THEN
      PERFORM postrider._lock_key(v_key);
    END IF;
    id := postrider._idempotency_holder(d, p_idempotency_key, p_payload, p_content_type, v_now, 0, false);
    IF id IS NOT NULL THEN
      duplicate := true;
      RETURN;
    END IF;
  END IF;
  PERFORM postrider._make_room(d, 1);
  IF v_key IS NOT NULL THEN
    IF p_idempotency_key IS NULL THEN
      PERFORM postrider._lock_key(v_key);
    END IF;
    v_place := postrider._place_of_new(v_key);
  END IF;
  -- After the lock: within a key, ids grow in commit order.
  id := nextval('postrider.message_ids');
  INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, place, priority, scheduled_at, expires_at,
    key_scope, key_position, correlation_id, content_type, ordering_key, idempotency_key, event_type, headers,
    options, payload)
  VALUES (id, greatest(v_now, p_scheduled_at), v_now, d.id, v_place, p_priority, p_scheduled_at, p_expires_at,
    CASE WHEN v_key IS NOT NULL THEN d.key_scope END, CASE WHEN v_key IS NOT NULL THEN id END, p_correlation_id,
    p_content_type, p_ordering_key, p_idempotency_key, p_event_type, nullif(p_headers, '{}'), nullif(p_options, '{}'), p_payload);
  PERFORM postrider._tell_nodes(d);
END $$;

-- Many messages, all or nothing: all to p_endpoint, or each to its own (p_endpoints). Arrays have one entry per message; a null array
-- means that no message has a value. Returns one row per message, in order. Errors name the index of the message in the list, or
-- of its event (p_events).
CREATE FUNCTION postrider._send_batch(
  p_endpoint text, p_endpoints text[], p_payloads bytea[], p_content_types text[], p_priorities integer[],
  p_scheduled_at timestamptz[], p_idempotency_keys text[], p_correlation_ids uuid[], p_expires_at timestamptz[],
  p_ordering_keys text[], p_headers jsonb[], p_options jsonb[], p_event_types text[], p_events bigint[] DEFAULT NULL
) RETURNS TABLE (id bigint, duplicate boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_count integer := coalesce(cardinality(p_payloads), 0);
  v_now timestamptz := postrider._now();
  v_names text[] := CASE WHEN p_endpoints IS NULL THEN ARRAY[p_endpoint]
                         ELSE ARRAY(SELECT DISTINCT n FROM unnest(p_endpoints) AS n ORDER BY n) END;
  v_destinations postrider._destination[];
  d postrider._destination;
  -- For each message the index of its destination, its endpoint and its key scope; null when all have the first destination.
  v_at integer[];
  v_endpoints bigint[];
  v_scopes bigint[];
  m record;
  v_known bigint[];
  v_first integer[];
  v_new integer;
BEGIN
  IF v_count = 0 THEN
    RETURN;
  END IF;
  v_destinations := postrider._destinations(v_names);
  d := v_destinations[1];
  IF v_count > d.max_batch_messages THEN
    PERFORM postrider._too_large('messages', v_count, d.max_batch_messages, 'max_batch_messages');
  END IF;
  IF cardinality(v_names) > 1 THEN
    SELECT array_agg(o.ordinality::integer ORDER BY m.ord), array_agg(o.id ORDER BY m.ord), array_agg(o.key_scope ORDER BY m.ord)
    INTO v_at, v_endpoints, v_scopes
    FROM unnest(p_endpoints) WITH ORDINALITY AS m (name, ord) JOIN unnest(v_destinations) WITH ORDINALITY AS o ON o.name = m.name;
  END IF;
  -- One pass over all of them; only messages with something to check are checked one by one.
  FOR m IN
    SELECT t.*
    FROM unnest(p_payloads, p_content_types, p_priorities, p_scheduled_at, p_expires_at, p_idempotency_keys,
                p_ordering_keys, p_event_types, p_headers, p_options, v_at)
           WITH ORDINALITY AS t (payload, content_type, priority, scheduled_at, expires_at, idempotency_key, ordering_key,
                                 event_type, headers, options, destination, ord)
    WHERE t.payload IS NULL OR octet_length(t.payload) > d.max_payload_bytes
       OR (p_content_types IS NOT NULL AND t.content_type IS DISTINCT FROM 'application/json')
       OR (p_priorities IS NOT NULL AND t.priority IS DISTINCT FROM 0) OR t.scheduled_at IS NOT NULL
       OR t.expires_at IS NOT NULL OR t.idempotency_key IS NOT NULL OR t.ordering_key IS NOT NULL
       OR t.headers IS NOT NULL OR t.options IS NOT NULL
       -- Messages of one event share its type, which is checked once.
       OR ((t.ord = 1 OR t.event_type <> p_event_types[1]) AND (octet_length(t.event_type) > d.max_key_bytes
           OR t.event_type = '' OR t.event_type ~ E'[\\u0001-\\u001f\\u007f-\\u009f]'))
    ORDER BY t.ord
  LOOP
    PERFORM postrider._check_message(CASE WHEN p_endpoints IS NULL THEN format('messages[%s].', m.ord - 1)
                                          WHEN p_events IS NOT NULL THEN format('events[%s].', p_events[m.ord] - 1)
                                          ELSE '' END,
      v_destinations[coalesce(m.destination, 1)], octet_length(m.payload),
      CASE WHEN p_content_types IS NULL THEN 'application/json' ELSE m.content_type END,
      CASE WHEN p_priorities IS NULL THEN 0 ELSE m.priority END, m.scheduled_at, m.expires_at,
      m.idempotency_key, m.ordering_key, m.event_type, m.headers, m.options);
  END LOOP;
  -- All locks, in order, before any look-up: expiring a holder advances its ordering key.
  IF p_idempotency_keys IS NOT NULL THEN
    PERFORM postrider._lock_idempotency_keys(array_agg(coalesce(k.endpoint_id, d.id)), array_agg(k.key))
    FROM unnest(p_idempotency_keys, v_endpoints) AS k (key, endpoint_id) WHERE k.key IS NOT NULL;
  END IF;
  IF p_ordering_keys IS NOT NULL THEN
    PERFORM postrider._lock_keys(array_agg(postrider._key(coalesce(k.key_scope, d.key_scope), k.key)))
    FROM unnest(p_ordering_keys, v_scopes) AS k (key, key_scope) WHERE k.key IS NOT NULL;
  END IF;
  IF p_idempotency_keys IS NOT NULL THEN
    SELECT f.known, f.first INTO v_known, v_first
    FROM postrider._batch_holders(v_destinations, v_at, p_endpoints IS NULL, p_payloads, p_content_types,
      p_idempotency_keys, v_now) f;
  END IF;
  v_new := CASE WHEN v_known IS NULL THEN v_count
                ELSE (SELECT count(*) FROM unnest(v_known, v_first) AS f (k, s) WHERE k IS NULL AND s IS NULL) END;
  IF v_new > 0 THEN
    PERFORM postrider._make_room_for_batch(v_destinations, p_endpoints, v_known, v_first, v_new);
  END IF;
  -- Without keys there are no duplicates, and no message comes first.
  IF p_idempotency_keys IS NULL AND p_ordering_keys IS NULL THEN
    RETURN QUERY
      INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, priority, scheduled_at, expires_at, correlation_id,
        content_type, event_type, headers, options, payload)
      SELECT nextval('postrider.message_ids'), greatest(v_now, t.scheduled_at), v_now, coalesce(t.endpoint_id, d.id),
        coalesce(t.priority, 0), t.scheduled_at, t.expires_at, t.correlation_id,
        coalesce(t.content_type, 'application/json'), t.event_type, nullif(t.headers, '{}'), nullif(t.options, '{}'),
        t.payload
      FROM unnest(p_payloads, p_content_types, p_priorities, p_scheduled_at, p_expires_at, p_event_types, p_headers,
                  p_options, p_correlation_ids, v_endpoints)
             AS t (payload, content_type, priority, scheduled_at, expires_at, event_type, headers, options, correlation_id,
                   endpoint_id)
      RETURNING queue.id, false;
    PERFORM postrider._ring(o.id, clock_timestamp()) FROM unnest(v_destinations) AS o WHERE NOT o.paused;
    RETURN;
  END IF;
  BEGIN
    RETURN QUERY
      WITH message AS MATERIALIZED (
        SELECT t.ord, t.payload, t.content_type, t.priority, t.scheduled_at, t.expires_at, t.idempotency_key,
               t.ordering_key, t.event_type, t.headers, t.options, t.correlation_id, coalesce(t.endpoint_id, d.id) AS endpoint_id,
               CASE WHEN t.ordering_key IS NOT NULL THEN coalesce(t.key_scope, d.key_scope) END AS key_scope,
               v_known[t.ord] AS known, v_first[t.ord] AS first,
               CASE WHEN v_known[t.ord] IS NULL AND v_first[t.ord] IS NULL THEN nextval('postrider.message_ids') END AS id
        FROM unnest(p_payloads, p_content_types, p_priorities, p_scheduled_at, p_expires_at, p_idempotency_keys,
                    p_ordering_keys, p_event_types, p_headers, p_options, p_correlation_ids, v_endpoints, v_scopes)
               WITH ORDINALITY AS t (payload, content_type, priority, scheduled_at, expires_at, idempotency_key, ordering_key,
                                     event_type, headers, options, correlation_id, endpoint_id, key_scope, ord)
        ORDER BY t.ord
      ), place AS (
        SELECT k.first_id, postrider._place_of_new(k.key) AS place
        FROM (SELECT postrider._key(m.key_scope, m.ordering_key) AS key, min(m.id) AS first_id FROM message m
              WHERE m.ordering_key IS NOT NULL AND m.id IS NOT NULL GROUP BY 1) AS k
      ), inserted AS (
        INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, place, priority, scheduled_at, expires_at,
          key_scope, key_position, correlation_id, content_type, ordering_key, idempotency_key, event_type, headers, options,
          payload)
        SELECT m.id, greatest(v_now, m.scheduled_at), v_now, m.endpoint_id,
          CASE WHEN m.ordering_key IS NULL THEN :ready ELSE coalesce(p.place, :behind_key) END,
          coalesce(m.priority, 0), m.scheduled_at, m.expires_at, m.key_scope,
          CASE WHEN m.ordering_key IS NOT NULL THEN m.id END, m.correlation_id,
          coalesce(m.content_type, 'application/json'), m.ordering_key, m.idempotency_key, m.event_type,
          nullif(m.headers, '{}'), nullif(m.options, '{}'), m.payload
        FROM message m LEFT JOIN place p ON p.first_id = m.id
        WHERE m.id IS NOT NULL ORDER BY m.ord
      )
      SELECT coalesce(m.known, m.id, f.id), m.id IS NULL
      FROM message m LEFT JOIN message f ON f.ord = m.first ORDER BY m.ord;
  EXCEPTION WHEN unique_violation THEN
    -- The holder of the key is not visible in an old snapshot.
    IF postrider._is_read_committed() THEN
      RAISE;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '40001',
      MESSAGE = 'could not serialize access: another transaction sent with the same idempotency key; try again';
  END;
  IF v_new > 0 THEN
    PERFORM postrider._ring(o.id, clock_timestamp()) FROM unnest(v_destinations) AS o WHERE NOT o.paused;
  END IF;
END $$;

-- Duplicates in a batch: `known` has the id of the message that holds the same key, `first` the index of the earlier message in the
-- batch that will hold it. The keys are locked. p_at is null when all have the first destination.
CREATE FUNCTION postrider._batch_holders(
  p_destinations postrider._destination[], p_at integer[], p_listed boolean, p_payloads bytea[], p_content_types text[],
  p_keys text[], p_now timestamptz, OUT known bigint[], OUT first integer[]
) LANGUAGE plpgsql AS $$
DECLARE
  m record;
BEGIN
  known := array_fill(NULL::bigint, ARRAY[cardinality(p_payloads)]);
  first := array_fill(NULL::integer, ARRAY[cardinality(p_payloads)]);
  FOR m IN
    SELECT k.key, k.ord::integer, p_payloads[k.ord] AS payload, coalesce(k.destination, 1) AS destination,
           coalesce(p_content_types[k.ord], 'application/json') AS content_type,
           min(k.ord) OVER (PARTITION BY k.destination, k.key)::integer AS first_ord
    FROM unnest(p_keys, p_at) WITH ORDINALITY AS k (key, destination, ord)
    WHERE k.key IS NOT NULL ORDER BY k.ord
  LOOP
    IF m.ord = m.first_ord OR known[m.first_ord] IS NOT NULL THEN
      known[m.ord] := postrider._idempotency_holder(p_destinations[m.destination], m.key, m.payload, m.content_type,
        p_now, m.ord - 1, p_listed);
    ELSIF m.payload = p_payloads[m.first_ord]
      AND m.content_type = coalesce(p_content_types[m.first_ord], 'application/json') THEN
      first[m.ord] := m.first_ord;
    ELSE
      PERFORM postrider._idempotency_conflict(NULL, m.ord - 1, p_listed);
    END IF;
  END LOOP;
END $$;
