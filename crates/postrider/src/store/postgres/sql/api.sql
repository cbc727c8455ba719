-- What applications call to send, inside their own transactions.

-- One JSON message without options, the common case: one read, one insert. Everything out of the ordinary goes the
-- long way, which also knows how to refuse.
CREATE FUNCTION postrider.send(endpoint_name text, payload jsonb) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_payload bytea := convert_to(payload::text, 'UTF8');
  v_now timestamptz := postrider._now();
  v_id bigint;
  v_endpoint bigint;
  v_accepts boolean;
  v_paused boolean;
  v_bytes_max bigint;
  v_id_max bigint;
BEGIN
  -- Only the name comes from outside, and there is one row of everything: so the planner keeps its plan. The queue is not
  -- full before this id: ids given since the last count are the most that can have come. None is taken before that is known,
  -- or those of refused sends would be counted, too.
  SELECT e.id, e.disabled_by IS DISTINCT FROM 'operator' AND NOT e.options ? 'max_queue_size', e.paused,
         l.max_payload_bytes, CASE WHEN l.max_queue_size = 0 THEN 9223372036854775807
                                   ELSE g.at_id + l.max_queue_size - g.queued END
  INTO v_endpoint, v_accepts, v_paused, v_bytes_max, v_id_max
  FROM postrider.endpoints e, postrider._limits l, postrider._gauge g
  WHERE e.name = endpoint_name AND e.dropped_at IS NULL AND l.single AND g.single;
  -- A value of 128 levels has 256 brackets.
  IF (v_accepts AND octet_length(v_payload) <= v_bytes_max
      AND (octet_length(v_payload) <= 256 OR NOT postrider._is_too_deep(payload))
      AND coalesce(pg_sequence_last_value('postrider.message_ids'), 0) < v_id_max) IS NOT TRUE THEN
    PERFORM postrider._checked_depth('payload', payload);
    RETURN (postrider._send(endpoint_name, v_payload, 'application/json', 0, NULL, NULL, NULL, NULL, NULL,
                            NULL, NULL, NULL)).id;
  END IF;
  v_id := nextval('postrider.message_ids');
  INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, content_type, payload)
  VALUES (v_id, v_now, v_now, v_endpoint, 'application/json', v_payload);
  -- As in _ring, which reads the setting where there is one.
  IF v_paused THEN
    RETURN v_id;
  ELSIF current_setting('postrider.notify', true) <> '' THEN
    PERFORM postrider._ring(v_endpoint, v_now);
  ELSIF current_setting('postrider.rung', true) = 'yes'
     OR pg_try_advisory_xact_lock(hashint8extended(v_endpoint, (extract(epoch FROM v_now) * 100)::bigint)) THEN
    PERFORM pg_notify('postrider', v_endpoint::text), set_config('postrider.rung', 'yes', true);
  END IF;
  RETURN v_id;
END $$;

