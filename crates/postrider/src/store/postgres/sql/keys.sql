-- Ordering keys. Of each key at most one message is not behind it (index queue_key). Senders of one key
-- wait for each other's transactions, so that commit order is the order of positions.
--
-- Locks: a sender holds its key's lock exclusively and its stripe's shared; a batch with very many keys holds
-- whole stripes exclusively instead, because every lock takes room in the server's shared memory. So does a transaction
-- that has locked very many, one after the other.

CREATE FUNCTION postrider._key_stripe(p_key bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (p_key & 63)::integer $$;

-- Whether this transaction may lock so many more keys one by one. The server has some thousand locks for everybody.
CREATE FUNCTION postrider._may_lock(p_more integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  -- Anybody may have set it to anything.
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
    PERFORM pg_advisory_xact_lock_shared(1886548336, postrider._key_stripe(p_key));
    PERFORM pg_advisory_xact_lock(p_key);
  ELSE
    PERFORM pg_advisory_xact_lock(1886548336, postrider._key_stripe(p_key));
  END IF;
END $$;

-- Never waits: a node must not wait for an application's transaction.
CREATE FUNCTION postrider._try_lock_key(p_key bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT pg_try_advisory_xact_lock_shared(1886548336, postrider._key_stripe(p_key)) AND pg_try_advisory_xact_lock(p_key)
$$;

-- For a batch, all of its keys at once; p_class is the stripes' first half. First every stripe and then every key, both
-- sorted: whoever takes only stripes, because it has very many keys, and whoever takes both never wait in a circle.
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
  PERFORM postrider._lock_sorted(1886548336, p_keys);
END $$;

-- For what no application asked for: waits for senders so long in all, and then says for whom. Who waits for us meanwhile
-- goes on long before the server would look for a circle, and end one of the two.
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
        MESSAGE = format('a sender of ordering key "%s" is in the middle of its transaction', v.name);
    END;
  END LOOP;
END $$;

CREATE FUNCTION postrider._is_read_committed() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
END $$;

-- A claim changes no message, so nothing tells a transaction with an old snapshot that a node has one in its hands.
CREATE FUNCTION postrider._need_read_committed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT postrider._is_read_committed() THEN
    PERFORM postrider._conflict(format('this needs READ COMMITTED: at %s a transaction does not see which messages nodes '
      'are delivering', upper(current_setting('transaction_isolation'))));
  END IF;
END $$;

-- A dead head keeps its key waiting (on_dead = hold).
CREATE FUNCTION postrider._key_is_held(p_key bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM postrider.dlq WHERE holds_key AND postrider._key(key_scope, ordering_key) = p_key);
END $$;

-- Nothing of these keys is ready or claimed any more: their heads may go, unless a key is held. Returns those that went on.
-- Does not wait for senders: what of theirs is committed is seen, and where one is in the middle of its transaction and
-- nothing is seen yet, a node looks again; and so it does when this transaction's snapshot is an old one.
CREATE FUNCTION postrider._advance_keys(p_keys bigint[])
RETURNS TABLE (id bigint, endpoint_id bigint, priority smallint, due_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_may_lock boolean := postrider._may_lock(cardinality(p_keys));
  -- Before anything is looked at. Whoever has locked very many leaves the others to a node, rather than hold up everybody.
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
  WHERE (next.place = 1 OR next.place IS NULL AND NOT k.alone) AND NOT (v_any_held AND postrider._key_is_held(k.key));
  IF v_seen.rows IS NULL THEN
    RETURN;
  END IF;
  v_free := ARRAY(SELECT q.ctid FROM postrider.queue q WHERE q.ctid = ANY (v_seen.rows) FOR UPDATE SKIP LOCKED);
  -- Of some a sender is in the middle of its transaction. Of some the next one is being cancelled or expires, or just did:
  -- waiting could go in a circle, and who comes then is not known before that has ended.
  IF cardinality(v_free) < cardinality(v_seen.rows) THEN
    INSERT INTO postrider._stalled_keys (key)
    SELECT k.key FROM unnest(v_seen.keys, v_seen.rows) AS k (key, next) WHERE k.next IS NULL OR k.next <> ALL (v_free);
  END IF;
  RETURN QUERY UPDATE postrider.queue q SET place = CASE WHEN q.losses = 0 THEN 0 ELSE 3 END
    WHERE q.ctid = ANY (v_free) RETURNING q.id, q.endpoint_id, q.priority, q.due_at;
END $$;

-- The smallest position of a key, and whose it is.
CREATE FUNCTION postrider._head_of_key(p_key bigint, OUT id bigint, OUT key_position bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  -- Somebody may have been put before the one that is not behind it.
  SELECT h.id, h.key_position INTO id, key_position
  FROM (SELECT q.id, q.key_position FROM postrider.queue q WHERE postrider._key(q.key_scope, q.ordering_key) = p_key
        ORDER BY postrider._turn(q.place, q.key_position) LIMIT 2) AS h
  ORDER BY h.key_position LIMIT 1;
END $$;

-- One of them; the endpoint that has something to do now.
CREATE FUNCTION postrider._advance_key(p_key bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT endpoint_id FROM postrider._advance_keys(ARRAY[p_key]));
END $$;

-- A dead letter of this key holds it no more. Does not wait for senders, nor for others who let it go: a node looks again
-- when they have ended.
CREATE FUNCTION postrider._let_key_go(p_key bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF postrider._try_lock_key(p_key) THEN
    PERFORM postrider._tell_unblocked(postrider._advance_key(p_key));
  ELSE
    INSERT INTO postrider._stalled_keys (key) VALUES (p_key);
  END IF;
END $$;

-- Looks at keys that had to be left alone: at all of them, or at p_looks from anywhere on, and lets up to p_limit go.
-- Returns the endpoints that have something to do now.
CREATE FUNCTION postrider._advance_stalled_keys(p_limit integer, p_looks integer DEFAULT NULL) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_from bigint := (SELECT min(position) + floor(random() * (max(position) - min(position) + 1))
                    FROM postrider._stalled_keys);
  v_key bigint;
  v_endpoint bigint;
BEGIN
  -- Those whose senders are still at work do not count: however many they are, they hold up nobody else.
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
