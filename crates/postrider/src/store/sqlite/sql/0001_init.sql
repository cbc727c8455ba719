-- Version 1. Tables are named `_postrider_*`: the file belongs to the application.
-- Times are microseconds since 1970. No syntax newer than SQLite 3.38. On tables that every message
-- passes through, a CHECK has no IN with a list: SQLite would build a temporary table for it at every insert.

CREATE TABLE _postrider_meta (
  name TEXT PRIMARY KEY,
  value
) WITHOUT ROWID;

CREATE TABLE _postrider_settings (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

-- A dropped endpoint keeps its row: the archive refers to its name.
CREATE TABLE _postrider_endpoints (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  protocol TEXT NOT NULL,
  config TEXT NOT NULL,
  retry_policy TEXT NOT NULL,
  options TEXT NOT NULL,
  disabled_by TEXT CHECK (disabled_by IN ('operator', 'gone')),
  paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  circuit TEXT NOT NULL DEFAULT 'closed' CHECK (circuit IN ('closed', 'half_open', 'open')),
  circuit_epoch INTEGER NOT NULL DEFAULT 0,
  circuit_until INTEGER,
  circuit_probe_node INTEGER,
  held_until INTEGER,
  rate_position INTEGER,
  revision INTEGER NOT NULL DEFAULT 1,
  created_at INTEGER NOT NULL,
  dropped_at INTEGER
);
CREATE UNIQUE INDEX _postrider_endpoints_name ON _postrider_endpoints (name) WHERE dropped_at IS NULL;

-- How many messages are queued and dead, per endpoint; row 0 is the sum. Every change of the queue updates it, so that
-- the check for a full queue costs the same at any size.
CREATE TABLE _postrider_counts (
  endpoint_id INTEGER PRIMARY KEY,
  queued INTEGER NOT NULL DEFAULT 0,
  dead INTEGER NOT NULL DEFAULT 0,
  dlq_bytes INTEGER NOT NULL DEFAULT 0
);

-- Results of attempts, and the last ones. The node adds them up and stores them about once a second.
CREATE TABLE _postrider_results (
  endpoint_id INTEGER PRIMARY KEY,
  delivered INTEGER NOT NULL,
  retryable INTEGER NOT NULL,
  permanent INTEGER NOT NULL,
  gone INTEGER NOT NULL,
  lost INTEGER NOT NULL,
  consecutive_failures INTEGER NOT NULL,
  last_success_at INTEGER,
  last_failure_at INTEGER,
  last_error TEXT
);

CREATE TABLE _postrider_nodes (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('live', 'left', 'lost')),
  joined_at INTEGER NOT NULL,
  heartbeat_at INTEGER NOT NULL,
  lease_until INTEGER NOT NULL
);

-- place: 0 ready, 1 behind its ordering key, 2 claimed, 3 on probation: ready after a lost claim (keys.rs).
-- The columns that a claim changes come first and keep their size, so SQLite overwrites the row in place.
-- Illegal changes are refused by constraints where every message passes through, because a trigger on claims or on
-- archiving costs more than all constraints; by triggers elsewhere.
-- `behind_key` repeats `place = 1`. A claim does not change it, so a claim of a waiting message breaks a constraint.
CREATE TABLE _postrider_queue (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  endpoint_id INTEGER NOT NULL,
  place INTEGER NOT NULL CHECK (place BETWEEN 0 AND 3),
  priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 10),
  due_at INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  attempts_before INTEGER NOT NULL DEFAULT 0,
  losses INTEGER NOT NULL DEFAULT 0,
  node_id INTEGER NOT NULL DEFAULT 0,
  batch INTEGER NOT NULL DEFAULT 0,
  alone INTEGER NOT NULL DEFAULT 0,
  delivered_late INTEGER NOT NULL DEFAULT 0,
  -- Its receiver asked for due_at (Retry-After).
  asked INTEGER NOT NULL DEFAULT 0,
  started_at INTEGER NOT NULL DEFAULT 0,
  behind_key INTEGER NOT NULL DEFAULT 0,
  key_scope INTEGER,
  key_position INTEGER,
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
  CONSTRAINT "55000 a claimed message has a node and an attempt that is counted, a pending one has no node"
    CHECK ((place = 2 AND node_id > 0 AND attempts > attempts_before)
        OR (place <> 2 AND node_id = 0 AND batch = 0 AND attempts >= attempts_before)),
  CONSTRAINT "55000 a message behind its ordering key waits for its turn; it cannot be claimed"
    CHECK ((place <> 1 AND behind_key = 0) OR (place = 1 AND behind_key = 1 AND ordering_key IS NOT NULL)),
  CONSTRAINT "55000 a message that lost a claim waits on probation, and no other does"
    CHECK ((place <> 0 OR losses = 0) AND (place <> 3 OR losses > 0))
);
-- Only what may be claimed, in the order in which it is claimed.
CREATE INDEX _postrider_queue_due ON _postrider_queue (endpoint_id, priority DESC, due_at, id) WHERE place = 0;
-- For the age of the oldest pending message.
CREATE INDEX _postrider_queue_behind ON _postrider_queue (endpoint_id, due_at) WHERE place = 1;
CREATE INDEX _postrider_queue_claimed ON _postrider_queue (node_id) WHERE place = 2;
CREATE INDEX _postrider_queue_suspect ON _postrider_queue (due_at) WHERE place = 3;
CREATE UNIQUE INDEX _postrider_queue_key ON _postrider_queue (key_scope, ordering_key, key_position)
  WHERE ordering_key IS NOT NULL;
