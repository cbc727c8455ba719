-- Publishing from any language. The event is stored in the caller's transaction; a node fans it out. What does not depend
-- on subscriptions is checked at once. {…} is filled in by surface/.

CREATE VIEW postrider_publish AS
SELECT NULL AS event_type, NULL AS payload, NULL AS priority, NULL AS scheduled_at, NULL AS idempotency_key,
  NULL AS correlation_id, NULL AS expires_at, NULL AS ordering_key, NULL AS headers, NULL AS options
WHERE 0;

-- An event as it was read; see _postrider_read.
CREATE VIEW _postrider_read_event AS
SELECT NULL AS now, NULL AS is_known, NULL AS payload, NULL AS priority, NULL AS scheduled_at, NULL AS expires_at,
  NULL AS idempotency_key, NULL AS correlation_id, NULL AS ordering_key, NULL AS headers, NULL AS options, NULL AS event_type
WHERE 0;

CREATE TRIGGER _postrider_publish_read INSTEAD OF INSERT ON postrider_publish
BEGIN
  INSERT INTO _postrider_read_event (now, is_known, payload, priority, scheduled_at, expires_at, idempotency_key,
    correlation_id, ordering_key, headers, options, event_type)
  SELECT {now}, EXISTS (SELECT 1 FROM _postrider_event_types WHERE name = NEW.event_type),
    CASE typeof(NEW.payload) WHEN 'text' THEN CAST(NEW.payload AS BLOB) WHEN 'blob' THEN NEW.payload
                             WHEN 'null' THEN NULL ELSE 'bad' END,
    coalesce(NEW.priority, 0), {scheduled_at}, {expires_at}, NEW.idempotency_key, {correlation_id}, NEW.ordering_key,
    CASE WHEN {headers_have_nul} THEN 'nul' WHEN {headers_are_too_deep} THEN 'deep' WHEN {headers_are_readable} THEN
      CASE WHEN {headers_are_given_twice} THEN 'twice' ELSE
        (SELECT json_group_object(key, value) FROM (SELECT key, value FROM json_each(NEW.headers) ORDER BY key)) END
      WHEN NEW.headers IS NOT NULL THEN 'bad' END,
    CASE WHEN {options_have_nul} THEN 'nul' WHEN {options_are_too_deep} THEN 'deep' WHEN {options_are_readable} THEN json(NEW.options) WHEN NEW.options IS NOT NULL THEN 'bad' END,
    NEW.event_type;
END;

CREATE TRIGGER _postrider_read_event_store INSTEAD OF INSERT ON _postrider_read_event
BEGIN
  SELECT CASE
{checks}
  END
  FROM _postrider_limits AS l;

  -- Count each stored event as one message: how many it will make is not known yet.
  SELECT RAISE(ABORT, '{queue_full}')
  FROM _postrider_limits AS l
  WHERE l.max_queue_size > 0 AND l.max_queue_size
    <= (SELECT coalesce(sum(queued), 0) FROM _postrider_counts WHERE endpoint_id = 0)
     + (SELECT coalesce((SELECT max(id) FROM _postrider_events) - (SELECT min(id) FROM _postrider_events) + 1, 0));

  INSERT INTO _postrider_events (event_type, created_at, priority, scheduled_at, expires_at, idempotency_key,
    correlation_id, ordering_key, headers, options, payload)
  VALUES (NEW.event_type, NEW.now, NEW.priority, NEW.scheduled_at, NEW.expires_at, NEW.idempotency_key,
    NEW.correlation_id, NEW.ordering_key, nullif(NEW.headers, '{}'), nullif(NEW.options, '{}'), NEW.payload);
  -- With OR IGNORE a constraint would drop the row without an error.
  SELECT RAISE(ABORT, '55000 event: could not be stored') WHERE changes() <> 1;
END;
