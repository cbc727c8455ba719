-- How nodes hear of work: notifications, and _unheard for transactions that must not notify.

-- A transaction that has notified cannot be prepared for two-phase commit: the caller sets postrider.notify to off before it sends.
CREATE FUNCTION postrider._may_notify() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (lower(current_setting('postrider.notify', true)) IN ('off', 'false', 'no', '0')) IS NOT TRUE;
END $$;

-- Called after the message is inserted. A commit with a notification takes a lock of the whole server, so at a time only one
-- transaction per endpoint notifies: the one that gets the bell, an advisory lock. A notified node looks again until all
-- transactions that were running then have ended (late_commits.rs). There is one bell per hundredth of a second, or a sender in a
-- long transaction would silence all others. A transaction that notifies once may notify more at no cost, and takes no further
-- bell: the whole server has a few thousand locks.
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

-- A message of this endpoint became claimable in its old position, which may be before the cursors of nodes.
CREATE FUNCTION postrider._tell_unblocked(p_endpoint bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_endpoint IS NOT NULL AND NOT postrider._may_notify() THEN
    INSERT INTO postrider._unheard (endpoint_id) VALUES (p_endpoint);
  ELSIF p_endpoint IS NOT NULL THEN
    PERFORM pg_notify('postrider', 'back:' || p_endpoint);
  END IF;
END $$;

-- Takes up to p_limit endpoints of messages that were sent without a notification; the node then claims from the start of the
-- queue.
CREATE FUNCTION postrider._take_unheard(p_limit integer) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  v_endpoints bigint[];
BEGIN
  WITH taken AS (
    DELETE FROM postrider._unheard WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM postrider._unheard LIMIT p_limit FOR UPDATE SKIP LOCKED)) RETURNING endpoint_id)
  SELECT array_agg(DISTINCT endpoint_id) INTO v_endpoints FROM taken;
  RETURN coalesce(v_endpoints, '{}');
END $$;
