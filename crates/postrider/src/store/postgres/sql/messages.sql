-- What people do to single messages: cancel, reschedule, erase; and what time does to them: expiry.

-- The state of a message that is not queued; null when nothing is known of it.
CREATE FUNCTION postrider._finished_state(p_id bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT status FROM postrider.archive WHERE id = p_id LIMIT 1),
    (SELECT 'dead' FROM postrider.dlq WHERE message_id = p_id AND status <> 'redriven' LIMIT 1));
END $$;

-- The message, locked: pending, not in a node's hands.
CREATE FUNCTION postrider._pending_message(p_id bigint) RETURNS postrider.queue LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
  v_state text;
BEGIN
  PERFORM postrider._need_read_committed();
  SELECT * INTO v FROM postrider.queue WHERE id = p_id FOR UPDATE;
  v_state := CASE WHEN NOT FOUND THEN postrider._finished_state(p_id)
                  WHEN postrider._is_claimed(p_id) THEN 'processing'
                  ELSE 'pending' END;
  IF v_state IS NULL THEN
    PERFORM postrider._unknown('message', p_id::text);
  ELSIF v_state <> 'pending' THEN
    PERFORM postrider._conflict(format('message %s is %s; only a pending one can be changed', p_id, v_state));
  END IF;
  RETURN v;
END $$;

CREATE FUNCTION postrider._cancel(v postrider.queue) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._tell_unblocked(postrider._leave(v.id, 'cancelled', v.attempts));
  PERFORM postrider._departed(1);
END $$;

CREATE FUNCTION postrider.cancel_message(id bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._cancel(postrider._pending_message(cancel_message.id));
END $$;

CREATE FUNCTION postrider.reschedule_message(id bigint, at timestamptz) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v postrider.queue;
BEGIN
  IF at IS NULL THEN
    PERFORM postrider._invalid('at', 'is required');
  END IF;
  PERFORM postrider._check_time('at', at);
  v := postrider._pending_message(reschedule_message.id);
  IF v.expires_at <= at THEN
    PERFORM postrider._invalid('at', 'must be before the message expires');
  END IF;
  UPDATE postrider.queue SET due_at = greatest(at, postrider._now()), scheduled_at = at WHERE queue.id = v.id;
  PERFORM postrider._tell_unblocked(v.endpoint_id);
END $$;

-- Removes payload and headers wherever the message is; the record stays. A pending message without its payload
-- cannot be delivered, so it is cancelled as well.
CREATE FUNCTION postrider.erase_message(id bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  -- Whoever redrives or cancels it is waited for: where it is then is not known before.
  PERFORM FROM postrider.dlq d WHERE d.message_id = erase_message.id FOR UPDATE;
  PERFORM FROM postrider.queue q WHERE q.id = erase_message.id FOR UPDATE;
  IF FOUND OR postrider._finished_state(erase_message.id) IS NULL THEN
    PERFORM postrider._cancel(postrider._pending_message(erase_message.id));
  END IF;
  UPDATE postrider.archive a SET payload = NULL, headers = NULL
  WHERE a.id = erase_message.id AND (a.payload IS NOT NULL OR a.headers IS NOT NULL);
  UPDATE postrider.dlq d SET payload = NULL, headers = NULL
  WHERE d.message_id = erase_message.id AND (d.payload IS NOT NULL OR d.headers IS NOT NULL);
  UPDATE postrider.attempts a SET body = NULL WHERE a.message_id = erase_message.id AND a.body IS NOT NULL;
  PERFORM postrider._log_event('message.erased', erase_message.id::text,
    jsonb_build_object('message', erase_message.id));
END $$;

-- Moves up to p_limit pending messages past their expiry to the archive; of each its id, its endpoint's and its
-- attempts, one after the other.
CREATE FUNCTION postrider._expire(p_limit integer) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  v record;
  v_expired bigint[] := '{}';
BEGIN
  FOR v IN
    SELECT id, endpoint_id, attempts FROM postrider.queue
    WHERE expires_at <= postrider._now() AND id <> ALL (postrider._claimed_ids())
    ORDER BY expires_at LIMIT p_limit
  LOOP
    IF postrider._expire_message(v.id) THEN
      v_expired := v_expired || v.id || v.endpoint_id || v.attempts::bigint;
    END IF;
  END LOOP;
  RETURN v_expired;
END $$;

CREATE FUNCTION postrider.mark_expired_messages() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._need_read_committed();
  RETURN cardinality(postrider._expire(2147483647)) / 3;
END $$;
