-- Single messages: cancel, reschedule, erase, expire.

-- The state of a message that is not queued; null when it is unknown.
CREATE FUNCTION postrider._finished_state(p_id bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT status FROM postrider.archive WHERE id = p_id LIMIT 1),
    (SELECT 'dead' FROM postrider.dlq WHERE message_id = p_id AND status <> 'redriven' LIMIT 1));
END $$;

-- The message, locked; an error unless it is pending.
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

-- For a dropped endpoint: cancels a message even while an attempt is running, whose result is then fenced.
CREATE FUNCTION postrider._cancel_by_force(p_id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
BEGIN
  SELECT * INTO v FROM postrider.queue WHERE id = p_id FOR UPDATE;
  IF FOUND THEN
    PERFORM postrider._tell_unblocked(postrider._leave(p_id,
      CASE WHEN v.delivered_late THEN 'completed' ELSE 'cancelled' END,
      v.attempts + CASE WHEN postrider._is_claimed(p_id) THEN 1 ELSE 0 END));
    PERFORM postrider._departed(1);
  END IF;
END $$;

-- Cancels messages that senders committed while their endpoint was dropped, for endpoints that were dropped after p_dropped_after. The
-- next message of a key follows when the one before it is cancelled. Skips locked messages.
CREATE FUNCTION postrider._cancel_orphans(p_dropped_after timestamptz, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_done integer := 0;
  v_ids bigint[];
BEGIN
  WHILE v_done < p_limit LOOP
    v_ids := ARRAY(
      SELECT o.id FROM postrider.endpoints e, LATERAL (
        SELECT q.id FROM postrider.queue q WHERE q.place = :ready AND q.endpoint_id = e.id
        LIMIT p_limit - v_done FOR UPDATE SKIP LOCKED) AS o
      WHERE e.dropped_at > p_dropped_after LIMIT p_limit - v_done
    ) || ARRAY(
      SELECT q.id FROM postrider.queue q JOIN postrider.endpoints e ON e.id = q.endpoint_id
      WHERE q.place = :on_probation AND e.dropped_at > p_dropped_after LIMIT p_limit - v_done FOR UPDATE OF q SKIP LOCKED);
    EXIT WHEN cardinality(v_ids) = 0;
    PERFORM postrider._cancel_by_force(id) FROM unnest(v_ids) AS id;
    v_done := v_done + cardinality(v_ids);
  END LOOP;
  RETURN v_done;
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
  -- Wait for a redrive or cancel: it decides where the message is.
  PERFORM FROM postrider.dlq d WHERE d.message_id = erase_message.id FOR UPDATE;
  PERFORM FROM postrider.queue q WHERE q.id = erase_message.id FOR UPDATE;
  IF FOUND OR postrider._finished_state(erase_message.id) IS NULL THEN
    PERFORM postrider._cancel(postrider._pending_message(erase_message.id));
  END IF;
  UPDATE postrider.archive a SET payload = NULL, headers = NULL
  WHERE a.id = erase_message.id AND (a.payload IS NOT NULL OR a.headers IS NOT NULL);
  UPDATE postrider.dlq d SET payload = NULL, headers = NULL
  WHERE d.message_id = erase_message.id AND (d.payload IS NOT NULL OR d.headers IS NOT NULL);
  UPDATE postrider.attempts a SET response_body = NULL
  WHERE a.message_id = erase_message.id AND a.response_body IS NOT NULL;
  PERFORM postrider._log_event('message.erased', erase_message.id::text,
    jsonb_build_object('message', erase_message.id));
END $$;

-- Archives a pending message that is past its expiry. Null when it is not, or when another transaction has locked it.
CREATE FUNCTION postrider._expire_message(p_id bigint) RETURNS postrider._expired LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
  v_unblocked bigint;
BEGIN
  SELECT * INTO v FROM postrider.queue WHERE id = p_id AND expires_at <= postrider._now() FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR postrider._is_claimed(p_id) THEN
    RETURN NULL;
  END IF;
  v_unblocked := postrider._leave(p_id, 'expired', v.attempts);
  PERFORM postrider._departed(1);
  PERFORM postrider._tell_unblocked(v_unblocked);
  RETURN (v.id, v.endpoint_id, v.attempts)::postrider._expired;
END $$;

-- Archives up to p_limit pending messages that are past their expiry.
CREATE FUNCTION postrider._expire(p_limit integer) RETURNS SETOF postrider._expired LANGUAGE plpgsql AS $$
DECLARE
  v_id bigint;
  v_expired postrider._expired;
BEGIN
  FOR v_id IN
    SELECT id FROM postrider.queue
    WHERE expires_at <= postrider._now() AND id <> ALL (postrider._claimed_ids())
    ORDER BY expires_at LIMIT p_limit
  LOOP
    v_expired := postrider._expire_message(v_id);
    IF v_expired.id IS NOT NULL THEN
      RETURN NEXT v_expired;
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION postrider.mark_expired_messages() RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._need_read_committed();
  RETURN (SELECT count(*) FROM postrider._expire(2147483647));
END $$;
