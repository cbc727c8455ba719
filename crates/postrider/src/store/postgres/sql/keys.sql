-- Ordering keys. Of each key at most one message is not behind it (index queue_current). Senders of one key
-- wait for each other's transactions, so that commit order is the order of positions.
--
-- Locks: a sender holds its key's lock exclusively and its stripe's shared; a batch with very many keys holds
-- whole stripes exclusively instead, because every lock takes room in the server's shared memory.

CREATE FUNCTION postrider._key_stripe(p_scope bigint, p_key text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT (hashtextextended(p_key, p_scope) & 63)::integer $$;

CREATE FUNCTION postrider._lock_key(p_scope bigint, p_key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1886548336, postrider._key_stripe(p_scope, p_key));
  PERFORM pg_advisory_xact_lock(hashtextextended(p_key, p_scope));
END $$;

-- Never waits: a node must not wait for an application's transaction.
CREATE FUNCTION postrider._try_lock_key(p_scope bigint, p_key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN pg_try_advisory_xact_lock_shared(1886548336, postrider._key_stripe(p_scope, p_key))
     AND pg_try_advisory_xact_lock(hashtextextended(p_key, p_scope));
END $$;

-- For a batch: in sorted order, and by stripes once there are many.
CREATE FUNCTION postrider._lock_keys(p_scope bigint, p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[] := ARRAY(SELECT DISTINCT k FROM unnest(p_keys) AS k WHERE k IS NOT NULL);
BEGIN
  IF cardinality(v_keys) > 64 THEN
    PERFORM pg_advisory_xact_lock(1886548336, stripe)
    FROM (SELECT DISTINCT postrider._key_stripe(p_scope, k) AS stripe FROM unnest(v_keys) AS k ORDER BY 1) AS s;
  ELSE
    PERFORM postrider._lock_key(p_scope, k)
    FROM (SELECT k FROM unnest(v_keys) AS k ORDER BY hashtextextended(k, p_scope)) AS s;
  END IF;
END $$;

-- A dead head keeps its key waiting (on_dead = hold).
CREATE FUNCTION postrider._key_is_held(p_scope bigint, p_key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM postrider.dlq WHERE holds_key AND key_scope = p_scope AND ordering_key = p_key);
END $$;

-- Nothing of the key is ready or claimed any more: its head may go, unless the key is held. Returns the
-- endpoint that has something to do now. Does not wait for senders: what of theirs is committed is seen, and
-- where one is in the middle of its transaction and nothing is seen yet, a node looks again.
CREATE FUNCTION postrider._advance_key(p_scope bigint, p_key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_alone boolean := postrider._try_lock_key(p_scope, p_key);
  v_head record;
BEGIN
  SELECT id, place, losses, endpoint_id INTO v_head FROM postrider.queue
  WHERE key_scope = p_scope AND ordering_key = p_key ORDER BY key_position LIMIT 1;
  IF NOT FOUND THEN
    IF NOT v_alone THEN
      INSERT INTO postrider._stalled_keys (key_scope, ordering_key) VALUES (p_scope, p_key);
    END IF;
    RETURN NULL;
  END IF;
  IF v_head.place <> 1 OR postrider._key_is_held(p_scope, p_key)
     OR EXISTS (SELECT FROM postrider.queue
                WHERE key_scope = p_scope AND ordering_key = p_key AND ordering_key IS NOT NULL AND place <> 1) THEN
    RETURN NULL;
  END IF;
  -- Somebody cancels it or lets it expire, or just did. Waiting could go in a circle, and who comes next is not known
  -- before that has ended.
  PERFORM FROM postrider.queue WHERE id = v_head.id FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    INSERT INTO postrider._stalled_keys (key_scope, ordering_key) VALUES (p_scope, p_key);
    RETURN NULL;
  END IF;
  UPDATE postrider.queue SET place = CASE WHEN v_head.losses = 0 THEN 0 ELSE 3 END WHERE id = v_head.id;
  RETURN v_head.endpoint_id;
END $$;

-- Looks at keys that had to be left alone. Returns the endpoints that have something to do now.
CREATE FUNCTION postrider._advance_stalled_keys(p_limit integer) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
  v_key record;
  v_endpoint bigint;
BEGIN
  FOR v_key IN SELECT DISTINCT key_scope, ordering_key FROM postrider._stalled_keys LIMIT p_limit LOOP
    CONTINUE WHEN NOT postrider._try_lock_key(v_key.key_scope, v_key.ordering_key);
    DELETE FROM postrider._stalled_keys
    WHERE key_scope = v_key.key_scope AND ordering_key = v_key.ordering_key;
    v_endpoint := postrider._advance_key(v_key.key_scope, v_key.ordering_key);
    IF v_endpoint IS NOT NULL THEN
      RETURN NEXT v_endpoint;
    END IF;
  END LOOP;
END $$;
