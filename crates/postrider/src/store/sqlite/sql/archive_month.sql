-- `place` is the message's place in the queue; `delivered_late` is set when a node delivered it after losing its claim.
CREATE TABLE IF NOT EXISTS {table} (
  id INTEGER PRIMARY KEY,
  endpoint_id INTEGER NOT NULL,
  status TEXT NOT NULL,
  finished_at INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  place INTEGER NOT NULL,
  delivered_late INTEGER NOT NULL DEFAULT 0,
  ordering_key TEXT,
  created_at INTEGER NOT NULL,
  scheduled_at INTEGER,
  expires_at INTEGER,
  idempotency_key TEXT,
  correlation_id TEXT,
  event_type TEXT,
  last_error TEXT,
  content_type TEXT NOT NULL,
  headers TEXT,
  options TEXT,
  payload BLOB,
  CONSTRAINT "55000 a message is completed when a node delivered it, expired when it can expire, cancelled while it is pending"
    CHECK ((status = 'completed' AND (place = 2 OR delivered_late = 1))
        OR (status = 'expired' AND expires_at IS NOT NULL)
        OR (status = 'cancelled' AND place <> 2))
);
CREATE TRIGGER IF NOT EXISTS {table}_final BEFORE UPDATE ON {table}
WHEN NEW.id <> OLD.id OR NEW.place <> OLD.place OR NOT (
  (NEW.payload IS NULL AND NEW.headers IS NULL AND NEW.status = OLD.status)
  -- Cancelled during an attempt that then delivered it.
  OR (OLD.status = 'cancelled' AND NEW.status = 'completed' AND OLD.delivered_late = 0 AND NEW.delivered_late = 1
      AND NEW.payload IS OLD.payload AND NEW.headers IS OLD.headers))
BEGIN
  SELECT RAISE(ABORT, '55000 a finished message never changes; its payload and headers can be erased');
END;
