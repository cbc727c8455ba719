CREATE TABLE IF NOT EXISTS {table} (
  id INTEGER PRIMARY KEY,
  endpoint_id INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('completed', 'expired', 'cancelled')),
  finished_at INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
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
  payload BLOB
);
CREATE TRIGGER IF NOT EXISTS {table}_cancelled BEFORE INSERT ON {table}
WHEN NEW.status = 'cancelled' AND EXISTS (SELECT 1 FROM _postrider_queue WHERE id = NEW.id AND place = 2)
BEGIN
  SELECT RAISE(ABORT, '55000 a message that is processing cannot be cancelled');
END;
