-- Version 4. Replays, and the originals of replayed messages.

-- Selects messages with ids up to `last_id` that were finished by `started_at`. Those up to `counted_to` are counted, those
-- up to `position` are replayed.
CREATE TABLE _postrider_replays (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  state TEXT NOT NULL CHECK (state IN ('running', 'stopped', 'completed')),
  endpoint_id INTEGER,
  event_type TEXT,
  ordering_key TEXT,
  status TEXT CHECK (status IN ('completed', 'expired', 'cancelled', 'failed')),
  created_from INTEGER,
  created_until INTEGER,
  to_endpoint_id INTEGER,
  rate_limit TEXT,
  rate_position INTEGER,
  last_id INTEGER NOT NULL,
  counted INTEGER NOT NULL DEFAULT 0,
  counted_to INTEGER NOT NULL DEFAULT 0,
  position INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  skipped TEXT NOT NULL DEFAULT '{}',
  waiting TEXT,
  next_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at INTEGER
);
CREATE INDEX _postrider_replays_next ON _postrider_replays (next_at) WHERE state = 'running';

CREATE TRIGGER _postrider_replays_end BEFORE UPDATE OF state ON _postrider_replays
WHEN OLD.state = 'completed' AND NEW.state <> 'completed'
BEGIN
  SELECT RAISE(ABORT, '55000 a replay that is completed stays so; start another');
END;

CREATE TABLE _postrider_replayed (
  id INTEGER PRIMARY KEY,
  original_id INTEGER NOT NULL,
  at INTEGER NOT NULL
);
CREATE INDEX _postrider_replayed_original ON _postrider_replayed (original_id);

-- A redrive takes whole ordering keys.
CREATE INDEX _postrider_dlq_key ON _postrider_dlq (key_scope, ordering_key, message_id) WHERE ordering_key IS NOT NULL;
