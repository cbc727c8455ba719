-- Which sessions block nodes or senders. Any role that may connect can take the advisory locks of nodes, and a sender's open
-- transaction keeps the locks of its keys.

-- A session by its role and process; a prepared transaction has no process.
CREATE FUNCTION postrider._session_named(p_pid integer, p_transaction text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF p_pid IS NULL THEN
    RETURN coalesce((SELECT format('prepared transaction %s of role %s', postrider._quoted(gid), postrider._quoted(owner))
                     FROM pg_locks JOIN pg_prepared_xacts ON transaction = transactionid
                     WHERE virtualtransaction = p_transaction AND locktype = 'transactionid' AND granted AND pid IS NULL LIMIT 1),
                    'a prepared transaction');
  END IF;
  -- An ordinary role sees no more of another role's session.
  RETURN (SELECT format('role %s (process %s%s)', postrider._quoted(usename), pid, ', ' || nullif(application_name, ''))
          FROM pg_stat_activity WHERE pid = p_pid);
END $$;

-- Sessions that hold a lock which others need. Most do so for a moment: a node looks twice, and the same session in the same
-- transaction (null: in any) counts as one that held it all the time. Store-wide work of nodes may take longer (`patience`), and
-- nothing waits for it. Locks of keys count when a node had to stall the key, or when a sender waits for the key, which then holds
-- the key's stripe. A lock does not tell the name of its key.
CREATE FUNCTION postrider._lock_holders()
RETURNS TABLE (lock text, session text, transaction text, endpoint_id bigint, stops_delivery boolean, patience interval)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    WITH locks AS MATERIALIZED (
      SELECT l.classid::bigint AS class, l.objid::bigint AS object, l.classid::bigint << 32 | l.objid::bigint AS key, l.objsubid,
             l.pid, l.virtualtransaction AS transaction, l.granted, l.mode = 'ExclusiveLock' AS exclusive, l.waitstart
      FROM pg_locks l
      WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ), wanted AS (
      SELECT w.key FROM locks w
      WHERE NOT w.granted AND w.objsubid = 1 AND w.waitstart < clock_timestamp() - interval '1 second'
        AND EXISTS (SELECT FROM locks stripe WHERE stripe.pid = w.pid AND stripe.granted AND stripe.objsubid = 2
                      AND stripe.class IN (:lock_ordering_stripe, :lock_idempotency_stripe) AND stripe.object = postrider._key_stripe(w.key))
      UNION ALL
      (SELECT s.key FROM postrider._stalled_keys s ORDER BY s.position LIMIT 1000)
    ), held AS (
      SELECT h.pid, h.transaction, e.id AS endpoint_id,
        CASE
          WHEN h.objsubid = 1 THEN 'an ordering or idempotency key'
          WHEN h.class = :lock_endpoint_claims THEN format('claims for endpoint %s', postrider._quoted(e.name))
          WHEN h.class = :lock_store AND h.object = :store_claims AND h.exclusive THEN 'all claims'
          WHEN h.class = :lock_store AND h.object = :store_departures AND h.exclusive THEN 'all messages that leave the queue'
          WHEN h.class = :lock_store AND h.object = :store_months THEN 'the months of the archive'
          WHEN h.class = :lock_store AND h.object = :store_count THEN 'the count of the queue'
          WHEN h.class = :lock_store AND h.object = :store_replays THEN 'the start of replays'
          WHEN h.class = :lock_ordering_stripe AND h.exclusive THEN 'many ordering keys'
          WHEN h.class = :lock_idempotency_stripe AND h.exclusive THEN 'many idempotency keys'
        END AS lock,
        h.objsubid = 2 AND h.class IN (:lock_endpoint_claims, :lock_store) AS is_of_nodes,
        h.class = :lock_store AND h.object IN (:store_months, :store_count, :store_replays) AS is_upkeep
      FROM locks h LEFT JOIN postrider.endpoints e ON h.class = :lock_endpoint_claims AND h.objsubid = 2 AND e.id = h.object
      WHERE h.granted AND h.pid IS DISTINCT FROM pg_backend_pid()
        AND (h.objsubid = 2 OR h.key IN (SELECT key FROM wanted))
    )
    SELECT DISTINCT h.lock, postrider._session_named(h.pid, h.transaction),
      -- Nodes take their locks again and again for a moment each; other roles should not hold them at all.
      CASE WHEN NOT h.is_of_nodes OR EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = h.pid AND a.usename = current_user)
           THEN h.transaction END, h.endpoint_id,
      h.endpoint_id IS NOT NULL OR h.lock LIKE 'all %',
      CASE WHEN h.is_upkeep THEN interval '1 minute' ELSE interval '1 second' END
    FROM held h WHERE h.lock IS NOT NULL AND postrider._session_named(h.pid, h.transaction) IS NOT NULL;
END $$;

-- Stores all locks that a node has seen for too long: [{"lock", "session", "since", "endpoint_id", "stops_delivery"}].
CREATE FUNCTION postrider._note_in_the_way(p_seen jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM postrider._in_the_way;
  INSERT INTO postrider._in_the_way (lock, session, since, seen_at, endpoint_id, stops_delivery)
  SELECT s.lock, s.session, s.since, clock_timestamp(), s.endpoint_id, s.stops_delivery
  FROM jsonb_to_recordset(p_seen) AS s (lock text, session text, since timestamptz, endpoint_id bigint, stops_delivery boolean);
END $$;

-- The current ones; entries of a node that stopped are too old.
CREATE FUNCTION postrider._now_in_the_way() RETURNS SETOF postrider._in_the_way LANGUAGE plpgsql STABLE AS $$
BEGIN
  -- Two nodes may have stored the same.
  RETURN QUERY SELECT * FROM (SELECT DISTINCT ON (w.lock, w.session) w.* FROM postrider._in_the_way w
    WHERE w.seen_at > clock_timestamp() - interval '10 seconds' ORDER BY w.lock, w.session, w.since) AS d ORDER BY d.since;
END $$;

-- The session whose open transaction holds this key.
CREATE FUNCTION postrider._key_holder(p_key bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT postrider._session_named(l.pid, l.virtualtransaction) FROM pg_locks l
          WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid::bigint << 32 | l.objid::bigint = p_key
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.pid IS DISTINCT FROM pg_backend_pid() LIMIT 1);
END $$;

-- The sessions that this one has been waiting for, on any lock, for half a second.
CREATE FUNCTION postrider._blockers(p_pid integer) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_locks WHERE pid = p_pid AND NOT granted
                   AND waitstart < clock_timestamp() - interval '500 milliseconds') THEN
    RETURN NULL;
  END IF;
  -- Process 0 stands for a prepared transaction.
  RETURN (SELECT string_agg(postrider._session_named(nullif(b.pid, 0), (
            SELECT h.virtualtransaction FROM pg_locks w JOIN pg_locks h
              ON h.locktype = w.locktype AND h.database = w.database AND h.granted AND h.pid IS NULL
              AND (h.relation, h.transactionid, h.classid, h.objid, h.objsubid)
                  IS NOT DISTINCT FROM (w.relation, w.transactionid, w.classid, w.objid, w.objsubid)
            WHERE b.pid = 0 AND w.pid = p_pid AND NOT w.granted LIMIT 1)), ', ')
          FROM (SELECT DISTINCT unnest(pg_blocking_pids(p_pid)) AS pid) AS b);
END $$;
