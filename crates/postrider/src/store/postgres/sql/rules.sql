-- Rules that hold whatever the functions do. None of them runs when a message is sent or delivered.

CREATE FUNCTION postrider._refuse_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = TG_ARGV[0];
END $$;

CREATE TRIGGER queue_immutable BEFORE UPDATE OF id, endpoint_id, priority, key_scope, key_position, ordering_key,
  created_at, expires_at, idempotency_key, correlation_id, event_type, content_type, headers, options, payload
ON postrider.queue FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('a queued message never changes; cancel it and send another');
-- attempts_before: attempts outside of the budget, because a redrive renewed it or because they were spared.
CREATE TRIGGER queue_spared BEFORE UPDATE OF attempts_before ON postrider.queue FOR EACH ROW
WHEN (NEW.attempts_before <> OLD.attempts_before + 1 OR NEW.attempts_before > NEW.attempts)
EXECUTE FUNCTION postrider._refuse_change('an attempt is spared after it ended, and one at a time');
CREATE TRIGGER queue_place BEFORE UPDATE OF place ON postrider.queue FOR EACH ROW
WHEN (NEW.place NOT IN (:ready, :behind_key, :on_probation))
EXECUTE FUNCTION postrider._refuse_change('a queued message is ready, behind its key or on probation');
CREATE TRIGGER queue_time BEFORE UPDATE OF due_at ON postrider.queue FOR EACH ROW
WHEN (NOT isfinite(NEW.due_at) OR NEW.due_at >= '9999-12-30 00:00:00+00')
EXECUTE FUNCTION postrider._refuse_change('a queued message is due at a time before 9999-12-30');
CREATE TRIGGER queue_counts BEFORE UPDATE OF attempts, losses, delivered_late ON postrider.queue FOR EACH ROW
WHEN (NEW.attempts < OLD.attempts OR NEW.losses < OLD.losses OR (OLD.delivered_late AND NOT NEW.delivered_late))
EXECUTE FUNCTION postrider._refuse_change('what was counted of a queued message is never taken back');
CREATE TRIGGER queue_kept BEFORE TRUNCATE ON postrider.queue FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('messages leave the queue one by one, and are never just gone');

CREATE TRIGGER dlq_begins_failed BEFORE INSERT ON postrider.dlq FOR EACH ROW WHEN (NEW.status <> 'failed')
EXECUTE FUNCTION postrider._refuse_change('a message becomes a dead letter as failed');
CREATE TRIGGER dlq_ends_once BEFORE UPDATE OF status ON postrider.dlq FOR EACH ROW
WHEN (OLD.status <> 'failed' OR NEW.status = 'failed')
EXECUTE FUNCTION postrider._refuse_change('only a failed dead letter can be redriven or discarded, and only once');
CREATE TRIGGER dlq_immutable BEFORE UPDATE OF id, message_id, endpoint_id, reason, died_at, errors, bytes, priority,
  attempts, losses, key_scope, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error,
  content_type, options
ON postrider.dlq FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('a dead letter never changes; its payload and headers can be erased');
CREATE TRIGGER dlq_erased BEFORE UPDATE OF payload, headers ON postrider.dlq FOR EACH ROW
WHEN (NEW.payload IS NOT NULL OR NEW.headers IS NOT NULL)
EXECUTE FUNCTION postrider._refuse_change('a dead letter never changes; its payload and headers can be erased');

CREATE TRIGGER dlq_holds BEFORE UPDATE OF holds_key ON postrider.dlq FOR EACH ROW WHEN (NEW.holds_key AND NOT OLD.holds_key)
EXECUTE FUNCTION postrider._refuse_change('a dead letter holds its key from the beginning or never');
CREATE TRIGGER dlq_held BEFORE DELETE ON postrider.dlq FOR EACH ROW WHEN (OLD.holds_key)
EXECUTE FUNCTION postrider._refuse_change('a head that holds its key is redriven, discarded or released first');
CREATE TRIGGER dlq_kept BEFORE TRUNCATE ON postrider.dlq FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('dead letters go by retention, and are never just gone');

CREATE FUNCTION postrider._only_redrive_what_is_queued() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM postrider.queue WHERE id = NEW.message_id) THEN
    PERFORM postrider._conflict('a dead letter is redriven when its message is in the queue again');
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER dlq_redriven BEFORE UPDATE OF status ON postrider.dlq FOR EACH ROW WHEN (NEW.status = 'redriven')
EXECUTE FUNCTION postrider._only_redrive_what_is_queued();

