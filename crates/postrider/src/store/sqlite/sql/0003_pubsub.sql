-- Version 3. Event types, subscriptions, and the events that wait for a node to fan them out.

CREATE TABLE _postrider_event_types (
  name TEXT PRIMARY KEY,
  description TEXT,
  schema TEXT,
  created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE _postrider_subscriptions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  pattern TEXT NOT NULL,
  endpoint_id INTEGER NOT NULL,
  filter TEXT,
  template TEXT,
  enabled INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
  created_at INTEGER NOT NULL
);
CREATE INDEX _postrider_subscriptions_pattern ON _postrider_subscriptions (pattern);
-- The same endpoint, pattern, filter and template are one subscription. The empty text stands for none: it is no JSON.
CREATE UNIQUE INDEX _postrider_subscriptions_once ON _postrider_subscriptions
  (endpoint_id, pattern, coalesce(filter, ''), coalesce(template, ''));

-- Events stored by `postrider_publish` (surface/). Ids are given under the write lock, so their order is commit order. The
-- transaction that makes messages or a dead letter of an event deletes it.
CREATE TABLE _postrider_events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  event_type TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  scheduled_at INTEGER,
  expires_at INTEGER,
  idempotency_key TEXT,
  correlation_id TEXT,
  ordering_key TEXT,
  headers TEXT,
  options TEXT,
  payload BLOB NOT NULL
);

-- Totals that no other table shows.
CREATE TABLE _postrider_totals (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;

-- An invalid event was never a message, and an unreadable message is never attempted.
DROP TRIGGER _postrider_dlq_only_after_an_attempt;
CREATE TRIGGER _postrider_dlq_only_after_an_attempt BEFORE INSERT ON _postrider_dlq
WHEN NEW.status <> 'failed' OR (NEW.reason <> 'invalid_event'
  AND NOT EXISTS (SELECT 1 FROM _postrider_queue
                  WHERE id = NEW.message_id AND (place = 2 OR NEW.reason = 'unreadable')))
BEGIN
  SELECT RAISE(ABORT, '55000 only a message that is processing can die');
END;

-- A redriven event is published again, so it is not in the queue.
DROP TRIGGER _postrider_dlq_ends_once;
CREATE TRIGGER _postrider_dlq_ends_once BEFORE UPDATE OF status ON _postrider_dlq
BEGIN
  SELECT RAISE(ABORT, '55000 only a failed dead letter can be redriven or discarded, and only once')
  WHERE OLD.status <> 'failed' OR NEW.status = 'failed';
  SELECT RAISE(ABORT, '55000 a dead letter is redriven when its message is in the queue again')
  WHERE NEW.status = 'redriven' AND NEW.reason <> 'invalid_event'
    AND NOT EXISTS (SELECT 1 FROM _postrider_queue WHERE id = NEW.message_id);
END;
