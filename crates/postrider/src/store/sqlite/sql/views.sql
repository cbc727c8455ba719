-- For people and programs to read. SQLite refuses changes of a view.
-- TIME(x) is the time as text; {…} is filled in by surface/.

CREATE VIEW postrider_endpoints AS
SELECT id, name, protocol, json(retry_policy) AS retry_policy, json(options) AS options, disabled_by IS NULL AS enabled,
  disabled_by, paused, circuit, TIME(circuit_until) AS circuit_until, TIME(held_until) AS held_until,
  TIME(created_at) AS created_at
FROM _postrider_endpoints WHERE dropped_at IS NULL;

CREATE VIEW postrider_queue AS
SELECT q.id, e.name AS endpoint, CASE q.place WHEN 2 THEN 'processing' ELSE 'pending' END AS state, q.priority,
  TIME(q.due_at) AS due_at, q.attempts, q.ordering_key, q.idempotency_key, q.correlation_id, q.event_type,
  TIME(q.created_at) AS created_at, TIME(q.scheduled_at) AS scheduled_at, TIME(q.expires_at) AS expires_at,
  q.last_error, q.content_type, q.headers, q.options, q.payload
FROM _postrider_queue AS q JOIN _postrider_endpoints AS e ON e.id = q.endpoint_id;

CREATE VIEW postrider_dlq AS
SELECT d.id, d.message_id, e.name AS endpoint, d.status, d.reason, TIME(d.died_at) AS died_at, d.errors, d.holds_key,
  d.priority, d.attempts, d.ordering_key, d.idempotency_key, d.correlation_id, d.event_type,
  TIME(d.created_at) AS created_at, TIME(d.scheduled_at) AS scheduled_at, TIME(d.expires_at) AS expires_at,
  d.last_error, d.content_type, d.headers, d.options, d.payload
FROM _postrider_dlq AS d JOIN _postrider_endpoints AS e ON e.id = d.endpoint_id;

CREATE VIEW postrider_archive AS
SELECT a.id, e.name AS endpoint, a.status, TIME(a.finished_at) AS finished_at, a.priority, a.attempts, a.ordering_key,
  a.idempotency_key, a.correlation_id, a.event_type, TIME(a.created_at) AS created_at,
  TIME(a.scheduled_at) AS scheduled_at, TIME(a.expires_at) AS expires_at, a.last_error, a.content_type, a.headers,
  a.options, a.payload
FROM _postrider_archive AS a JOIN _postrider_endpoints AS e ON e.id = a.endpoint_id;

CREATE VIEW postrider_attempts AS
SELECT message_id, number, node_id, TIME(started_at) AS started_at, duration / 1000000.0 AS duration_seconds, outcome,
  class, error, response_status, response_body
FROM _postrider_attempts;

-- Every message once, where it is now.
CREATE VIEW postrider_messages AS
SELECT id, endpoint, state, priority, attempts, ordering_key, idempotency_key, correlation_id, event_type, created_at,
  scheduled_at, expires_at, due_at, NULL AS finished_at, last_error, content_type, headers, options, payload
FROM postrider_queue
UNION ALL
SELECT id, endpoint, status, priority, attempts, ordering_key, idempotency_key, correlation_id, event_type, created_at,
  scheduled_at, expires_at, NULL, finished_at, last_error, content_type, headers, options, payload
FROM postrider_archive
UNION ALL
SELECT message_id, endpoint, 'dead', priority, attempts, ordering_key, idempotency_key, correlation_id, event_type,
  created_at, scheduled_at, expires_at, NULL, died_at, last_error, content_type, headers, options, payload
FROM postrider_dlq AS d
WHERE status <> 'redriven'
  AND id = (SELECT max(id) FROM _postrider_dlq AS l WHERE l.message_id = d.message_id AND l.status <> 'redriven')
  AND NOT EXISTS (SELECT 1 FROM _postrider_queue AS q WHERE q.id = d.message_id)
  AND NOT EXISTS (SELECT 1 FROM _postrider_archive AS a WHERE a.id = d.message_id);

CREATE VIEW postrider_replays AS
SELECT r.id, r.state, e.name AS endpoint, r.event_type, r.ordering_key, r.status, TIME(r.created_from) AS created_from,
  TIME(r.created_until) AS created_until, t.name AS to_endpoint, r.rate_limit,
  CASE WHEN r.counted_to >= r.last_id THEN r.counted END AS total, r.done, r.skipped, r.waiting,
  TIME(r.started_at) AS started_at, TIME(r.ended_at) AS ended_at
FROM _postrider_replays AS r LEFT JOIN _postrider_endpoints AS e ON e.id = r.endpoint_id
  LEFT JOIN _postrider_endpoints AS t ON t.id = r.to_endpoint_id;

CREATE VIEW postrider_event_log AS
SELECT id, TIME(at) AS at, kind, subject, detail FROM _postrider_event_log;

CREATE VIEW postrider_event_types AS
SELECT name, description, schema, TIME(created_at) AS created_at FROM _postrider_event_types;

CREATE VIEW postrider_subscriptions AS
SELECT s.id, s.pattern, e.name AS endpoint, s.filter, s.template, s.enabled, TIME(s.created_at) AS created_at
FROM _postrider_subscriptions AS s JOIN _postrider_endpoints AS e ON e.id = s.endpoint_id;

CREATE VIEW postrider_settings AS
SELECT json_extract(d.value, '$.name') AS name,
  coalesce(s.value, json_extract(d.value, '$.value')) AS value, s.name IS NULL AS is_default
FROM json_each('{settings}') AS d
LEFT JOIN _postrider_settings AS s ON s.name = json_extract(d.value, '$.name');

CREATE VIEW postrider_nodes AS
SELECT id, name, state, TIME(joined_at) AS joined_at, TIME(heartbeat_at) AS heartbeat_at,
  TIME(lease_until) AS lease_until
FROM _postrider_nodes;

-- The oldest due message is looked up priority by priority, as a node does, so that later ones are not scanned.
CREATE VIEW postrider_endpoint_status AS
SELECT name, protocol, enabled, disabled_by, paused, circuit, circuit_until, held_until,
  max(coalesce(c.queued, 0) - p.processing, 0) AS pending, p.processing, coalesce(c.dead, 0) AS dead,
  TIME(p.oldest) AS oldest_pending, coalesce(r.delivered, 0) AS delivered,
  coalesce(r.retryable + r.permanent + r.gone + r.lost, 0) AS failed,
  coalesce(r.consecutive_failures, 0) AS consecutive_failures, TIME(r.last_success_at) AS last_success_at,
  TIME(r.last_failure_at) AS last_failure_at, r.last_error
FROM (
  SELECT e.*,
    (SELECT count(*) FROM _postrider_queue AS q WHERE q.place = 2 AND q.endpoint_id = e.id) AS processing,
    (SELECT min(due_at) FROM (
       SELECT (SELECT q.due_at FROM _postrider_queue AS q
               WHERE q.place = 0 AND q.endpoint_id = e.id AND q.priority = n.value ORDER BY q.due_at LIMIT 1) AS due_at
       FROM json_each('{priorities}') AS n
       UNION ALL
       SELECT (SELECT q.due_at FROM _postrider_queue AS q
               WHERE q.place = 1 AND q.endpoint_id = e.id ORDER BY q.due_at LIMIT 1))
     WHERE due_at <= {now}) AS oldest
  FROM postrider_endpoints AS e) AS p
LEFT JOIN _postrider_counts AS c ON c.endpoint_id = p.id LEFT JOIN _postrider_results AS r ON r.endpoint_id = p.id;