CREATE FUNCTION postrider.send_with_options(
  p_endpoint_name text, p_payload jsonb, p_priority integer DEFAULT 0, p_scheduled_at timestamptz DEFAULT NULL,
  p_idempotency_key text DEFAULT NULL, p_correlation_id uuid DEFAULT NULL, p_expires_at timestamptz DEFAULT NULL,
  p_ordering_key text DEFAULT NULL, p_headers jsonb DEFAULT NULL, p_options jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._checked_depth('payload', p_payload);
  RETURN (postrider._send(p_endpoint_name, convert_to(p_payload::text, 'UTF8'), 'application/json', p_priority,
    p_scheduled_at, p_idempotency_key, p_correlation_id, p_expires_at, p_ordering_key, p_headers, p_options, NULL)).id;
END $$;

CREATE FUNCTION postrider.send_bytes(
  p_endpoint_name text, p_payload bytea, p_content_type text, p_priority integer DEFAULT 0,
  p_scheduled_at timestamptz DEFAULT NULL, p_idempotency_key text DEFAULT NULL, p_correlation_id uuid DEFAULT NULL,
  p_expires_at timestamptz DEFAULT NULL, p_ordering_key text DEFAULT NULL, p_headers jsonb DEFAULT NULL,
  p_options jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._check_payload('payload', p_content_type, p_payload);
  RETURN (postrider._send(p_endpoint_name, p_payload, p_content_type, p_priority, p_scheduled_at, p_idempotency_key,
    p_correlation_id, p_expires_at, p_ordering_key, p_headers, p_options, NULL)).id;
END $$;

-- Asynchronous commit for this transaction: what it sends survives a crash of a process, and may be lost, with the rest
-- of the transaction, when the whole server stops in the moment before the log is on disk.
CREATE FUNCTION postrider.enable_fast_mode() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
END $$;

-- Many messages, all or nothing: a list that goes to p_endpoint, or with an endpoint each (p_endpoints). Arrays have an
-- entry for each message; a null array stands for "none has it". One row for each message, in order. What is refused of a
-- list is named with its place, what is refused of several events with that of its event (p_events).
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
  -- Of each message the place of its destination, its endpoint and its scope of keys; null where all have the first.
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
  -- One look at all of them; only what has something to be checked is checked one by one.
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
       -- Every message of an event has the same one, and it is good.
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
  -- All locks, in order, before anything is looked up: expiring a holder lets its own key go.
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
  -- Nearly all have no keys: nothing can be there already, and nothing is before them.
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
          CASE WHEN m.ordering_key IS NULL THEN 0 ELSE coalesce(p.place, 1) END,
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
    -- Somebody holds the key whom an old snapshot does not show.
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

-- Which messages of a batch are there already: `known` has the ids of those that hold the same key, `first` the place in
-- the batch of the one that is to hold it. The keys are locked. p_at is null where all have the first destination.
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

-- Refuses when the queue, or the part of any endpoint, has no room for what of the batch is new.
CREATE FUNCTION postrider._make_room_for_batch(
  p_destinations postrider._destination[], p_endpoints text[], p_known bigint[], p_first integer[], p_new bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  d postrider._destination := p_destinations[1];
BEGIN
  d.queue_max := NULL;
  PERFORM postrider._make_room(d, p_new);
  FOR d IN SELECT * FROM unnest(p_destinations) WHERE queue_max > 0 LOOP
    d.max_queue_size := 0;
    PERFORM postrider._make_room(d, CASE WHEN p_endpoints IS NULL THEN p_new ELSE (
      SELECT count(*) FROM unnest(p_endpoints, p_known, p_first) AS m (endpoint, known, first)
      WHERE m.endpoint = d.name AND m.known IS NULL AND m.first IS NULL) END);
  END LOOP;
END $$;

-- JSON messages without options, all or nothing: one read, one insert.
CREATE FUNCTION postrider.send_batch_with_priority(p_endpoint_name text, p_payloads jsonb[], p_priority integer DEFAULT 0)
RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_now timestamptz := postrider._now();
  v_count integer := coalesce(cardinality(p_payloads), 0);
  d postrider._destination;
  v_ids bigint[];
  v_largest bigint;
  v_empty boolean;
BEGIN
  d := postrider._destination(p_endpoint_name);
  IF v_count = 0 THEN
    RETURN '{}';
  END IF;
  IF v_count > d.max_batch_messages THEN
    PERFORM postrider._too_large('messages', v_count, d.max_batch_messages, 'max_batch_messages');
  END IF;
  PERFORM postrider._check_message('', d, 0, 'application/json', p_priority, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
  PERFORM postrider._checked_depth(format('messages[%s].payload', n - 1), p)
  FROM unnest(p_payloads) WITH ORDINALITY AS u (p, n) WHERE postrider._is_too_deep(p);
  PERFORM postrider._make_room(d, v_count);
  WITH inserted AS (
    INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, priority, content_type, payload)
    SELECT nextval('postrider.message_ids'), v_now, v_now, d.id, p_priority, 'application/json', convert_to(p::text, 'UTF8')
    FROM unnest(p_payloads) AS p
    RETURNING id, octet_length(payload) AS bytes
  )
  -- Ids were given in the order of the payloads.
  SELECT array_agg(id ORDER BY id), max(bytes), bool_or(bytes IS NULL) INTO v_ids, v_largest, v_empty FROM inserted;
  IF v_empty OR v_largest > d.max_payload_bytes THEN
    PERFORM postrider._check_message(format('messages[%s].', n - 1), d, octet_length(convert_to(p::text, 'UTF8')),
      'application/json', p_priority, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
    FROM unnest(p_payloads) WITH ORDINALITY AS u (p, n);
  END IF;
  PERFORM postrider._tell_nodes(d);
  RETURN v_ids;
END $$;

CREATE FUNCTION postrider.send_batch(p_endpoint_name text, p_payloads jsonb[]) RETURNS bigint[] LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN postrider.send_batch_with_priority(p_endpoint_name, p_payloads);
END $$;

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

-- Messages as a list of objects: payload, or payload_base64 with content_type; and the options of send_with_options.
CREATE FUNCTION postrider.send_batch_with_options(p_endpoint_name text, p_messages jsonb) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v postrider._batch;
BEGIN
  v := postrider._parsed_batch('messages', p_messages, postrider._message_fields());
  IF v.payloads IS NULL THEN
    PERFORM postrider._destination(p_endpoint_name);
  END IF;
  RETURN ARRAY(SELECT id FROM postrider._send_batch(p_endpoint_name, NULL, v.payloads, v.content_types, v.priorities,
    v.scheduled_at, v.idempotency_keys, v.correlation_ids, v.expires_at, v.ordering_keys, v.headers, v.options, NULL));
END $$;

CREATE FUNCTION postrider._message_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY['payload', 'payload_base64', 'content_type', 'priority', 'scheduled_at', 'idempotency_key', 'correlation_id',
    'expires_at', 'ordering_key', 'headers', 'options']
$$;

-- What is wrong with one message of a list, said with its place: messages[3].priority.
CREATE FUNCTION postrider._check_listed(p_field text, p_message jsonb, p_known text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
BEGIN
  IF NOT postrider._is_object(p_message) THEN
    PERFORM postrider._invalid(p_field, 'must be an object');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_message) ORDER BY key COLLATE "C" LOOP
    IF v_given.key <> ALL (p_known) THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v_given.key),
        'is not known here; known are: ' || array_to_string(p_known, ', '));
    ELSIF v_given.key = 'payload' OR v_given.value = 'null' THEN
      CONTINUE;
    ELSIF v_given.key = 'priority' THEN
      PERFORM postrider._check_whole(p_field || '.priority', v_given.value, 0, 10);
    ELSIF v_given.key NOT IN ('headers', 'options') AND jsonb_typeof(v_given.value) <> 'string' THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v_given.key), 'must be a string');
    END IF;
    BEGIN
      PERFORM CASE v_given.key WHEN 'scheduled_at' THEN (v_given.value #>> '{}')::timestamptz IS NULL
                               WHEN 'expires_at' THEN (v_given.value #>> '{}')::timestamptz IS NULL
                               WHEN 'correlation_id' THEN (v_given.value #>> '{}')::uuid IS NULL
                               WHEN 'payload_base64' THEN decode(v_given.value #>> '{}', 'base64') IS NULL END;
    EXCEPTION WHEN data_exception THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v_given.key),
        CASE v_given.key WHEN 'correlation_id' THEN 'must be a UUID' WHEN 'payload_base64' THEN 'must be base64'
                         ELSE 'must be a time' END);
    END;
  END LOOP;
  IF p_message ? 'payload_base64' THEN
    PERFORM postrider._check_payload(p_field || '.payload', p_message->>'content_type',
      decode(p_message->>'payload_base64', 'base64'));
  END IF;
  IF (p_message ? 'payload') = (p_message ? 'payload_base64') THEN
    PERFORM postrider._invalid(p_field || '.payload', CASE WHEN p_message ? 'payload'
      THEN 'cannot be given beside payload_base64' ELSE 'is required' END);
  END IF;
END $$;

CREATE FUNCTION postrider._parsed_batch(p_name text, p_messages jsonb, p_known text[]) RETURNS postrider._batch
LANGUAGE plpgsql AS $$
DECLARE
  v postrider._batch;
  m record;
  v_limit bigint := (SELECT max_batch_messages FROM postrider._limits);
BEGIN
  IF p_messages IS NULL OR jsonb_typeof(p_messages) <> 'array' THEN
    PERFORM postrider._invalid(p_name, 'must be a list of objects');
  END IF;
  IF jsonb_array_length(p_messages) > v_limit THEN
    PERFORM postrider._too_large(p_name, jsonb_array_length(p_messages), v_limit, 'max_batch_messages');
  END IF;
  IF postrider._has_too_deep_members(p_messages) THEN
    PERFORM postrider._checked_depth(format('%s[%s].%s', p_name, n - 1, member.key), member.value)
    FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS a (item, n),
      jsonb_each(CASE WHEN postrider._is_object(item) THEN item ELSE '{}' END) AS member;
  END IF;
  -- Nearly all have only a payload, and there is nothing to check in that.
  FOR m IN
    SELECT item, n FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS a (item, n)
    WHERE NOT (jsonb_typeof(item) = 'object' AND item ? 'payload' AND item - 'payload' = '{}')
  LOOP
    PERFORM postrider._check_listed(format('%s[%s]', p_name, m.n - 1), m.item, p_known);
  END LOOP;
  SELECT
    array_agg(CASE WHEN item ? 'payload' THEN convert_to((item->'payload')::text, 'UTF8')
                   ELSE decode(item->>'payload_base64', 'base64') END ORDER BY n),
    array_agg(coalesce(item->>'content_type', CASE WHEN item ? 'payload' THEN 'application/json'
                                                   ELSE 'application/octet-stream' END) ORDER BY n),
    array_agg(coalesce((item->>'priority')::integer, 0) ORDER BY n),
    array_agg((item->>'scheduled_at')::timestamptz ORDER BY n), array_agg(item->>'idempotency_key' ORDER BY n),
    array_agg((item->>'correlation_id')::uuid ORDER BY n), array_agg((item->>'expires_at')::timestamptz ORDER BY n),
    array_agg(item->>'ordering_key' ORDER BY n), array_agg(nullif(item->'headers', 'null') ORDER BY n),
    array_agg(nullif(item->'options', 'null') ORDER BY n), array_agg(item->>'event_type' ORDER BY n)
  INTO v FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS a (item, n);
  IF NOT EXISTS (SELECT FROM unnest(v.idempotency_keys) AS k WHERE k IS NOT NULL) THEN
    v.idempotency_keys := NULL;
  END IF;
  IF NOT EXISTS (SELECT FROM unnest(v.ordering_keys) AS k WHERE k IS NOT NULL) THEN
    v.ordering_keys := NULL;
  END IF;
  RETURN v;
END $$;

-- For the library: it has to know which message is a duplicate, and works with the rights of an application.
CREATE FUNCTION postrider._program_send(
  p_endpoint text, p_payload bytea, p_content_type text, p_priority smallint, p_scheduled_at timestamptz,
  p_idempotency_key text, p_correlation_id uuid, p_expires_at timestamptz, p_ordering_key text, p_headers jsonb,
  p_options jsonb, p_event_type text, OUT id bigint, OUT duplicate boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  SELECT s.id, s.duplicate INTO id, duplicate FROM postrider._send(p_endpoint, p_payload, p_content_type, p_priority,
    p_scheduled_at, p_idempotency_key, p_correlation_id, p_expires_at, p_ordering_key, p_headers, p_options,
    p_event_type) AS s;
END $$;

CREATE FUNCTION postrider._program_send_batch(
  p_endpoints text[], p_payloads bytea[], p_content_types text[], p_priorities smallint[],
  p_scheduled_at timestamptz[], p_idempotency_keys text[], p_correlation_ids uuid[], p_expires_at timestamptz[],
  p_ordering_keys text[], p_headers jsonb[], p_options jsonb[], p_event_types text[]
) RETURNS TABLE (id bigint, duplicate boolean) LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT s.id, s.duplicate FROM postrider._send_batch(NULL, p_endpoints, p_payloads, p_content_types,
    p_priorities, p_scheduled_at, p_idempotency_keys, p_correlation_ids, p_expires_at, p_ordering_keys, p_headers,
    p_options, p_event_types) AS s;
END $$;
