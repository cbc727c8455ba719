-- Only what is processing can die.
UPDATE _postrider_queue SET place = 2, node_id = 1, attempts = 11, last_error = '[RETRYABLE] 503 Service Unavailable'
WHERE id % 100 = 0 AND ordering_key IS NULL;
INSERT INTO _postrider_dlq (message_id, endpoint_id, status, reason, died_at, errors, bytes, priority, attempts, losses,
  key_scope, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error,
  content_type, headers, options, payload)
SELECT id, endpoint_id, 'failed', 'attempts_exhausted', created_at, '[]', length(payload), priority, attempts, losses,
  key_scope, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, last_error,
  content_type, headers, options, payload
FROM _postrider_queue WHERE place = 2;
DELETE FROM _postrider_queue WHERE place = 2;
