-- The dead letter queue: bury, discard, release, put back, and how long letters are kept.

-- Things that are counted for metrics(). Rows are only added, so that nobody waits here; _recount_queue() folds them.
CREATE TABLE postrider._counts (
  name text NOT NULL,
  value bigint NOT NULL
);

CREATE FUNCTION postrider._count(p_name text, p_value bigint) RETURNS void LANGUAGE sql
AS $$ INSERT INTO postrider._counts (name, value) VALUES (p_name, p_value) $$;

-- How much is left while dlq_max_bytes evicts in steps: the sum is taken once.
CREATE TABLE postrider._eviction (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  bytes_left bigint NOT NULL
);

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

-- A claimed message dies: the whole of it goes to the DLQ with its last errors. Returns the endpoint whose next
-- message of the same key may go now.
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
  -- A node's clock may be a little behind; without a bound every month would be searched.
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
  IF v.ordering_key IS NOT NULL AND v.place <> 1 THEN
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

-- Discards what of these is still failed; how many.
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

-- Lets a key go on that waits for its dead head; how many heads were released. The dead letters stay.
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

-- What of an endpoint, or of all, can be redriven, whole ordering keys together, groups in the order in which the first
-- of each was sent.
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

-- Refuses when the queue has no room for all of them; nothing has changed then.
CREATE FUNCTION postrider._redrive_room(p_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  d postrider._destination;
  v_endpoint record;
  v_limit bigint;
BEGIN
  SELECT l.max_queue_size, g.queued + (m.last_value - g.at_id), m.last_value - g.exact_id, g.departed, g.counted_at, g.at_id,
         m.last_value
  INTO v_limit, d.queued, d.unsure, d.departed, d.counted_at, d.at_id, d.last_id
  FROM postrider._limits l, postrider._gauge g, postrider.message_ids m;
  d.max_queue_size := v_limit;
  PERFORM postrider._make_room(d, cardinality(p_ids));
  d.max_queue_size := 0;
  FOR v_endpoint IN
    SELECT e.id, e.name, (e.options->>'max_queue_size')::bigint AS queue_max, count(*) AS more
    FROM postrider.dlq l JOIN postrider.endpoints e ON e.id = l.endpoint_id
    WHERE l.id = ANY (p_ids) AND e.options ? 'max_queue_size' GROUP BY e.id ORDER BY e.id
  LOOP
    d.id := v_endpoint.id;
    d.name := v_endpoint.name;
    d.queue_max := v_endpoint.queue_max;
    PERFORM postrider._make_room(d, v_endpoint.more);
  END LOOP;
END $$;

-- For how many more there is room in the whole queue (endpoint_id is null), and at those of these endpoints that have a
-- limit of their own, as far as it may be too little for p_more.
CREATE FUNCTION postrider._room_left(p_endpoints bigint[], p_more bigint)
RETURNS TABLE (endpoint_id bigint, room bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_queued bigint := postrider._queued();
  v_limit bigint := (SELECT max_queue_size FROM postrider._limits);
BEGIN
  RETURN QUERY
    SELECT NULL::bigint, greatest(v_limit - v_queued, 0) WHERE v_limit > 0
    UNION ALL
    SELECT e.id, e.queue_max - cardinality(postrider._queued_of(e.id, e.queue_max))
    FROM (SELECT o.id, (o.options->>'max_queue_size')::bigint AS queue_max
          FROM postrider.endpoints o WHERE o.id = ANY (p_endpoints)) AS e
    WHERE e.queue_max > 0 AND v_queued + p_more > e.queue_max;
END $$;

-- Puts one letter of an ordering key before everything of the key that is queued, but behind those put back that were sent
-- before it. The key is locked: no sender and no other redrive is at work on it, but nodes are.
CREATE FUNCTION postrider._put_before(l postrider.dlq, p_due_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  -- No sender gives one as low as this.
  v_position bigint := l.message_id - 4611686018427387904;
  v_key bigint := postrider._key(l.key_scope, l.ordering_key);
  v_current record;
  v_place smallint := 0;
  v_is_idle boolean := false;
BEGIN
  PERFORM postrider._need_read_committed();
  LOOP
    SELECT id, key_position INTO v_current FROM postrider.queue
    WHERE postrider._key(key_scope, ordering_key) = v_key
      AND postrider._turn(place, key_position) = postrider._turn(0::smallint, NULL);
    IF NOT FOUND THEN
      v_is_idle := NOT postrider._key_is_held(v_key);
      v_place := CASE WHEN NOT v_is_idle OR EXISTS (
        SELECT FROM postrider.queue WHERE postrider._key(key_scope, ordering_key) = v_key
          AND postrider._turn(place, key_position) < v_position) THEN 1 ELSE 0 END;
      EXIT;
    END IF;
    -- A node that settles or claims it is waited for; when it is gone, another one is current.
    PERFORM FROM postrider.queue WHERE id = v_current.id AND place <> 1 FOR UPDATE;
    CONTINUE WHEN NOT FOUND;
    IF v_current.key_position < v_position OR postrider._is_claimed(v_current.id) THEN
      v_place := 1;
    ELSE
      UPDATE postrider.queue SET place = 1 WHERE id = v_current.id;
    END IF;
    EXIT;
  END LOOP;
  INSERT INTO postrider.queue (id, due_at, created_at, endpoint_id, attempts, attempts_before, place, priority,
    key_scope, key_position, correlation_id, content_type, ordering_key, event_type, last_error, headers, options,
    payload)
  VALUES (l.message_id, p_due_at, l.created_at, l.endpoint_id, l.attempts, l.attempts, v_place, l.priority,
    l.key_scope, v_position, l.correlation_id, l.content_type, l.ordering_key, l.event_type, l.last_error, l.headers,
    l.options, l.payload);
  -- It held the key until now, and one that was put back earlier is first.
  IF v_is_idle AND v_place = 1 THEN
    PERFORM postrider._tell_unblocked(postrider._advance_key(v_key));
  END IF;
END $$;

-- Their rows and keys are locked; nodes may be at work on the messages that are current.
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

-- Puts back what of these is still failed, in their order; how many. The budget restarts while attempt numbers go
-- on; expiry and idempotency key are cleared. All of one redrive have the same due time, so that among them the
-- order is that of their ids. A step takes whole keys.
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
  -- Nobody gets these ids: what comes back is counted as what is new.
  PERFORM nextval('postrider.message_ids') FROM generate_series(1, cardinality(v_ids));
  PERFORM postrider._tell_unblocked(endpoint_id)
  FROM (SELECT DISTINCT endpoint_id FROM postrider.dlq WHERE id = ANY (v_ids)) AS put_back;
  RETURN cardinality(v_ids);
END $$;

-- Redrives or discards these; how many. Senders, nodes and whoever else has one of these letters could wait for us while
-- we wait for them: we give way, and long before the server would choose one of the two.
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
    -- With nothing in hand.
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

-- By its own id, so it is said why it cannot be put back.
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

-- In original order; how many were put back.
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

-- Times and reasons are those of the failed ones.
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

-- Deletes these letters, counts and logs them. What was evicted, as the log has it: null when nothing was.
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

-- Letters past their days. Heads that hold their key stay.
CREATE FUNCTION postrider._clean_dlq(p_limit integer) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_before timestamptz := postrider._now() - postrider._setting('dlq_retention_days')::integer * interval '24 hours';
BEGIN
  RETURN postrider._evict(ARRAY(
    SELECT id FROM postrider.dlq WHERE died_at <= v_before AND NOT holds_key
    ORDER BY died_at LIMIT p_limit FOR UPDATE SKIP LOCKED), 'dlq_retention_days');
END $$;

-- Oldest letters first, once there are more than dlq_max_bytes, until nine tenths of it are left.
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

-- Everything past dlq_retention_days, and what is more than dlq_max_bytes; how many went.
CREATE FUNCTION postrider.cleanup_dlq() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN postrider._evicted_count(postrider._clean_dlq(2147483647))::bigint
    + postrider._evicted_count(postrider._evict_dlq(2147483647));
END $$;