-- At most one message of a key is ready, on probation or claimed: the database guards FIFO.
CREATE UNIQUE INDEX _postrider_queue_current ON _postrider_queue (key_scope, ordering_key)
  WHERE ordering_key IS NOT NULL AND place <> 1;
CREATE UNIQUE INDEX _postrider_queue_idempotency ON _postrider_queue (endpoint_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX _postrider_queue_expiry ON _postrider_queue (expires_at) WHERE expires_at IS NOT NULL;

CREATE TRIGGER _postrider_queue_immutable BEFORE UPDATE OF id, endpoint_id, key_scope, key_position, ordering_key,
  created_at, expires_at, idempotency_key, correlation_id, event_type, content_type, headers, options, payload
ON _postrider_queue
BEGIN
  SELECT RAISE(ABORT, '55000 a queued message never changes; cancel it and send another');
END;
-- attempts_before: attempts that the budget does not count, because a redrive renewed it or because they were spared.
CREATE TRIGGER _postrider_queue_spared BEFORE UPDATE OF attempts_before ON _postrider_queue
WHEN NEW.attempts_before <> OLD.attempts_before + 1 OR NEW.attempts_before > NEW.attempts OR OLD.place = 2
BEGIN
  SELECT RAISE(ABORT, '55000 an attempt is spared after it ended, and one at a time');
END;

-- Endpoints with a message that became claimable in another process than the node: it was redriven or rescheduled, or is
-- next of its key. The node reads all turns after the last one that it saw.
CREATE TABLE _postrider_freed (
  endpoint_id INTEGER PRIMARY KEY,
  turn INTEGER NOT NULL UNIQUE
);

-- Keys of completed messages, for idempotency_retention. A send under the same key is compared with the payload; an
-- erased reservation has none and matches nothing.
CREATE TABLE _postrider_reservations (
  endpoint_id INTEGER NOT NULL,
  idempotency_key TEXT NOT NULL,
  message_id INTEGER NOT NULL,
  until INTEGER NOT NULL,
  content_type TEXT,
  payload BLOB,
  UNIQUE (endpoint_id, idempotency_key)
);
CREATE INDEX _postrider_reservations_until ON _postrider_reservations (until);
CREATE INDEX _postrider_reservations_message ON _postrider_reservations (message_id);

CREATE TABLE _postrider_attempts (
  id INTEGER PRIMARY KEY,
  message_id INTEGER NOT NULL,
  number INTEGER NOT NULL,
  node_id INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  duration INTEGER NOT NULL,
  outcome TEXT NOT NULL CHECK (outcome IN ('delivered', 'failed', 'lost')),
  class TEXT CHECK (class IN ('retryable', 'permanent', 'gone')),
  error TEXT,
  response_status INTEGER,
  response_body BLOB
);
CREATE INDEX _postrider_attempts_message ON _postrider_attempts (message_id);

CREATE TABLE _postrider_dlq (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  message_id INTEGER NOT NULL,
  endpoint_id INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('failed', 'redriven', 'discarded')),
  reason TEXT NOT NULL,
  died_at INTEGER NOT NULL,
  errors TEXT NOT NULL,
  -- Its ordering key waits for it (on_dead = hold).
  holds_key INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  losses INTEGER NOT NULL,
  key_scope INTEGER,
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
CREATE INDEX _postrider_dlq_message ON _postrider_dlq (message_id);
CREATE INDEX _postrider_dlq_endpoint ON _postrider_dlq (endpoint_id, status, id);
CREATE INDEX _postrider_dlq_died ON _postrider_dlq (died_at);
CREATE INDEX _postrider_dlq_holds ON _postrider_dlq (key_scope, ordering_key) WHERE holds_key = 1;

CREATE TRIGGER _postrider_dlq_only_after_an_attempt BEFORE INSERT ON _postrider_dlq
WHEN NEW.status <> 'failed'
  OR NOT EXISTS (SELECT 1 FROM _postrider_queue WHERE id = NEW.message_id AND place = 2)
BEGIN
  SELECT RAISE(ABORT, '55000 only a message that is processing can die');
END;
CREATE TRIGGER _postrider_dlq_ends_once BEFORE UPDATE OF status ON _postrider_dlq
BEGIN
  SELECT RAISE(ABORT, '55000 only a failed dead letter can be redriven or discarded, and only once')
  WHERE OLD.status <> 'failed' OR NEW.status = 'failed';
  SELECT RAISE(ABORT, '55000 a dead letter is redriven when its message is in the queue again')
  WHERE NEW.status = 'redriven' AND NOT EXISTS (SELECT 1 FROM _postrider_queue WHERE id = NEW.message_id);
END;
CREATE TRIGGER _postrider_dlq_immutable BEFORE UPDATE OF id, message_id, endpoint_id, reason, died_at, attempts,
  key_scope, ordering_key, created_at, content_type, headers, options, payload ON _postrider_dlq
WHEN NEW.payload IS NOT NULL OR NEW.headers IS NOT NULL OR NEW.id <> OLD.id OR NEW.message_id <> OLD.message_id
BEGIN
  SELECT RAISE(ABORT, '55000 a dead letter never changes; its payload and headers can be erased');
END;

CREATE TABLE _postrider_event_log (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT,
  detail TEXT NOT NULL
);
