-- The dead letter queue: bury, discard, release, redrive, and retention.

-- The last hundred errors of a message, oldest first.
CREATE FUNCTION postrider._last_errors(p_message bigint, p_since timestamptz) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce((
    SELECT jsonb_agg(jsonb_build_object('attempt', l.number, 'at', l.started_at, 'error', coalesce(l.error, ''))
                     ORDER BY l.number, l.started_at)
    FROM (SELECT a.number, a.started_at, a.error FROM postrider.attempts a
          WHERE a.message_id = p_message AND a.started_at >= p_since AND a.outcome <> 'delivered'
          ORDER BY a.number DESC, a.started_at DESC LIMIT 100) AS l), '[]');
END $$;

-- Moves a claimed message with its last errors to the DLQ. Returns the endpoint whose next message of the same key became ready.
CREATE FUNCTION postrider._bury(p_id bigint, p_attempts integer, p_reason text, p_error text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
  v_errors jsonb;
  v_holds boolean := false;
BEGIN
  DELETE FROM postrider.queue WHERE id = p_id RETURNING * INTO v;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  -- A bound, or every month would be searched; a day earlier, because a node's clock may be behind.
  v_errors := postrider._last_errors(p_id, least(greatest(v.created_at, 'epoch'), postrider._now()) - interval '1 day');
  IF v.ordering_key IS NOT NULL THEN
    SELECT e.options->>'on_dead' IS NOT DISTINCT FROM 'hold' INTO v_holds
    FROM postrider.endpoints e WHERE e.id = v.endpoint_id;
  END IF;
  INSERT INTO postrider.dlq (message_id, endpoint_id, reason, died_at, errors, holds_key, bytes, priority, attempts,
    losses, key_scope, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type,
    last_error, content_type, headers, options, payload)
  VALUES (v.id, v.endpoint_id, p_reason, postrider._now(), v_errors, v_holds,
    coalesce(octet_length(v.payload), 0) + coalesce(octet_length(v.headers::text), 0) + octet_length(v_errors::text) + 200,
    v.priority, p_attempts, v.losses, v.key_scope, v.ordering_key, v.created_at, v.scheduled_at, v.expires_at,
    v.idempotency_key, v.correlation_id, v.event_type, p_error, v.content_type, v.headers, v.options, v.payload);
  IF postrider._setting('attempt_log') = 'off' THEN
    DELETE FROM postrider.attempts WHERE message_id = p_id;
  END IF;
  IF v.ordering_key IS NOT NULL AND v.place <> :behind_key THEN
    RETURN postrider._advance_key(postrider._key(v.key_scope, v.ordering_key));
  END IF;
  RETURN NULL;
END $$;

-- The letter of this id, locked and still failed.
CREATE FUNCTION postrider._failed_letter(p_dlq_id bigint) RETURNS postrider.dlq LANGUAGE plpgsql AS $$
DECLARE
  v postrider.dlq;
BEGIN
  SELECT * INTO v FROM postrider.dlq WHERE id = p_dlq_id FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('dead letter', p_dlq_id::text);
  END IF;
  IF v.status <> 'failed' THEN
    PERFORM postrider._conflict(format('dead letter %s is %s already', p_dlq_id, v.status));
  END IF;
  RETURN v;
END $$;

CREATE FUNCTION postrider.discard_message(dlq_id bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v postrider.dlq := postrider._failed_letter(dlq_id);
BEGIN
  UPDATE postrider.dlq SET status = 'discarded', holds_key = false WHERE id = v.id;
  IF v.holds_key THEN
    PERFORM postrider._let_key_go(postrider._key(v.key_scope, v.ordering_key));
  END IF;
END $$;

-- Discards those that are still failed; returns how many.
CREATE FUNCTION postrider._discard_letters(p_ids bigint[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_ids bigint[] := ARRAY(
    SELECT d.id FROM postrider.dlq d WHERE d.id = ANY (p_ids) AND d.status = 'failed' ORDER BY d.id FOR UPDATE);
  v_keys bigint[] := ARRAY(
    SELECT DISTINCT postrider._key(key_scope, ordering_key) FROM postrider.dlq WHERE id = ANY (v_ids) AND holds_key);
BEGIN
  UPDATE postrider.dlq SET status = 'discarded', holds_key = false WHERE id = ANY (v_ids);
  PERFORM postrider._let_key_go(k) FROM unnest(v_keys) AS k;
  RETURN cardinality(v_ids);
END $$;

-- Releases a key that dead letters hold; returns how many letters held it. The letters stay.
CREATE FUNCTION postrider.release_key(key text, endpoint text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_key bigint;
  v_held record;
  v_count bigint := 0;
BEGIN
  IF release_key.key IS NULL THEN
    PERFORM postrider._invalid('key', 'is required');
  END IF;
  IF release_key.endpoint IS NOT NULL THEN
    SELECT postrider._key(postrider._key_scope(e), release_key.key) INTO v_key
    FROM postrider.endpoints e WHERE e.name = release_key.endpoint AND e.dropped_at IS NULL;
    IF NOT FOUND THEN
      PERFORM postrider._unknown('endpoint', release_key.endpoint);
    END IF;
  END IF;
  FOR v_held IN
    SELECT d.id, postrider._key(d.key_scope, d.ordering_key) AS key FROM postrider.dlq d
    WHERE d.holds_key AND d.ordering_key = release_key.key
      AND (v_key IS NULL OR postrider._key(d.key_scope, d.ordering_key) = v_key)
    ORDER BY d.id FOR UPDATE
  LOOP
    UPDATE postrider.dlq d SET holds_key = false WHERE d.id = v_held.id;
    PERFORM postrider._let_key_go(v_held.key);
    v_count := v_count + 1;
  END LOOP;
  IF v_count > 0 THEN
    PERFORM postrider._log_event('key.released', release_key.key, jsonb_build_object('heads', v_count));
  END IF;
  RETURN v_count;
END $$;

-- The letters of an endpoint, or of all, that can be redriven: whole ordering keys together, in the order in which the first message
-- of each key was sent.
CREATE FUNCTION postrider._redrivable(p_endpoint text) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_endpoint bigint := postrider._endpoint_named(p_endpoint);
BEGIN
  RETURN ARRAY(
    SELECT l.id
    FROM (SELECT d.id, d.message_id,
                 CASE WHEN d.ordering_key IS NULL THEN d.message_id
                      ELSE min(d.message_id) OVER (PARTITION BY d.key_scope, d.ordering_key) END AS key_group
          FROM postrider.dlq d
          WHERE d.status = 'failed' AND d.payload IS NOT NULL AND (v_endpoint IS NULL OR d.endpoint_id = v_endpoint)
            AND EXISTS (SELECT FROM postrider.endpoints e WHERE e.id = d.endpoint_id AND e.dropped_at IS NULL)) AS l
    ORDER BY l.key_group, l.message_id, l.id);
END $$;

-- Puts one letter of an ordering key before all queued messages of the key, but behind redriven ones that were sent earlier. The key
-- is locked, so no sender and no other redrive works on it; nodes may.
CREATE FUNCTION postrider._put_before(l postrider.dlq, p_due_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  -- Lower than any position of a sent message.
  v_position bigint := l.message_id - 4611686018427387904;
  v_key bigint := postrider._key(l.key_scope, l.ordering_key);
  v_current record;
  v_place smallint := :ready;
  v_is_idle boolean := false;
BEGIN
  PERFORM postrider._need_read_committed();
  LOOP
    SELECT id, key_position INTO v_current FROM postrider.queue
    WHERE postrider._key(key_scope, ordering_key) = v_key
      AND postrider._turn(place, key_position) = postrider._turn(:ready::smallint, NULL);
    IF NOT FOUND THEN
      v_is_idle := NOT postrider._key_is_held(v_key);
      v_place := CASE WHEN NOT v_is_idle OR EXISTS (
        SELECT FROM postrider.queue WHERE postrider._key(key_scope, ordering_key) = v_key
          AND postrider._turn(place, key_position) < v_position) THEN :behind_key ELSE :ready END;
      EXIT;
    END IF;
    -- Waits for a node that settles or claims it; when the message has left, another one is current.
    PERFORM FROM postrider.queue WHERE id = v_current.id AND place <> :behind_key FOR UPDATE;
    CONTINUE WHEN NOT FOUND;
    IF v_current.key_position < v_position OR postrider._is_claimed(v_current.id) THEN
      v_place := :behind_key;
    ELSE
      UPDATE postrider.queue SET place = :behind_key WHERE id = v_current.id;
    END IF;
    EXIT;
  END LOOP;
  INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, attempts, attempts_before, place, priority,
    key_scope, key_position, correlation_id, content_type, ordering_key, event_type, last_error, headers, options,
    payload)
  VALUES (l.message_id, p_due_at, l.created_at, l.endpoint_id, l.attempts, l.attempts, v_place, l.priority,
    l.key_scope, v_position, l.correlation_id, l.content_type, l.ordering_key, l.event_type, l.last_error, l.headers,
    l.options, l.payload);
  -- The letter held the key until now, and an earlier redriven message comes first.
  IF v_is_idle AND v_place = :behind_key THEN
    PERFORM postrider._tell_unblocked(postrider._advance_key(v_key));
  END IF;
END $$;

-- The letters and their keys are locked; nodes may work on the current messages of the keys.
CREATE FUNCTION postrider._put_letters_back(p_ids bigint[], p_due_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  l postrider.dlq;
BEGIN
  INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, attempts, attempts_before, priority,
    correlation_id, content_type, event_type, last_error, headers, options, payload)
  SELECT message_id, p_due_at, created_at, endpoint_id, attempts, attempts, priority, correlation_id, content_type,
    event_type, last_error, headers, options, payload
  FROM postrider.dlq WHERE id = ANY (p_ids) AND ordering_key IS NULL;
  UPDATE postrider.dlq SET holds_key = false WHERE id = ANY (p_ids) AND holds_key;
  FOR l IN SELECT * FROM postrider.dlq WHERE id = ANY (p_ids) AND ordering_key IS NOT NULL ORDER BY message_id, id LOOP
    PERFORM postrider._put_before(l, p_due_at);
  END LOOP;
  UPDATE postrider.dlq SET status = 'redriven' WHERE id = ANY (p_ids);
END $$;

-- Redrives those that are still failed, in their order; returns how many. The attempt budget restarts, attempt numbers continue;
-- expiry and idempotency key are cleared. All letters of a redrive have the same due time, so that they are claimed in the order
-- of their ids. A step takes whole keys.
CREATE FUNCTION postrider._redrive_letters(p_ids bigint[], p_due_at timestamptz) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_ids bigint[] := ARRAY(
    SELECT d.id FROM postrider.dlq d
    WHERE d.id = ANY (p_ids) AND d.status = 'failed' AND d.payload IS NOT NULL
      AND EXISTS (SELECT FROM postrider.endpoints e WHERE e.id = d.endpoint_id AND e.dropped_at IS NULL)
    ORDER BY d.id FOR UPDATE OF d);
BEGIN
  IF cardinality(v_ids) = 0 THEN
    RETURN 0;
  END IF;
  PERFORM postrider._lock_keys_within(interval '200 milliseconds', array_agg(key_scope), array_agg(ordering_key))
  FROM postrider.dlq WHERE id = ANY (v_ids) AND ordering_key IS NOT NULL;
  PERFORM postrider._put_letters_back(v_ids, p_due_at);
  -- Skip as many ids: the gauge counts ids, and redriven messages count as new.
  PERFORM nextval('postrider.message_ids') FROM generate_series(1, cardinality(v_ids));
  PERFORM postrider._tell_unblocked(endpoint_id)
  FROM (SELECT DISTINCT endpoint_id FROM postrider.dlq WHERE id = ANY (v_ids)) AS put_back;
  RETURN cardinality(v_ids);
END $$;

-- Redrives or discards these; returns how many. Other transactions that have locked a letter could wait for us while we wait for
-- them: we give up and retry long before deadlock detection starts.
CREATE FUNCTION postrider._take_letters(p_action text, p_ids bigint[], p_due_at timestamptz) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  v_until timestamptz := clock_timestamp() + interval '10 seconds';
  v_why text;
BEGIN
  LOOP
    BEGIN
      RETURN CASE p_action WHEN 'redrive' THEN postrider._redrive_letters(p_ids, p_due_at)
                           WHEN 'discard' THEN postrider._discard_letters(p_ids) END;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      v_why := SQLERRM;
    END;
    EXIT WHEN clock_timestamp() > v_until;
    -- The subtransaction was rolled back, so no lock is held while sleeping.
    PERFORM pg_sleep(0.1);
  END LOOP;
  PERFORM postrider._conflict(format('could not %s these dead letters: %s; try again later', p_action, v_why));
END $$;

CREATE FUNCTION postrider._redrive(p_ids bigint[], p_selection jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_count bigint;
BEGIN
  PERFORM postrider._redrive_room(p_ids);
  v_count := postrider._take_letters('redrive', p_ids, postrider._now());
  IF v_count > 0 THEN
    PERFORM postrider._log_event('redrive', NULL, jsonb_build_object('messages', v_count, 'selection', p_selection));
  END IF;
  RETURN v_count;
END $$;

-- Raises the reason when this letter cannot be redriven. Returns the message's id.
CREATE FUNCTION postrider._check_redrivable(p_dlq_id bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v postrider.dlq := postrider._failed_letter(p_dlq_id);
BEGIN
  IF v.payload IS NULL THEN
    PERFORM postrider._conflict(format('dead letter %s was erased', p_dlq_id));
  END IF;
  IF NOT EXISTS (SELECT FROM postrider.endpoints WHERE id = v.endpoint_id AND dropped_at IS NULL) THEN
    PERFORM postrider._conflict(format(CASE v.reason WHEN 'invalid_event'
      THEN 'dead letter %s is an event without an endpoint; replay its message to one'
      ELSE 'the endpoint of dead letter %s was dropped' END, p_dlq_id));
  END IF;
  RETURN v.message_id;
END $$;

-- Returns the message's id, which it keeps.
CREATE FUNCTION postrider.redrive_message(dlq_id bigint) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_message bigint := postrider._check_redrivable(dlq_id);
BEGIN
  PERFORM postrider._redrive(ARRAY[dlq_id], jsonb_build_object('one', dlq_id));
  RETURN v_message;
END $$;

-- In original order; returns how many.
CREATE FUNCTION postrider.redrive_endpoint(name text) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  IF name IS NULL THEN
    PERFORM postrider._invalid('name', 'is required');
  END IF;
  RETURN postrider._redrive(postrider._redrivable(name), jsonb_build_object('endpoint', name));
END $$;

CREATE FUNCTION postrider.redrive_all() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN postrider._redrive(postrider._redrivable(NULL), '"all"');
END $$;

-- Times and reasons are those of failed letters.
CREATE FUNCTION postrider.dlq_summary()
RETURNS TABLE (endpoint text, failed bigint, redriven bigint, discarded bigint, oldest_failed timestamptz,
               newest_failed timestamptz, reasons jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
  SELECT e.name, coalesce(sum(d.count) FILTER (WHERE d.status = 'failed'), 0)::bigint,
         coalesce(sum(d.count) FILTER (WHERE d.status = 'redriven'), 0)::bigint,
         coalesce(sum(d.count) FILTER (WHERE d.status = 'discarded'), 0)::bigint,
         min(d.oldest) FILTER (WHERE d.status = 'failed'),
         max(d.newest) FILTER (WHERE d.status = 'failed'),
         coalesce(jsonb_object_agg(d.reason, d.count) FILTER (WHERE d.status = 'failed'), '{}')
  FROM (SELECT endpoint_id, status, reason, count(*) AS count, min(died_at) AS oldest, max(died_at) AS newest
        FROM postrider.dlq GROUP BY endpoint_id, status, reason) AS d
    JOIN postrider.endpoints e ON e.id = d.endpoint_id
  GROUP BY e.id ORDER BY e.name
$$;

-- Deletes, counts and logs these letters. Returns the log entry's detail; null when nothing was evicted.
CREATE FUNCTION postrider._evict(p_ids bigint[], p_rule text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_count bigint;
  v_bytes bigint;
  v_evicted jsonb;
BEGIN
  WITH gone AS (DELETE FROM postrider.dlq WHERE id = ANY (p_ids) RETURNING bytes)
  SELECT count(*), coalesce(sum(bytes), 0) INTO v_count, v_bytes FROM gone;
  IF v_count > 0 THEN
    v_evicted := jsonb_build_object('rule', p_rule, 'count', v_count, 'bytes', v_bytes);
    PERFORM postrider._log_event('dlq.evicted', NULL, v_evicted);
    PERFORM postrider._count('evictions', v_count);
  END IF;
  RETURN v_evicted;
END $$;

CREATE FUNCTION postrider._evicted_count(p_evicted jsonb) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce((p_evicted->>'count')::integer, 0) $$;

-- Evicts letters past dlq_retention_days. Letters that hold their key stay.
CREATE FUNCTION postrider._clean_dlq(p_limit integer) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_before timestamptz := postrider._now() - postrider._setting('dlq_retention_days')::integer * interval '24 hours';
BEGIN
  RETURN postrider._evict(ARRAY(
    SELECT id FROM postrider.dlq WHERE died_at <= v_before AND NOT holds_key
    ORDER BY died_at LIMIT p_limit FOR UPDATE SKIP LOCKED), 'dlq_retention_days');
END $$;

-- Above dlq_max_bytes: evicts the oldest letters first, down to nine tenths of it.
CREATE FUNCTION postrider._evict_dlq(p_limit integer) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_max bigint := postrider._setting('dlq_max_bytes')::bigint;
  v_left bigint;
  v_ids bigint[];
  v_bytes bigint;
  v_evicted jsonb;
BEGIN
  SELECT bytes_left INTO v_left FROM postrider._eviction;
  IF v_max = 0 THEN
    DELETE FROM postrider._eviction;
    RETURN NULL;
  ELSIF NOT FOUND THEN
    SELECT coalesce(sum(bytes), 0) INTO v_left FROM postrider.dlq;
    IF v_left <= v_max THEN
      RETURN NULL;
    END IF;
  END IF;
  SELECT coalesce(array_agg(id), '{}'), coalesce(sum(bytes), 0) INTO v_ids, v_bytes
  FROM (SELECT id, bytes, sum(bytes) OVER (ORDER BY died_at, id) - bytes AS gone_before
        FROM (SELECT id, bytes, died_at FROM postrider.dlq WHERE NOT holds_key
              ORDER BY died_at, id LIMIT p_limit FOR UPDATE SKIP LOCKED) AS oldest) AS o
  WHERE v_left - gone_before > v_max / 10 * 9 + v_max % 10 * 9 / 10;
  v_evicted := postrider._evict(v_ids, 'dlq_max_bytes');
  DELETE FROM postrider._eviction;
  IF postrider._evicted_count(v_evicted) = p_limit THEN
    INSERT INTO postrider._eviction (bytes_left) VALUES (v_left - v_bytes);
  END IF;
  RETURN v_evicted;
END $$;

-- Evicts everything past dlq_retention_days and above dlq_max_bytes; returns how many.
CREATE FUNCTION postrider.cleanup_dlq() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN postrider._evicted_count(postrider._clean_dlq(2147483647))::bigint
    + postrider._evicted_count(postrider._evict_dlq(2147483647));
END $$;
