-- Replay: finished messages are sent again, as new ones.

-- Sends one finished message again, to its own endpoint or to another; the id of the new one. Idempotency key and
-- expiry are cleared.
CREATE FUNCTION postrider._replay_message(p_id bigint, p_to text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  s postrider._story := postrider._story(p_id);
  v_to text := coalesce(p_to, s.endpoint);
  v_id bigint;
BEGIN
  IF s.state IN ('pending', 'processing') THEN
    PERFORM postrider._conflict(format('message %s is %s; only a finished one can be replayed', p_id, s.state));
  END IF;
  IF p_to IS NULL AND postrider._endpoint_of(p_id) IS NULL THEN
    PERFORM postrider._conflict(format(CASE s.endpoint WHEN '(events)'
      THEN 'message %s is an event without an endpoint; replay it to one'
      ELSE 'the endpoint of message %s was dropped; replay it to another one' END, p_id));
  END IF;
  IF s.payload IS NULL THEN
    PERFORM postrider._conflict(format('message %s has no payload any more', p_id));
  END IF;
  v_id := (postrider._send(v_to, s.payload, s.content_type, s.priority, NULL, NULL, s.correlation_id, NULL,
    s.ordering_key, s.headers, s.options, s.event_type)).id;
  INSERT INTO postrider._replayed (id, original_id, at) VALUES (v_id, p_id, postrider._now());
  PERFORM postrider._log_event('replay', v_to,
    jsonb_build_object('messages', 1, 'message', p_id, 'replayed_as', v_id));
  RETURN v_id;
END $$;

-- The endpoint of a finished message; null when it was dropped, even if another one has its name now.
CREATE FUNCTION postrider._endpoint_of(p_id bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT e.id FROM postrider.endpoints e
  WHERE e.dropped_at IS NULL AND e.id = coalesce(
    (SELECT a.endpoint_id FROM postrider.archive a WHERE a.id = p_id LIMIT 1),
    (SELECT d.endpoint_id FROM postrider.dlq d WHERE d.message_id = p_id ORDER BY d.id DESC LIMIT 1))
$$;

CREATE FUNCTION postrider.replay_message(message_id bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN postrider._replay_message(message_id, NULL);
END $$;

-- Sends messages again that were created from p_from_ts on and before p_to_ts, in the order of ids; how many. p_status:
-- completed, expired, cancelled, or failed, which reads the DLQ; null is the whole archive.
CREATE FUNCTION postrider.replay_range(
  p_endpoint_id bigint, p_from_ts timestamptz, p_to_ts timestamptz, p_status text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_name text;
  v_ids bigint[];
  v_keys text[];
  v_step bigint[];
  v_chunk integer := (SELECT least(max_batch_messages, 1000) FROM postrider._limits);
  d postrider._destination;
BEGIN
  SELECT name INTO v_name FROM postrider.endpoints WHERE id = p_endpoint_id AND dropped_at IS NULL;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', p_endpoint_id::text);
  END IF;
  IF p_from_ts IS NULL OR p_to_ts IS NULL OR p_to_ts <= p_from_ts THEN
    PERFORM postrider._invalid('p_to_ts', 'must be later than p_from_ts');
  END IF;
  IF p_status NOT IN ('completed', 'expired', 'cancelled', 'failed') THEN
    PERFORM postrider._invalid('p_status', 'must be one of completed, expired, cancelled, failed');
  END IF;
  IF p_status = 'failed' THEN
    SELECT coalesce(array_agg(message_id ORDER BY message_id), '{}'), array_agg(DISTINCT ordering_key) INTO v_ids, v_keys
    FROM postrider.dlq
    WHERE endpoint_id = p_endpoint_id AND status = 'failed' AND payload IS NOT NULL
      AND created_at >= p_from_ts AND created_at < p_to_ts;
  ELSE
    SELECT coalesce(array_agg(id ORDER BY id), '{}'), array_agg(DISTINCT ordering_key) INTO v_ids, v_keys
    FROM postrider.archive
    WHERE endpoint_id = p_endpoint_id AND payload IS NOT NULL AND created_at >= p_from_ts AND created_at < p_to_ts
      AND (p_status IS NULL OR status = p_status);
  END IF;
  IF cardinality(v_ids) = 0 THEN
    RETURN 0;
  END IF;
  d := postrider._destination(v_name);
  PERFORM postrider._make_room(d, cardinality(v_ids));
  -- Lock all keys in order, as one batch does.
  PERFORM postrider._lock_keys(ARRAY(SELECT postrider._key(d.key_scope, k) FROM unnest(v_keys) AS k));
  FOR a IN 1 .. cardinality(v_ids) BY v_chunk LOOP
    v_step := v_ids[a : a + v_chunk - 1];
    PERFORM postrider._replay_step(v_name, v_step, p_status IS NOT DISTINCT FROM 'failed', p_from_ts, p_to_ts);
  END LOOP;
  PERFORM postrider._log_event('replay', v_name, jsonb_build_object('messages', cardinality(v_ids),
    'from', p_from_ts, 'to', p_to_ts, 'status', p_status));
  RETURN cardinality(v_ids);
END $$;

CREATE FUNCTION postrider._replay_step(
  p_endpoint text, p_ids bigint[], p_dead boolean, p_from timestamptz, p_to timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  b postrider._batch;
  v_originals bigint[];
BEGIN
  SELECT array_agg(m.id ORDER BY m.id), array_agg(m.payload ORDER BY m.id), array_agg(m.content_type ORDER BY m.id),
    array_agg(m.priority ORDER BY m.id), array_agg(m.correlation_id ORDER BY m.id), array_agg(m.ordering_key ORDER BY m.id),
    array_agg(m.headers ORDER BY m.id), array_agg(m.options ORDER BY m.id), array_agg(m.event_type ORDER BY m.id)
  INTO v_originals, b.payloads, b.content_types, b.priorities, b.correlation_ids, b.ordering_keys, b.headers, b.options,
    b.event_types
  FROM (SELECT id, payload, content_type, priority, correlation_id, ordering_key, headers, options, event_type
        FROM postrider.archive
        WHERE NOT p_dead AND id = ANY (p_ids) AND created_at >= p_from AND created_at < p_to
        UNION ALL
        SELECT message_id, payload, content_type, priority, correlation_id, ordering_key, headers, options, event_type
        FROM postrider.dlq WHERE p_dead AND message_id = ANY (p_ids) AND status = 'failed') AS m;
  INSERT INTO postrider._replayed (id, original_id, at)
  SELECT s.id, v_originals[s.n], postrider._now()
  FROM postrider._send_batch(NULL, ARRAY(SELECT p_endpoint FROM unnest(v_originals)), b.payloads, b.content_types,
    b.priorities, NULL, NULL, b.correlation_ids, NULL, b.ordering_keys, b.headers, b.options, b.event_types)
    WITH ORDINALITY AS s (id, duplicate, n);
END $$;
