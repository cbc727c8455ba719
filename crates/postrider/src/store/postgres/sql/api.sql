-- What applications call to send, inside their own transactions.

-- One JSON message without options, the common case: one read, one insert. Everything else, errors included, is left to _send().
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
  -- One parameter and one row per table, so that the planner keeps its plan. v_id_max: the queue is not full before this id,
  -- because at most as many messages came as ids were assigned since the last count. The id is taken after the check, or ids of
  -- refused sends would count too.
  SELECT e.id, e.disabled_by IS DISTINCT FROM 'operator' AND NOT e.options ? 'max_queue_size', e.paused,
         l.max_payload_bytes, CASE WHEN l.max_queue_size = 0 THEN 9223372036854775807
                                   ELSE g.at_id + l.max_queue_size - g.queued END
  INTO v_endpoint, v_accepts, v_paused, v_bytes_max, v_id_max
  FROM postrider.endpoints e, postrider._limits l, postrider._gauge g
  WHERE e.name = endpoint_name AND e.dropped_at IS NULL AND l.single AND g.single;
  -- A value of 128 levels has at least 256 bytes of brackets.
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
  -- _ring() inlined for the common case without the setting postrider.notify.
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

-- Asynchronous commit for this transaction: its messages survive the crash of a process, and may be lost, with the rest of the
-- transaction, when the whole server crashes before the log is on disk.
CREATE FUNCTION postrider.enable_fast_mode() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
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
  -- Ids were assigned in the order of the payloads.
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

-- Checks one message of a list; errors name its index: messages[3].priority.
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
        'unknown field; expected one of: ' || array_to_string(p_known, ', '));
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
  -- Most messages have only a payload, which needs no check here.
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

-- For the library, which works with the rights of an application and needs to know which message is a duplicate.
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
