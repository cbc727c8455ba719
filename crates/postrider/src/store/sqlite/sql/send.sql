-- Sending from any language. An INSTEAD OF trigger serves as a function: its view has the parameters, NEW.x the values.
-- No syntax newer than SQLite 3.38. No conflict clauses: the caller's OR REPLACE or OR IGNORE would replace them, so every
-- rule is checked before anything is written. {…} is filled in by surface/.

CREATE VIEW postrider_send AS
SELECT NULL AS endpoint, NULL AS payload, NULL AS priority, NULL AS scheduled_at, NULL AS idempotency_key,
  NULL AS correlation_id, NULL AS expires_at, NULL AS ordering_key, NULL AS headers, NULL AS options,
  NULL AS content_type, NULL AS event_type
WHERE 0;

CREATE VIEW postrider_last_send AS
SELECT id, duplicate FROM _postrider_last_send WHERE id IS NOT NULL;

CREATE VIEW _postrider_limits AS
SELECT {limits};

-- A message as it was read. Unreadable values are 'bad', JSON with U+0000 is 'nul', JSON that is too deep for nodes is
-- 'deep', headers with a repeated name are 'twice'.
CREATE VIEW _postrider_read AS
SELECT NULL AS now, NULL AS endpoint_id, NULL AS protocol, NULL AS disabled_by, NULL AS queue_max, NULL AS payload,
  NULL AS content_type, NULL AS priority, NULL AS scheduled_at, NULL AS expires_at, NULL AS idempotency_key,
  NULL AS correlation_id, NULL AS key_scope, NULL AS ordering_key, NULL AS headers, NULL AS kept_headers, NULL AS options,
  NULL AS event_type
WHERE 0;

CREATE TRIGGER _postrider_send_read INSTEAD OF INSERT ON postrider_send
BEGIN
  INSERT INTO _postrider_read (now, endpoint_id, protocol, disabled_by, queue_max, payload, content_type, priority,
    scheduled_at, expires_at, idempotency_key, correlation_id, key_scope, ordering_key, headers, kept_headers, options, event_type)
  SELECT {now}, e.id, e.protocol, e.disabled_by, json_extract(e.options, '$.max_queue_size'),
    CASE typeof(NEW.payload) WHEN 'text' THEN CAST(NEW.payload AS BLOB) WHEN 'blob' THEN NEW.payload
                             WHEN 'null' THEN NULL ELSE 'bad' END,
    coalesce(NEW.content_type, '{json}'), coalesce(NEW.priority, 0), {scheduled_at}, {expires_at},
    NEW.idempotency_key, {correlation_id},
    CASE WHEN NEW.ordering_key IS NULL THEN NULL WHEN json_extract(e.options, '$.key_scope') = 'global' THEN 0 ELSE e.id END,
    NEW.ordering_key,
    CASE WHEN {headers_have_nul} THEN 'nul' WHEN {headers_are_too_deep} THEN 'deep' WHEN {headers_are_readable} THEN
      CASE WHEN {headers_are_given_twice} THEN 'twice' ELSE
        (SELECT json_group_object(key, value) FROM (SELECT key, value FROM json_each(NEW.headers) ORDER BY key)) END
      WHEN NEW.headers IS NOT NULL THEN 'bad' END,
    CASE WHEN NEW.headers IS NOT NULL THEN (SELECT json_group_array(name) FROM ({kept_headers})) END,
    CASE WHEN {options_have_nul} THEN 'nul' WHEN {options_are_too_deep} THEN 'deep' WHEN {options_are_readable} THEN json(NEW.options) WHEN NEW.options IS NOT NULL THEN 'bad' END,
    NEW.event_type
  FROM (SELECT 1) LEFT JOIN _postrider_endpoints AS e ON e.name = NEW.endpoint AND e.dropped_at IS NULL;
END;

