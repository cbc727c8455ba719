-- Replays of many messages. People start, stop and resume them; nodes advance them in steps (store/replaying.rs). A step locks
-- the replay's row, sends messages and moves the position in one transaction, so that no message is lost or sent twice.

-- A finished message, to be sent again.
CREATE TYPE postrider._original AS (
  id bigint,
  endpoint_id bigint,
  status text,
  created_at timestamptz,
  priority smallint,
  correlation_id uuid,
  content_type text,
  ordering_key text,
  event_type text,
  headers jsonb,
  options jsonb,
  payload bytea
);

-- The id of a named endpoint; null for no name.
CREATE FUNCTION postrider._endpoint_named(p_name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_id bigint;
BEGIN
  IF p_name IS NOT NULL THEN
    SELECT e.id INTO v_id FROM postrider.endpoints e WHERE e.name = p_name AND e.dropped_at IS NULL;
    IF NOT FOUND THEN
      PERFORM postrider._unknown('endpoint', p_name);
    END IF;
  END IF;
  RETURN v_id;
END $$;

-- The row of a replay with these arguments that starts now.
CREATE FUNCTION postrider._new_replay(
  p_endpoint text, p_event_type text, p_ordering_key text, p_status text, p_from timestamptz, p_until timestamptz,
  p_to text, p_rate_limit jsonb
) RETURNS postrider.replays LANGUAGE plpgsql STABLE AS $$
DECLARE
  r postrider.replays;
BEGIN
  r.endpoint_id := postrider._endpoint_named(p_endpoint);
  r.event_type := p_event_type;
  r.ordering_key := p_ordering_key;
  r.status := p_status;
  r.created_from := p_from;
  r.created_until := p_until;
  r.to_endpoint_id := postrider._endpoint_named(p_to);
  r.rate_limit := p_rate_limit;
  r.last_id := (SELECT last_value FROM postrider.message_ids);
  r.started_at := postrider._now();
  RETURN r;
END $$;

CREATE FUNCTION postrider._start_replay(r postrider.replays, p_asked jsonb, p_unfinished_max bigint, p_too_many text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_id bigint;
BEGIN
  -- One start at a time, so that the limit holds.
  PERFORM pg_advisory_xact_lock(:lock_store, :store_replays);
  IF (SELECT count(*) FROM postrider.replays WHERE state <> 'completed') >= p_unfinished_max THEN
    PERFORM postrider._conflict(p_too_many);
  END IF;
  INSERT INTO postrider.replays (endpoint_id, event_type, ordering_key, status, created_from, created_until,
    to_endpoint_id, rate_limit, last_id, next_at, started_at)
  VALUES (r.endpoint_id, r.event_type, r.ordering_key, r.status, r.created_from, r.created_until, r.to_endpoint_id,
    r.rate_limit, r.last_id, r.started_at, r.started_at)
  RETURNING id INTO v_id;
  PERFORM postrider._log_event('replay.started', v_id::text, p_asked);
  RETURN v_id;
END $$;

-- Sets it to running or stopped.
CREATE FUNCTION postrider._switch_replay(p_id bigint, p_state text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_state text := (SELECT state FROM postrider.replays WHERE id = p_id FOR UPDATE);
BEGIN
  IF v_state IS NULL THEN
    PERFORM postrider._unknown('replay', p_id::text);
  ELSIF v_state = 'completed' THEN
    PERFORM postrider._conflict(format('replay %s is completed already', p_id));
  ELSIF v_state <> p_state THEN
    UPDATE postrider.replays SET state = p_state, waiting = NULL, next_at = postrider._now(),
      ended_at = CASE p_state WHEN 'stopped' THEN postrider._now() END
    WHERE id = p_id;
    PERFORM postrider._log_event(CASE p_state WHEN 'stopped' THEN 'replay.stopped' ELSE 'replay.resumed' END,
      p_id::text, '{}');
  END IF;
END $$;

-- What a replay selects of the ids after p_after up to p_to, in their order. No sequential scans: a cached plan for a short
-- archive must not read all of a long one.
CREATE FUNCTION postrider._replay_window(r postrider.replays, p_after bigint, p_to bigint, p_limit bigint)
RETURNS SETOF postrider._original LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
  v_from timestamptz := coalesce(r.created_from, '-infinity');
  v_until timestamptz := least(coalesce(r.created_until, 'infinity'), r.started_at + interval '1 microsecond');
BEGIN
  IF r.status IS NOT DISTINCT FROM 'failed' THEN
    RETURN QUERY
      SELECT d.message_id, d.endpoint_id, d.status, d.created_at, d.priority, d.correlation_id, d.content_type,
             d.ordering_key, d.event_type, d.headers, d.options, d.payload
      FROM postrider.dlq d
      WHERE d.message_id > p_after AND d.message_id <= p_to AND d.status = 'failed' AND d.died_at <= r.started_at
        AND d.created_at >= v_from AND d.created_at < v_until
        AND (r.endpoint_id IS NULL OR d.endpoint_id = r.endpoint_id)
        AND (r.event_type IS NULL OR d.event_type = r.event_type)
        AND (r.ordering_key IS NULL OR d.ordering_key = r.ordering_key)
      ORDER BY d.message_id LIMIT p_limit;
  ELSE
    RETURN QUERY
      SELECT a.id, a.endpoint_id, a.status, a.created_at, a.priority, a.correlation_id, a.content_type, a.ordering_key,
             a.event_type, a.headers, a.options, a.payload
      FROM postrider.archive a
      WHERE a.id > p_after AND a.id <= p_to AND a.finished_at <= r.started_at
        AND a.created_at >= v_from AND a.created_at < v_until
        AND (r.status IS NULL OR a.status = r.status)
        AND (r.endpoint_id IS NULL OR a.endpoint_id = r.endpoint_id)
        AND (r.event_type IS NULL OR a.event_type = r.event_type)
        AND (r.ordering_key IS NULL OR a.ordering_key = r.ordering_key)
      ORDER BY a.id LIMIT p_limit;
  END IF;
END $$;

-- Counts them without reading payloads.
CREATE FUNCTION postrider._replay_count(r postrider.replays, p_after bigint, p_to bigint)
RETURNS TABLE (messages bigint, no_payload bigint, endpoint_dropped bigint, invalid_event bigint) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
  v_from timestamptz := coalesce(r.created_from, '-infinity');
  v_until timestamptz := least(coalesce(r.created_until, 'infinity'), r.started_at + interval '1 microsecond');
  v_gone bigint[] := ARRAY(SELECT id FROM postrider.endpoints WHERE dropped_at IS NOT NULL AND r.to_endpoint_id IS NULL);
BEGIN
  IF r.status IS NOT DISTINCT FROM 'failed' THEN
    RETURN QUERY
      SELECT count(*), count(*) FILTER (WHERE d.payload IS NULL AND d.endpoint_id <> ALL (v_gone)),
             count(*) FILTER (WHERE d.endpoint_id = ANY (v_gone) AND d.reason <> 'invalid_event'),
             count(*) FILTER (WHERE d.endpoint_id = ANY (v_gone) AND d.reason = 'invalid_event')
      FROM postrider.dlq d
      WHERE d.message_id > p_after AND d.message_id <= p_to AND d.status = 'failed' AND d.died_at <= r.started_at
        AND d.created_at >= v_from AND d.created_at < v_until
        AND (r.endpoint_id IS NULL OR d.endpoint_id = r.endpoint_id)
        AND (r.event_type IS NULL OR d.event_type = r.event_type)
        AND (r.ordering_key IS NULL OR d.ordering_key = r.ordering_key);
  ELSE
    RETURN QUERY
      SELECT count(*), count(*) FILTER (WHERE a.payload IS NULL AND a.endpoint_id <> ALL (v_gone)),
             count(*) FILTER (WHERE a.endpoint_id = ANY (v_gone)), 0::bigint
      FROM postrider.archive a
      WHERE a.id > p_after AND a.id <= p_to AND a.finished_at <= r.started_at
        AND a.created_at >= v_from AND a.created_at < v_until
        AND (r.status IS NULL OR a.status = r.status)
        AND (r.endpoint_id IS NULL OR a.endpoint_id = r.endpoint_id)
        AND (r.event_type IS NULL OR a.event_type = r.event_type)
        AND (r.ordering_key IS NULL OR a.ordering_key = r.ordering_key);
  END IF;
END $$;

-- The first messages that would be sent, for a preview. Looks window by window until it has enough.
CREATE FUNCTION postrider._replay_sample(r postrider.replays, p_limit integer)
RETURNS TABLE (id bigint, endpoint text, status text, event_type text, ordering_key text, created_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_at bigint := 0;
  v_left integer := p_limit;
  v_seen integer;
  v_last bigint;
  w record;
BEGIN
  WHILE v_left > 0 AND v_at < r.last_id LOOP
    v_seen := 0;
    FOR w IN
      SELECT o.id, e.name, o.status, o.event_type, o.ordering_key, o.created_at,
             o.payload IS NOT NULL AND (r.to_endpoint_id IS NOT NULL OR e.dropped_at IS NULL) AS is_sent
      FROM postrider._replay_window(r, v_at, v_at + 10000, 500) o JOIN postrider.endpoints e ON e.id = o.endpoint_id
      ORDER BY o.id
    LOOP
      v_seen := v_seen + 1;
      v_last := w.id;
      IF w.is_sent AND v_left > 0 THEN
        v_left := v_left - 1;
        RETURN QUERY SELECT w.id, w.name, w.status, w.event_type, w.ordering_key, w.created_at;
      END IF;
    END LOOP;
    v_at := CASE WHEN v_seen = 500 THEN v_last ELSE v_at + 10000 END;
  END LOOP;
END $$;

-- How many of these, from the first on, have at most 64 keys: with more, _lock_keys locks whole stripes of keys.
CREATE FUNCTION postrider._replay_keys(p_originals postrider._original[]) RETURNS integer LANGUAGE sql STABLE AS $$
  SELECT coalesce(min(k.first)::integer - 1, cardinality(p_originals))
  FROM (SELECT min(o.n) AS first, row_number() OVER (ORDER BY min(o.n)) AS number
        FROM unnest(p_originals) WITH ORDINALITY AS o (id, endpoint_id, status, created_at, priority, correlation_id,
               content_type, ordering_key, event_type, headers, options, payload, n)
        WHERE o.ordering_key IS NOT NULL GROUP BY o.endpoint_id, o.ordering_key) AS k
  WHERE k.number > 64
$$;

-- Sends these again. Messages that cannot be sent are counted by reason.
CREATE FUNCTION postrider._replay_originals(
  p_originals postrider._original[], p_to bigint, OUT sent integer, OUT skipped jsonb
) LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := postrider._now();
  b postrider._batch;
  v_names text[];
  v_scopes bigint[];
  v_ids bigint[];
  v_no_payload integer;
  v_dropped integer;
  -- Invalid events, which an import brought from SQLite.
  v_events integer;
  v_invalid integer := 0;
  v_too_large integer := 0;
  v_id bigint;
BEGIN
  SELECT count(*) FILTER (WHERE e.dropped_at IS NOT NULL AND e.name <> '(events)'),
    count(*) FILTER (WHERE e.dropped_at IS NOT NULL AND e.name = '(events)'),
    count(*) FILTER (WHERE e.dropped_at IS NULL AND o.payload IS NULL)
  INTO v_dropped, v_events, v_no_payload
  FROM unnest(p_originals) AS o JOIN postrider.endpoints e ON e.id = coalesce(p_to, o.endpoint_id);
  SELECT array_agg(o.id ORDER BY o.id), array_agg(e.name ORDER BY o.id),
    array_agg(CASE WHEN e.options->>'key_scope' = 'global' THEN 0 ELSE e.id END ORDER BY o.id),
    array_agg(o.payload ORDER BY o.id), array_agg(o.content_type ORDER BY o.id), array_agg(o.priority ORDER BY o.id),
    array_agg(o.correlation_id ORDER BY o.id), array_agg(o.ordering_key ORDER BY o.id),
    array_agg(o.headers ORDER BY o.id), array_agg(o.options ORDER BY o.id), array_agg(o.event_type ORDER BY o.id)
  INTO v_ids, v_names, v_scopes, b.payloads, b.content_types, b.priorities, b.correlation_ids, b.ordering_keys,
    b.headers, b.options, b.event_types
  FROM unnest(p_originals) AS o
    JOIN postrider.endpoints e ON e.id = coalesce(p_to, o.endpoint_id) AND e.dropped_at IS NULL
  WHERE o.payload IS NOT NULL;
  sent := coalesce(cardinality(v_ids), 0);
  PERFORM postrider._lock_keys_within(interval '100 milliseconds', v_scopes, b.ordering_keys);
  BEGIN
    INSERT INTO postrider._replayed (id, original_id, at)
    SELECT s.id, v_ids[s.n], v_now
    FROM postrider._send_batch(NULL, v_names, b.payloads, b.content_types, b.priorities, NULL, NULL, b.correlation_ids,
      NULL, b.ordering_keys, b.headers, b.options, b.event_types) WITH ORDINALITY AS s (id, duplicate, n);
  EXCEPTION WHEN invalid_parameter_value OR program_limit_exceeded THEN
    -- Some cannot be sent any more: send each by itself.
    sent := 0;
    FOR n IN 1 .. cardinality(v_ids) LOOP
      BEGIN
        v_id := (postrider._send(v_names[n], b.payloads[n], b.content_types[n], b.priorities[n], NULL, NULL,
          b.correlation_ids[n], NULL, b.ordering_keys[n], b.headers[n], b.options[n], b.event_types[n])).id;
        INSERT INTO postrider._replayed (id, original_id, at) VALUES (v_id, v_ids[n], v_now);
        sent := sent + 1;
      EXCEPTION
        WHEN invalid_parameter_value THEN
          v_invalid := v_invalid + 1;
        WHEN program_limit_exceeded THEN
          v_too_large := v_too_large + 1;
      END;
    END LOOP;
  END;
  skipped := jsonb_strip_nulls(jsonb_build_object('no_payload', nullif(v_no_payload, 0),
    'endpoint_dropped', nullif(v_dropped, 0), 'invalid_event', nullif(v_events, 0),
    'invalid', nullif(v_invalid, 0), 'too_large', nullif(v_too_large, 0)));
END $$;

-- How many of these fit: a replay leaves a tenth of the queue, and of an endpoint's part of it, free for senders.
-- `waiting` says why not all do.
CREATE FUNCTION postrider._replay_room(
  p_originals postrider._original[], p_to bigint, OUT room integer, OUT waiting text
) LANGUAGE plpgsql AS $$
DECLARE
  v_endpoint record;
  v_queued bigint;
  v_limit bigint;
  v_fits bigint;
BEGIN
  room := cardinality(p_originals);
  v_limit := (SELECT max_queue_size FROM postrider._limits);
  IF v_limit > 0 THEN
    v_queued := postrider._queued();
    IF v_queued + room > v_limit - v_limit / 10 THEN
      room := greatest(v_limit - v_limit / 10 - v_queued, 0);
      waiting := format('the queue is full: %s messages of %s (the whole queue); try again later or raise max_queue_size',
        v_queued, v_limit);
    END IF;
  END IF;
  FOR v_endpoint IN
    SELECT e.id, e.name, (e.options->>'max_queue_size')::bigint AS queue_max,
           array_agg(o.n ORDER BY o.n) AS places
    FROM unnest(p_originals) WITH ORDINALITY AS o (id, endpoint_id, status, created_at, priority, correlation_id,
           content_type, ordering_key, event_type, headers, options, payload, n)
      JOIN postrider.endpoints e ON e.id = coalesce(p_to, o.endpoint_id) AND e.dropped_at IS NULL
    WHERE (e.options->>'max_queue_size')::bigint > 0 GROUP BY e.id ORDER BY e.id
  LOOP
    v_limit := v_endpoint.queue_max;
    v_queued := cardinality(postrider._queued_of(v_endpoint.id, v_limit + 1));
    v_fits := greatest(v_limit - v_limit / 10 - v_queued, 0);
    IF v_endpoint.places[v_fits + 1] - 1 < room THEN
      room := v_endpoint.places[v_fits + 1] - 1;
      waiting := format('the queue is full: %s messages of %s (endpoint "%s"); try again later or raise max_queue_size',
        v_queued, v_limit, v_endpoint.name);
    END IF;
  END LOOP;
END $$;

-- Sends these messages again, from the first on, as many as one step may send. `reached` is the id up to which they were
-- sent or skipped, null when that is all of them. `waiting` says why it is not.
CREATE FUNCTION postrider._replay_messages(
  r postrider.replays, p_ids bigint[], OUT reached bigint, OUT sent integer, OUT skipped jsonb, OUT waiting text
) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
  v_originals postrider._original[] := ARRAY(
    SELECT o FROM postrider._replay_window(r, p_ids[1] - 1, p_ids[cardinality(p_ids)], NULL) o
    WHERE o.id = ANY (p_ids) ORDER BY o.id);
  v_count integer := least(postrider._replay_keys(v_originals), (SELECT max_batch_messages FROM postrider._limits));
  v_room record;
BEGIN
  SELECT * INTO v_room FROM postrider._replay_room(v_originals[1 : v_count], r.to_endpoint_id);
  waiting := v_room.waiting;
  IF v_room.room < cardinality(v_originals) THEN
    v_originals := v_originals[1 : v_room.room];
    reached := coalesce(v_originals[v_room.room].id, r.position);
  END IF;
  SELECT o.sent, o.skipped INTO sent, skipped FROM postrider._replay_originals(v_originals, r.to_endpoint_id) o;
END $$;

-- Deletes replays that ended before the retention of the event log.
CREATE FUNCTION postrider._clean_replays(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_before timestamptz := postrider._now()
    - postrider._setting('event_log_retention_days')::integer * interval '24 hours';
  v_count integer;
BEGIN
  DELETE FROM postrider.replays WHERE id IN (
    SELECT id FROM postrider.replays WHERE ended_at <= v_before ORDER BY id LIMIT p_limit FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;