-- Row triggers exist on every month, so an UPDATE of a single month is checked too. Two changes are allowed: payload and headers
-- are erased, and a message that was cancelled while an attempt was running becomes completed when the attempt delivered it.
CREATE FUNCTION postrider._check_archive_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
DECLARE
  v_allowed record := OLD;
BEGIN
  IF NEW.status = OLD.status THEN
    v_allowed.payload := NULL;
    v_allowed.headers := NULL;
  ELSIF OLD.status = 'cancelled' AND NEW.status = 'completed' THEN
    v_allowed.status := NEW.status;
    v_allowed.finished_at := NEW.finished_at;
  END IF;
  IF NEW IS DISTINCT FROM v_allowed THEN
    PERFORM postrider._conflict('a finished message never changes; its payload and headers can be erased');
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER archive_immutable BEFORE UPDATE ON postrider.archive FOR EACH ROW
EXECUTE FUNCTION postrider._check_archive_change();
CREATE TRIGGER archive_kept BEFORE TRUNCATE ON postrider.archive FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('finished messages go by retention, and are never just gone');

CREATE TRIGGER attempts_immutable BEFORE UPDATE ON postrider.attempts FOR EACH ROW
WHEN (NEW.response_body IS NOT NULL
      OR ROW(NEW.message_id, NEW.number, NEW.node_id, NEW.started_at, NEW.duration, NEW.outcome, NEW.class, NEW.error,
             NEW.response_status)
         IS DISTINCT FROM
         ROW(OLD.message_id, OLD.number, OLD.node_id, OLD.started_at, OLD.duration, OLD.outcome, OLD.class, OLD.error,
             OLD.response_status))
EXECUTE FUNCTION postrider._refuse_change('a recorded attempt never changes; its body can be erased');

-- `detail` may change: a redrive's count is amended over several transactions.
CREATE TRIGGER event_log_immutable BEFORE UPDATE OF id, at, kind, subject ON postrider.event_log FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('what was logged never changes');

-- The queue and the archive refer to endpoints by id.
CREATE TRIGGER endpoints_kept BEFORE DELETE OR TRUNCATE ON postrider.endpoints FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('endpoints are not deleted; drop_endpoint() keeps the name for the archive');
CREATE TRIGGER endpoints_immutable BEFORE UPDATE OF id, name, protocol, created_at ON postrider.endpoints FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('an endpoint keeps its name and protocol; drop it and create another');
CREATE TRIGGER endpoints_dropped BEFORE UPDATE ON postrider.endpoints FOR EACH ROW WHEN (OLD.dropped_at IS NOT NULL)
EXECUTE FUNCTION postrider._refuse_change('an endpoint that was dropped does not come back; create another');
CREATE TRIGGER endpoints_switched BEFORE UPDATE OF disabled_by, paused, revision, dropped_at ON postrider.endpoints
FOR EACH STATEMENT WHEN (current_setting('postrider.switch', true) IS DISTINCT FROM 'allowed')
EXECUTE FUNCTION postrider._refuse_change('only config, retry_policy and options of an endpoint can be updated; '
  'enable_endpoint(), disable_endpoint(), pause_endpoint(), resume_endpoint() and drop_endpoint() do the rest');

CREATE TRIGGER replays_ended BEFORE UPDATE OF state ON postrider.replays FOR EACH ROW
WHEN (OLD.state = 'completed' AND NEW.state <> 'completed')
EXECUTE FUNCTION postrider._refuse_change('a replay that is completed stays so; start another');

CREATE TRIGGER nodes_ended BEFORE UPDATE OF state ON postrider.nodes FOR EACH ROW
WHEN (OLD.state <> 'live' AND NEW.state <> OLD.state)
EXECUTE FUNCTION postrider._refuse_change('a node that left or was lost does not come back; it joins as another');

CREATE FUNCTION postrider._check_written_setting() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._check_setting(NEW.name, NEW.value);
  RETURN NEW;
END $$;
CREATE TRIGGER settings_checked BEFORE INSERT OR UPDATE ON postrider.settings FOR EACH ROW
EXECUTE FUNCTION postrider._check_written_setting();

CREATE FUNCTION postrider._settings_were_written() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._refresh_limits();
  UPDATE postrider._store SET version = version + 1;
  PERFORM pg_notify('postrider', 'config');
  RETURN NULL;
END $$;
CREATE TRIGGER settings_written AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON postrider.settings FOR EACH STATEMENT
EXECUTE FUNCTION postrider._settings_were_written();
