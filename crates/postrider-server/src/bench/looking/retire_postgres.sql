BEGIN;
INSERT INTO postrider.dlq (message_id, endpoint_id, reason, died_at, errors, bytes, priority, attempts, losses, key_scope,
  ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error, content_type,
  headers, options, payload)
SELECT id, endpoint_id, 'attempts_exhausted', created_at, '[]', octet_length(payload), priority, 11, losses, key_scope,
  ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type,
  '[RETRYABLE] 503 Service Unavailable', content_type, headers, options, payload
FROM postrider.queue WHERE id % 100 = 0 AND ordering_key IS NULL ORDER BY id;
INSERT INTO postrider.archive (id, endpoint_id, status, finished_at, created_at, priority, attempts, scheduled_at, expires_at,
  correlation_id, content_type, ordering_key, idempotency_key, event_type, last_error, headers, options, payload)
SELECT id, endpoint_id, CASE WHEN id % 50 = 1 THEN 'cancelled' ELSE 'completed' END, made.at + interval '1 second', made.at,
  priority, 1, scheduled_at, expires_at, correlation_id, content_type, ordering_key, idempotency_key, event_type, last_error,
  headers, options, payload
FROM postrider.queue, (SELECT date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS begins) AS month,
  LATERAL (SELECT month.begins + (now() - month.begins) * (id / {last}.0) AS at) AS made
WHERE NOT (id % 100 = 0 AND ordering_key IS NULL) ORDER BY id;
SELECT postrider._departed((SELECT count(*) FROM postrider.queue));
DELETE FROM postrider.queue;
COMMIT;
