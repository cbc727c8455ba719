INSERT INTO {month} (id, endpoint_id, status, finished_at, priority, attempts, place, ordering_key, created_at, scheduled_at,
  expires_at, idempotency_key, correlation_id, event_type, last_error, content_type, headers, options, payload)
WITH made (id, at) AS (
  SELECT id, CAST(strftime('%s', 'now', 'start of month') AS INTEGER) * 1000000
    + CAST((?2 - CAST(strftime('%s', 'now', 'start of month') AS INTEGER) * 1000000) * (id * 1.0 / ?1) AS INTEGER)
  FROM _postrider_queue
)
SELECT id, endpoint_id, CASE WHEN id % 50 = 1 THEN 'cancelled' ELSE 'completed' END, made.at + 1000000, priority, 1,
  CASE WHEN id % 50 = 1 THEN 0 ELSE 2 END, ordering_key, made.at, scheduled_at, expires_at, idempotency_key,
  correlation_id, event_type, last_error, content_type, headers, options, payload
FROM _postrider_queue JOIN made USING (id)
