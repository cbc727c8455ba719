-- Ordering keys. At most one message of each key is not behind it (index queue_key). Senders of one key wait for each other's
-- transactions, so that commit order is the order of positions.
--
-- Locks: a sender holds the lock of its key exclusively and the lock of the key's stripe shared. A batch with very many keys, or a
-- transaction that has locked very many one after the other, holds whole stripes exclusively instead, because every lock takes
-- space in the server's shared memory.

CREATE FUNCTION postrider._key_scope(e postrider.endpoints) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN e.options->>'key_scope' = 'global' THEN 0 ELSE e.id END $$;

CREATE FUNCTION postrider._key_stripe(p_key bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (p_key & 63)::integer $$;

-- May this transaction lock p_more keys one by one? The whole server has a few thousand locks.
CREATE FUNCTION postrider._may_lock(p_more integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  -- Any role can set this to anything.
  v_said text := current_setting('postrider.locks', true);
  v_locks integer := CASE WHEN v_said ~ '^[0-9]{1,4}$' THEN v_said::integer ELSE 0 END + p_more;
BEGIN
  IF v_locks > 1000 THEN
    RETURN false;
  END IF;
  PERFORM set_config('postrider.locks', v_locks::text, true);
  RETURN true;
END $$;

CREATE FUNCTION postrider._lock_key(p_key bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF postrider._may_lock(1) THEN
    PERFORM pg_advisory_xact_lock_shared(:lock_ordering_stripe, postrider._key_stripe(p_key));
    PERFORM pg_advisory_xact_lock(p_key);
  ELSE
    PERFORM pg_advisory_xact_lock(:lock_ordering_stripe, postrider._key_stripe(p_key));
  END IF;
END $$;

-- Never waits: nodes must not wait for an application's transaction.
CREATE FUNCTION postrider._try_lock_key(p_key bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT pg_try_advisory_xact_lock_shared(:lock_ordering_stripe, postrider._key_stripe(p_key)) AND pg_try_advisory_xact_lock(p_key)
$$;

-- Locks all keys of a batch. p_class: the first number of the stripe locks. All stripes first, then all keys, both sorted: batches
-- that lock only stripes and batches that lock both cannot deadlock.
CREATE FUNCTION postrider._lock_sorted(p_class integer, p_keys bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_keys bigint[] := ARRAY(SELECT DISTINCT k FROM unnest(p_keys) AS k WHERE k IS NOT NULL ORDER BY k);
  v_stripes integer[] := ARRAY(SELECT DISTINCT postrider._key_stripe(k) FROM unnest(v_keys) AS k ORDER BY 1);
BEGIN
  IF cardinality(v_keys) > 64 OR NOT postrider._may_lock(cardinality(v_keys)) THEN
    PERFORM pg_advisory_xact_lock(p_class, s) FROM unnest(v_stripes) AS s;
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(p_class, s) FROM unnest(v_stripes) AS s;
  PERFORM pg_advisory_xact_lock(k) FROM unnest(v_keys) AS k;
END $$;

CREATE FUNCTION postrider._lock_keys(p_keys bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._lock_sorted(:lock_ordering_stripe, p_keys);
END $$;

-- For callers that are no applications: waits for senders up to p_patience in all, then raises an error that names the key. Our
-- waits end before deadlock detection starts.
CREATE FUNCTION postrider._lock_keys_within(p_patience interval, p_scopes bigint[], p_keys text[]) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  v_until timestamptz := clock_timestamp() + p_patience;
  v_keys bigint[] := ARRAY(SELECT DISTINCT postrider._key(k.scope, k.key) FROM unnest(p_scopes, p_keys) AS k (scope, key)
                           WHERE k.key IS NOT NULL);
  v record;
BEGIN
  IF cardinality(v_keys) > 64 THEN
    PERFORM set_config('lock_timeout', ceil(extract(epoch FROM p_patience) * 1000)::text, true);
    PERFORM postrider._lock_keys(v_keys);
    RETURN;
  END IF;
  FOR v IN
    SELECT DISTINCT ON (key) postrider._key(k.scope, k.name) AS key, k.name
    FROM unnest(p_scopes, p_keys) AS k (scope, name) WHERE k.name IS NOT NULL ORDER BY key
  LOOP
    CONTINUE WHEN postrider._try_lock_key(v.key);
    BEGIN
      PERFORM set_config('lock_timeout',
        greatest(ceil(extract(epoch FROM v_until - clock_timestamp()) * 1000), 1)::text, true);
      PERFORM postrider._lock_key(v.key);
    EXCEPTION WHEN lock_not_available THEN
      RAISE EXCEPTION USING ERRCODE = '55P03',
        MESSAGE = format('a sender of ordering key "%s" has an open transaction', v.name);
    END;
  END LOOP;
END $$;

-- Does a dead letter hold this key (on_dead = hold)?
CREATE FUNCTION postrider._key_is_held(p_key bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM postrider.dlq WHERE holds_key AND postrider._key(key_scope, ordering_key) = p_key);
END $$;

-- No message of these keys is ready or claimed any more: makes the next message of each key ready, unless the key is held, and
-- returns those messages. Does not wait for senders. Where a sender has an open transaction and no committed message is visible,
-- or where this transaction's snapshot is old, the key goes to _stalled_keys and a node tries again.
CREATE FUNCTION postrider._advance_keys(p_keys bigint[])
RETURNS TABLE (id bigint, endpoint_id bigint, priority smallint, due_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_may_lock boolean := postrider._may_lock(cardinality(p_keys));
  -- Locked before any message is read. A transaction that has locked very many leaves the rest to a node.
  v_alone boolean[] := ARRAY(SELECT v_may_lock AND postrider._try_lock_key(k) FROM unnest(p_keys) AS k);
  v_any_held boolean := EXISTS (SELECT FROM postrider.dlq WHERE holds_key);
  v_seen record;
  v_free tid[];
BEGIN
  IF NOT postrider._is_read_committed() THEN
    INSERT INTO postrider._stalled_keys (key) SELECT unnest(p_keys);
    RETURN;
  END IF;
  SELECT array_agg(next.ctid) AS rows, array_agg(k.key) AS keys
  INTO v_seen
  FROM unnest(p_keys, v_alone) AS k (key, alone)
  LEFT JOIN LATERAL (SELECT q.ctid, q.place FROM postrider.queue q WHERE postrider._key(q.key_scope, q.ordering_key) = k.key
                     ORDER BY postrider._turn(q.place, q.key_position) LIMIT 1) AS next ON true
  WHERE (next.place = :behind_key OR next.place IS NULL AND NOT k.alone) AND NOT (v_any_held AND postrider._key_is_held(k.key));
  IF v_seen.rows IS NULL THEN
    RETURN;
  END IF;
  v_free := ARRAY(SELECT q.ctid FROM postrider.queue q WHERE q.ctid = ANY (v_seen.rows) FOR UPDATE SKIP LOCKED);
  -- The others are left to a node: a sender of the key has an open transaction, or the next message is being cancelled or expired.
  -- Waiting for that could deadlock, and the message after it is unknown until it ends.
  IF cardinality(v_free) < cardinality(v_seen.rows) THEN
    INSERT INTO postrider._stalled_keys (key)
    SELECT k.key FROM unnest(v_seen.keys, v_seen.rows) AS k (key, next) WHERE k.next IS NULL OR k.next <> ALL (v_free);
  END IF;
  RETURN QUERY UPDATE postrider.queue q SET place = CASE WHEN q.losses = 0 THEN :ready ELSE :on_probation END
    WHERE q.ctid = ANY (v_free) RETURNING q.id, q.endpoint_id, q.priority, q.due_at;
END $$;

-- The message of a key with the lowest position.
CREATE FUNCTION postrider._head_of_key(p_key bigint, OUT id bigint, OUT key_position bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  -- A redriven message may have been put before the one that is not behind the key.
  SELECT h.id, h.key_position INTO id, key_position
  FROM (SELECT q.id, q.key_position FROM postrider.queue q WHERE postrider._key(q.key_scope, q.ordering_key) = p_key
        ORDER BY postrider._turn(q.place, q.key_position) LIMIT 2) AS h
  ORDER BY h.key_position LIMIT 1;
END $$;

-- For one key; returns the endpoint whose message became ready.
CREATE FUNCTION postrider._advance_key(p_key bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT endpoint_id FROM postrider._advance_keys(ARRAY[p_key]));
END $$;

-- A dead letter stopped holding this key. Waits neither for senders nor for other transactions that release the key: a node tries
-- again when they have ended.
CREATE FUNCTION postrider._let_key_go(p_key bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF postrider._try_lock_key(p_key) THEN
    PERFORM postrider._tell_unblocked(postrider._advance_key(p_key));
  ELSE
    INSERT INTO postrider._stalled_keys (key) VALUES (p_key);
  END IF;
END $$;

-- Tries stalled keys again: all of them, or p_looks from a random position on, until p_limit were advanced. Returns the endpoints
-- whose messages became ready.
CREATE FUNCTION postrider._advance_stalled_keys(p_limit integer, p_looks integer DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_from bigint := (SELECT min(position) + floor(random() * (max(position) - min(position) + 1))
                    FROM postrider._stalled_keys);
  v_key bigint;
  v_endpoint bigint;
BEGIN
  -- Keys that are still locked do not count towards p_limit, so they cannot block the others.
  FOR v_key IN
    SELECT k.key
    FROM (SELECT DISTINCT s.key
          FROM ((SELECT * FROM postrider._stalled_keys WHERE position >= v_from ORDER BY position LIMIT p_looks)
                UNION ALL
                (SELECT * FROM postrider._stalled_keys WHERE position < v_from ORDER BY position LIMIT p_looks)
                LIMIT p_looks) AS s) AS k
    WHERE postrider._try_lock_key(k.key) LIMIT p_limit
  LOOP
    DELETE FROM postrider._stalled_keys WHERE key = v_key;
    v_endpoint := postrider._advance_key(v_key);
    IF v_endpoint IS NOT NULL THEN
      RETURN NEXT v_endpoint;
    END IF;
  END LOOP;
END $$;