CREATE TRIGGER _postrider_read_send INSTEAD OF INSERT ON _postrider_read
BEGIN
  SELECT CASE
{checks}
  END
  FROM _postrider_limits AS l;

  -- An expired holder of the idempotency key is expired first.
  INSERT INTO _postrider_expire (now, id, endpoint_id, place, key_scope, ordering_key, created_at)
  SELECT NEW.now, id, endpoint_id, place, key_scope, ordering_key, created_at FROM _postrider_queue
  WHERE endpoint_id = NEW.endpoint_id AND idempotency_key = NEW.idempotency_key AND expires_at <= NEW.now AND place <> 2;

  SELECT RAISE(ABORT, '{conflict}')
  FROM _postrider_queue
  WHERE endpoint_id = NEW.endpoint_id AND idempotency_key = NEW.idempotency_key
    AND NOT (payload IS NEW.payload AND content_type = NEW.content_type);

  SELECT RAISE(ABORT, '{conflict}')
  FROM _postrider_reservations AS r
  WHERE endpoint_id = NEW.endpoint_id AND idempotency_key = NEW.idempotency_key AND until > NEW.now
    AND NOT (payload IS NEW.payload AND content_type IS NEW.content_type)
    AND NOT EXISTS (SELECT 1 FROM _postrider_queue AS q
                    WHERE q.endpoint_id = r.endpoint_id AND q.idempotency_key = r.idempotency_key);

  UPDATE _postrider_last_send SET id = coalesce(
    (SELECT id FROM _postrider_queue WHERE endpoint_id = NEW.endpoint_id AND idempotency_key = NEW.idempotency_key),
    (SELECT message_id FROM _postrider_reservations
     WHERE endpoint_id = NEW.endpoint_id AND idempotency_key = NEW.idempotency_key AND until > NEW.now));
  UPDATE _postrider_last_send SET duplicate = id IS NOT NULL;

  SELECT CASE
    WHEN l.max_queue_size > 0 AND l.max_queue_size
         <= (SELECT coalesce(sum(queued), 0) FROM _postrider_counts WHERE endpoint_id = 0)
      THEN RAISE(ABORT, '{queue_full}')
    WHEN NEW.queue_max > 0 AND NEW.queue_max
         <= (SELECT coalesce(sum(queued), 0) FROM _postrider_counts WHERE endpoint_id = NEW.endpoint_id)
      THEN RAISE(ABORT, '{endpoint_full}')
  END
  FROM _postrider_limits AS l, _postrider_last_send AS s WHERE NOT s.duplicate;

  INSERT INTO _postrider_queue (endpoint_id, place, behind_key, priority, due_at, key_scope, key_position,
    ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, content_type, headers,
    options, payload)
  SELECT NEW.endpoint_id, b.behind, b.behind, NEW.priority, max(NEW.now, coalesce(NEW.scheduled_at, NEW.now)),
    NEW.key_scope, CASE WHEN NEW.ordering_key IS NOT NULL THEN
      (SELECT max(coalesce(max(key_position), 0), 0) + 1 FROM _postrider_queue
       WHERE key_scope = NEW.key_scope AND ordering_key = NEW.ordering_key) END,
    NEW.ordering_key, NEW.now, NEW.scheduled_at, NEW.expires_at, NEW.idempotency_key, NEW.correlation_id, NEW.event_type,
    NEW.content_type, nullif(NEW.headers, '{}'), nullif(NEW.options, '{}'), NEW.payload
  FROM _postrider_last_send AS s, (SELECT
    EXISTS (SELECT 1 FROM _postrider_queue WHERE key_scope = NEW.key_scope AND ordering_key = NEW.ordering_key)
    OR EXISTS (SELECT 1 FROM _postrider_dlq
               WHERE holds_key = 1 AND key_scope = NEW.key_scope AND ordering_key = NEW.ordering_key) AS behind) AS b
  WHERE NOT s.duplicate;
  -- With OR IGNORE a constraint would drop the row without an error.
  SELECT RAISE(ABORT, '55000 message: could not be queued') FROM _postrider_last_send WHERE NOT duplicate AND changes() <> 1;
  UPDATE _postrider_last_send SET id = last_insert_rowid() WHERE NOT duplicate;

  INSERT INTO _postrider_counts (endpoint_id)
  SELECT NEW.endpoint_id WHERE NOT EXISTS (SELECT 1 FROM _postrider_counts WHERE endpoint_id = NEW.endpoint_id);
  UPDATE _postrider_counts SET queued = queued + 1
  WHERE endpoint_id IN (0, NEW.endpoint_id) AND NOT (SELECT duplicate FROM _postrider_last_send);
END;

-- Moves a message from the queue to the archive; the next one of its key becomes claimable.
CREATE VIEW _postrider_expire AS
SELECT NULL AS now, NULL AS id, NULL AS endpoint_id, NULL AS place, NULL AS key_scope, NULL AS ordering_key,
  NULL AS created_at
WHERE 0;

CREATE TRIGGER _postrider_expire_one INSTEAD OF INSERT ON _postrider_expire
BEGIN
  INSERT INTO _postrider_archive (id, endpoint_id, status, finished_at, priority, attempts, place, delivered_late,
    ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error,
    content_type, headers, options, payload)
  SELECT id, endpoint_id, 'expired', NEW.now, priority, attempts, place, delivered_late, ordering_key, created_at,
    scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error, content_type,
    CASE l.archive WHEN 'on' THEN headers END, options, CASE l.archive WHEN 'on' THEN payload END
  FROM _postrider_queue, _postrider_limits AS l WHERE id = NEW.id AND l.archive <> 'off';
  DELETE FROM _postrider_attempts
  WHERE message_id = NEW.id AND (SELECT attempt_log FROM _postrider_limits) = 'off';
  DELETE FROM _postrider_queue WHERE id = NEW.id;
  UPDATE _postrider_counts SET queued = queued - 1 WHERE endpoint_id IN (0, NEW.endpoint_id);
  UPDATE _postrider_queue SET place = CASE losses WHEN 0 THEN 0 ELSE 3 END, behind_key = 0
  WHERE NEW.place <> 1 AND place = 1
    AND id = (SELECT id FROM _postrider_queue WHERE key_scope = NEW.key_scope AND ordering_key = NEW.ordering_key
              ORDER BY key_position LIMIT 1)
    AND NOT EXISTS (SELECT 1 FROM _postrider_dlq
                    WHERE holds_key = 1 AND key_scope = NEW.key_scope AND ordering_key = NEW.ordering_key);
END;
