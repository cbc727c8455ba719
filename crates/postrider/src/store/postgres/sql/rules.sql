-- Rules that hold whatever the functions do. None costs anything when a message is sent or delivered.

CREATE FUNCTION postrider._refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = TG_ARGV[0];
END $$;

CREATE TRIGGER queue_immutable BEFORE UPDATE OF id, endpoint_id, attempts_before, priority, key_scope, key_position,
  ordering_key, created_at, expires_at, idempotency_key, correlation_id, event_type, content_type, headers, options, payload
ON postrider.queue FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('a queued message never changes; cancel it and send another');
CREATE TRIGGER queue_place BEFORE UPDATE OF place ON postrider.queue FOR EACH ROW WHEN (NEW.place NOT IN (0, 1, 3))
EXECUTE FUNCTION postrider._refuse_change('a queued message is ready, behind its key or on probation');

CREATE TRIGGER dlq_begins_failed BEFORE INSERT ON postrider.dlq FOR EACH ROW WHEN (NEW.status <> 'failed')
EXECUTE FUNCTION postrider._refuse_change('a message becomes a dead letter as failed');
CREATE TRIGGER dlq_ends_once BEFORE UPDATE OF status ON postrider.dlq FOR EACH ROW
WHEN (OLD.status <> 'failed' OR NEW.status = 'failed')
EXECUTE FUNCTION postrider._refuse_change('only a failed dead letter can be redriven or discarded, and only once');
CREATE TRIGGER dlq_immutable BEFORE UPDATE OF id, message_id, endpoint_id, reason, died_at, errors, priority, attempts,
  key_scope, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error,
  content_type, options
ON postrider.dlq FOR EACH STATEMENT
EXECUTE FUNCTION postrider._refuse_change('a dead letter never changes; its payload and headers can be erased');
CREATE TRIGGER dlq_erased BEFORE UPDATE OF payload, headers ON postrider.dlq FOR EACH ROW
WHEN (NEW.payload IS NOT NULL OR NEW.headers IS NOT NULL)
EXECUTE FUNCTION postrider._refuse_change('a dead letter never changes; its payload and headers can be erased');

CREATE FUNCTION postrider._only_redrive_what_is_queued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM postrider.queue WHERE id = NEW.message_id) THEN
    PERFORM postrider._conflict('a dead letter is redriven when its message is in the queue again');
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER dlq_redriven BEFORE UPDATE OF status ON postrider.dlq FOR EACH ROW WHEN (NEW.status = 'redriven')
EXECUTE FUNCTION postrider._only_redrive_what_is_queued();

-- On every month, so that going to one of them directly changes nothing.
CREATE TRIGGER archive_immutable BEFORE UPDATE ON postrider.archive FOR EACH ROW
WHEN (NEW.payload IS NOT NULL OR NEW.headers IS NOT NULL OR NEW.id <> OLD.id OR NEW.endpoint_id <> OLD.endpoint_id
      OR NEW.status <> OLD.status OR NEW.finished_at <> OLD.finished_at OR NEW.created_at <> OLD.created_at
      OR NEW.attempts <> OLD.attempts)
EXECUTE FUNCTION postrider._refuse_change('a finished message never changes; its payload and headers can be erased');
