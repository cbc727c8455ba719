-- Send: check, find who holds the idempotency key, insert. In the caller's transaction.

-- What every send looks at, in one read.
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
  -- At most so many are queued, but for those that departed since; and so many of the ids may be of sends that were
  -- rolled back. See _gauge.
  queued bigint,
  unsure bigint,
  departed bigint,
  counted_at timestamptz,
  at_id bigint,
  last_id bigint
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
  -- That there is one row of each is what lets the planner keep its plan.
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

-- Those of all these names, in one read.
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
    -- One of them says why not.
    PERFORM postrider._destination(n) FROM unnest(p_names) AS n;
  END IF;
  RETURN v;
END $$;

CREATE FUNCTION postrider._queue_full(p_queued bigint, p_limit bigint, p_endpoint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '53400',
    MESSAGE = format('the queue is full: %s messages of %s (%s); try again later or raise max_queue_size',
      p_queued, p_limit, CASE WHEN p_endpoint IS NULL THEN 'the whole queue' ELSE format('endpoint "%s"', p_endpoint) END),
    CONSTRAINT = coalesce(p_endpoint, ''), DETAIL = json_build_object('queued', p_queued, 'limit', p_limit)::text;
END $$;

-- Refuses when the queue, or the endpoint's part of it, would hold more than its limit. The first look costs
-- nothing: ids given since the last count are added to it, and only when that says full is anything read. What is read does
-- not grow with the queue either, while a node counts every second.
CREATE FUNCTION postrider._make_room(d postrider._destination, p_more bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_queued bigint;
  v_part postrider._parts;
BEGIN
  IF d.max_queue_size > 0 AND d.queued + p_more > d.max_queue_size THEN
    v_queued := d.queued - ((SELECT coalesce(sum(departed), 0) FROM postrider._departures) - d.departed);
    IF v_queued + p_more > d.max_queue_size THEN
      IF d.max_queue_size <= postrider._counted_at_once() THEN
        v_queued := postrider._count_up_to(d.max_queue_size + 1);
      -- Nobody is refused below 95 %, even if every send since the last exact count was rolled back.
      ELSIF v_queued - d.unsure < d.max_queue_size - d.max_queue_size / 20
            AND v_queued - d.unsure + p_more <= d.max_queue_size THEN
        v_queued := coalesce(postrider._count_alone(d.max_queue_size + 1), v_queued);
      END IF;
      IF v_queued + p_more > d.max_queue_size THEN
        PERFORM postrider._queue_full(v_queued, d.max_queue_size, NULL);
      END IF;
    END IF;
  END IF;
  IF d.queue_max > 0 AND d.queued + p_more > d.queue_max THEN
    SELECT * INTO v_part FROM postrider._parts WHERE endpoint_id = d.id;
    -- It may have been counted just now.
    IF v_part.queued + greatest(d.last_id - v_part.at_id, 0) + p_more <= d.queue_max AND v_part.at_id IS NOT NULL THEN
      RETURN;
    END IF;
    v_queued := least(v_part.queued + (d.at_id - v_part.at_id), d.queue_max);
    -- Very many are not counted again while a node looks after them: there was room a moment ago, or there is none even if
    -- all that left since was theirs. Nobody is refused below 95 %.
    IF d.queue_max <= postrider._counted_at_once() OR d.counted_at < postrider._now() - interval '3 seconds'
       OR v_queued + p_more > d.queue_max
          AND (v_part.queued - ((SELECT coalesce(sum(departed), 0) FROM postrider._departures) - v_part.departed)
               >= least(d.queue_max - d.queue_max / 20, d.queue_max - p_more + 1)) IS NOT TRUE THEN
      v_queued := cardinality(postrider._queued_of(d.id, d.queue_max + 1));
    END IF;
    IF v_queued + p_more > d.queue_max THEN
      PERFORM postrider._queue_full(v_queued, d.queue_max, d.name);
    END IF;
  END IF;
END $$;

CREATE FUNCTION postrider._count_up_to(p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT count(*) FROM (SELECT FROM postrider.queue LIMIT p_limit) AS q);
END $$;

-- The same for very many: one at a time, or null.
CREATE FUNCTION postrider._count_alone(p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_count bigint;
BEGIN
  IF pg_try_advisory_xact_lock(1886548338, 6) THEN
    v_count := postrider._count_up_to(p_limit);
    -- Undoes the lock and nothing else: the caller's transaction may go on for long.
    RAISE lock_not_available;
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN v_count;
END $$;

-- Messages of an endpoint, up to so many, found by the indexes that there are: the ready ones, those behind their keys, and
-- those on probation. Of plans see _place_of_new.
CREATE FUNCTION postrider._queued_of(p_endpoint bigint, p_limit bigint) RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN ARRAY(
    SELECT id FROM postrider.queue WHERE endpoint_id = p_endpoint AND place = 0
    UNION ALL
    SELECT id FROM postrider.queue WHERE endpoint_id = p_endpoint AND place = 1
    UNION ALL
    SELECT id FROM postrider.queue WHERE endpoint_id = p_endpoint AND place = 3
    LIMIT p_limit);
END $$;

CREATE FUNCTION postrider._key_scope(e postrider.endpoints) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN e.options->>'key_scope' = 'global' THEN 0 ELSE e.id END $$;

CREATE FUNCTION postrider._check_key(p_field text, p_key text, p_max bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF octet_length(p_key) > p_max THEN
    PERFORM postrider._too_large(p_field, octet_length(p_key), p_max, 'max_key_bytes');
  END IF;
  IF p_key = '' OR p_key ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
    PERFORM postrider._invalid(p_field, 'must not be empty and has no control characters');
  END IF;
END $$;

-- Nodes cannot read what their own calendar does not have.
CREATE FUNCTION postrider._check_time(p_field text, p_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT isfinite(p_at) OR p_at >= '9999-12-30 00:00:00+00' THEN
    PERFORM postrider._invalid(p_field, 'must be a time before 9999-12-30');
  END IF;
END $$;

-- The rules that every message keeps. p_within names it among others, `messages[3].`, or is empty.
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

-- What is compared when the payload itself is no longer queued.
CREATE FUNCTION postrider._digest(p_content_type text, p_payload bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT sha256(convert_to(p_content_type, 'UTF8') || E'\\x00'::bytea || p_payload) $$;

-- Racing senders of one idempotency key wait for each other here, so that exactly one wins; under REPEATABLE READ the
-- loser cannot see the winner and gets 40001. Locks as for ordering keys: a batch with very many takes whole stripes.
CREATE FUNCTION postrider._lock_idempotency_keys(p_endpoints bigint[], p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._lock_sorted(1886548340,
    ARRAY(SELECT postrider._key(~k.endpoint, k.key) FROM unnest(p_endpoints, p_keys) AS k (endpoint, key)));
END $$;

-- Without a holder it is one of the same batch, whose id will belong to another message. DETAIL tells programs the place of
-- the one that is refused.
CREATE FUNCTION postrider._idempotency_conflict(p_holder bigint, p_at integer, p_listed boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_field text := CASE WHEN p_listed THEN format('messages[%s].', p_at) ELSE '' END || 'idempotency_key';
BEGIN
  RAISE EXCEPTION USING ERRCODE = '23505', COLUMN = v_field, CONSTRAINT = coalesce(p_holder::text, ''),
    DETAIL = json_build_object('at', p_at)::text,
    MESSAGE = format('%s: %s has the same key and another payload or content type', v_field,
      CASE WHEN p_holder IS NULL THEN 'a message before it in the batch'
           ELSE format('message %s of this endpoint', p_holder) END);
END $$;

-- The message that holds the key already, or nothing. The key is locked. Of plans see _place_of_new.
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
      -- An old snapshot does not show whether a node is delivering it. Nodes expire it in a moment.
      RAISE EXCEPTION USING ERRCODE = '40001',
        MESSAGE = 'could not serialize access: the message with the same idempotency key is expiring; try again';
    END IF;
    IF v_held.expires_at <= p_now THEN
      -- Whoever has it this moment, to expire or to claim it, is waited for.
      PERFORM FROM postrider.queue WHERE id = v_held.id FOR UPDATE;
      IF NOT FOUND THEN
        -- It may have been delivered instead, and its key be reserved.
        RETURN postrider._idempotency_holder(d, p_key, p_payload, p_content_type, p_now, p_at, p_listed);
      END IF;
      IF postrider._expire_message(v_held.id) THEN
        RETURN NULL;
      END IF;
    END IF;
  ELSE
    SELECT message_id AS id, digest = postrider._digest(p_content_type, p_payload) AS same INTO v_held
    FROM postrider._reservations WHERE endpoint_id = d.id AND idempotency_key = p_key AND until > p_now;
  END IF;
  IF NOT FOUND THEN
    -- A reservation that an old snapshot does not show is met by a row of its own, which is over already: 40001.
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

-- Where a message of this key stands. The key is locked. A sender with an old snapshot cannot know whether
-- anything is before it, so it goes behind, and a node looks. A session keeps its plans: one that was made while the queue
-- was short must not read all of it when it is long.
CREATE FUNCTION postrider._place_of_new(p_key bigint) RETURNS smallint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  IF NOT postrider._is_read_committed() THEN
    INSERT INTO postrider._stalled_keys (key) VALUES (p_key);
    RETURN 1;
  END IF;
  IF EXISTS (SELECT FROM postrider.queue WHERE postrider._key(key_scope, ordering_key) = p_key)
     OR postrider._key_is_held(p_key) OR EXISTS (SELECT FROM postrider._stalled_keys WHERE key = p_key) THEN
    RETURN 1;
  END IF;
  RETURN 0;
END $$;

-- A commit with a notification takes a lock of the whole server, so only one transaction at a time carries it for an
-- endpoint: a node that was woken looks again until all who were under way then have ended. For that the message must be
-- inserted before. There is a bell for every hundredth of a second, or whoever sends early in a long transaction would
-- silence everybody else. Who carries one notification carries more at no cost, and needs no further bell: each is a lock,
-- of which the server has a few thousand for everybody.
CREATE FUNCTION postrider._ring(p_endpoint bigint, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT postrider._may_notify() THEN
    INSERT INTO postrider._unheard (endpoint_id) VALUES (p_endpoint);
  ELSIF current_setting('postrider.rung', true) = 'yes'
     OR pg_try_advisory_xact_lock(hashint8extended(p_endpoint, (extract(epoch FROM p_now) * 100)::bigint)) THEN
    PERFORM pg_notify('postrider', p_endpoint::text), set_config('postrider.rung', 'yes', true);
  END IF;
END $$;

CREATE FUNCTION postrider._tell_nodes(d postrider._destination) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT d.paused THEN
    PERFORM postrider._ring(d.id, clock_timestamp());
  END IF;
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
  v_place smallint := 0;
BEGIN
  PERFORM postrider._check_message('', d, octet_length(p_payload), p_content_type, p_priority, p_scheduled_at,
    p_expires_at, p_idempotency_key, p_ordering_key, p_event_type, p_headers, p_options);
  duplicate := false;
  -- A batch of one knows what to say when the holder of the key cannot be seen.
  IF p_idempotency_key IS NOT NULL AND NOT postrider._is_read_committed() THEN
    SELECT b.id, b.duplicate INTO id, duplicate FROM postrider._send_batch(NULL, ARRAY[p_endpoint], ARRAY[p_payload],
      ARRAY[p_content_type], ARRAY[p_priority], ARRAY[p_scheduled_at], ARRAY[p_idempotency_key], ARRAY[p_correlation_id],
      ARRAY[p_expires_at], ARRAY[p_ordering_key], ARRAY[p_headers], ARRAY[p_options], ARRAY[p_event_type]) AS b;
    RETURN;
  END IF;
  IF p_idempotency_key IS NOT NULL THEN
    -- Both locks before anything is looked up: expiring the holder lets its own key go, and who holds that one may not
    -- wait for another.
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
    CASE WHEN v_key IS NOT NULL THEN d.key_scope END, CASE WHEN v_key IS NOT NULL THEN id END, p_correlation_id, p_content_type, p_ordering_key,
    p_idempotency_key, p_event_type, nullif(p_headers, '{}'), nullif(p_options, '{}'), p_payload);
  PERFORM postrider._tell_nodes(d);
END $$;
