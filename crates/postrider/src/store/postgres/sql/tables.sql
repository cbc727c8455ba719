-- Version 1: tables and what holds them together. Plain SQL: no extension, no superuser, PostgreSQL 14 to 18.

-- search_path: only the owner decides how names resolve. Functions that other roles can reach (by a grant, as a trigger, through a
-- view or an index) have `SET search_path = postrider, pg_temp`, or a body that is parsed here and now (RETURN). The rest runs
-- only inside those, and in sessions of the program, which have the same path: as long as it is the same, plans are kept.

-- The one clock: due times, expiry and leases are judged by it alone.
CREATE FUNCTION postrider._now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock_timestamp();

CREATE SEQUENCE postrider.message_ids AS bigint;

-- One row. `version` moves with every change of endpoints, settings or the pause; what nodes know has this and the sum
-- of all epochs of circuits as its version.
CREATE TABLE postrider._store (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  name text NOT NULL,
  schema_version integer NOT NULL,
  version bigint NOT NULL DEFAULT 1,
  paused_because text,
  -- Where it was made or got its name. See identity.sql.
  system_identifier bigint,
  database_oid oid
);

-- What is set; a setting without a row has its default. The table of names, defaults and ranges is filled by
-- `postrider migrate` from the one in the program, so that SQL and program check alike.
CREATE TABLE postrider._known_settings (
  name text PRIMARY KEY,
  -- Its place in the program's table; lists are in this order.
  position integer,
  default_value text NOT NULL,
  min numeric,
  max numeric,
  choices text[],
  unit text NOT NULL,
  meaning text NOT NULL
);
CREATE TABLE postrider.settings (
  name text PRIMARY KEY REFERENCES postrider._known_settings,
  value text NOT NULL
);

-- The settings that every send and every settlement look at, in one row. Kept by configure().
CREATE TABLE postrider._limits (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  max_queue_size bigint NOT NULL,
  max_payload_bytes bigint NOT NULL,
  max_headers_bytes bigint NOT NULL,
  max_key_bytes bigint NOT NULL,
  max_batch_messages bigint NOT NULL,
  stale_recovery_timeout interval NOT NULL,
  archive text NOT NULL,
  attempt_log text NOT NULL,
  idempotency_retention interval NOT NULL
);

-- How much is queued, as of some moment: what was queued when the last id was `at_id` and `departed` had left.
-- Senders add the ids given since; a node counts again before that is far off. After `exact_id` ids of rolled back sends
-- are counted, too.
CREATE TABLE postrider._gauge (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  queued bigint NOT NULL DEFAULT 0,
  at_id bigint NOT NULL DEFAULT 0,
  departed bigint NOT NULL DEFAULT 0,
  counted_at timestamptz NOT NULL DEFAULT '-infinity',
  exact_id bigint NOT NULL DEFAULT 0
);

-- What endpoints with a limit of their own held when they were counted. Whatever came since may be theirs, and whatever
-- left: so much is between what is queued there now. `at_id` is null where there were more than `queued`.
CREATE TABLE postrider._parts (
  endpoint_id bigint PRIMARY KEY,
  queued bigint NOT NULL,
  at_id bigint,
  departed bigint NOT NULL
);

-- A dropped endpoint stays as a name for what the archive says of it.
CREATE TABLE postrider.endpoints (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL,
  protocol text NOT NULL,
  config jsonb NOT NULL,
  retry_policy jsonb NOT NULL DEFAULT '{}',
  options jsonb NOT NULL DEFAULT '{}',
  disabled_by text CHECK (disabled_by IN ('operator', 'gone')),
  paused boolean NOT NULL DEFAULT false,
  revision bigint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  dropped_at timestamptz
);
CREATE UNIQUE INDEX endpoints_name ON postrider.endpoints (name) WHERE dropped_at IS NULL;
CREATE INDEX endpoints_dropped ON postrider.endpoints (dropped_at) WHERE dropped_at IS NOT NULL;

-- What nodes write about endpoints is not in those rows: people change them in transactions that stay open as long as
-- they like, and no node waits for one. People touch what follows only to reset a circuit.
CREATE TABLE postrider._circuits (
  endpoint_id bigint PRIMARY KEY,
  state text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'half_open', 'open')),
  epoch bigint NOT NULL DEFAULT 0,
  until timestamptz,
  probe_node bigint
);
-- How far a rate limit is used up. Written by who holds the endpoint's lock for claims.
CREATE TABLE postrider._rates (
  endpoint_id bigint PRIMARY KEY,
  position timestamptz NOT NULL
);
-- Receivers that asked to be left alone; the longest counts. Rows are only added, so that settlements never conflict.
CREATE TABLE postrider._holds (
  endpoint_id bigint NOT NULL,
  until timestamptz NOT NULL
);
CREATE INDEX holds_endpoint ON postrider._holds (endpoint_id, until);
-- Receivers that are gone, until their endpoints say so themselves. Rows are only added here, too.
CREATE TABLE postrider._gone (
  endpoint_id bigint NOT NULL
);
CREATE INDEX gone_endpoint ON postrider._gone (endpoint_id);

-- What attempts came to, and how it went last. A node adds that up and tells about once a second, so that no delivery writes
-- it; update_circuit_breaker() writes here, too, and nodes pass over a row that its transaction has in hand.
CREATE TABLE postrider._results (
  endpoint_id bigint PRIMARY KEY,
  delivered bigint NOT NULL DEFAULT 0,
  retryable bigint NOT NULL DEFAULT 0,
  permanent bigint NOT NULL DEFAULT 0,
  gone bigint NOT NULL DEFAULT 0,
  lost bigint NOT NULL DEFAULT 0,
  consecutive_failures bigint NOT NULL DEFAULT 0,
  last_success_at timestamptz,
  last_failure_at timestamptz,
  last_error text
) WITH (fillfactor = 50);

CREATE VIEW postrider._endpoints AS
  SELECT e.id, e.name, e.protocol, e.config, e.retry_policy, e.options,
         coalesce(e.disabled_by, (SELECT 'gone' FROM postrider._gone g WHERE g.endpoint_id = e.id LIMIT 1)) AS disabled_by,
         e.paused, c.state AS circuit, c.epoch AS circuit_epoch, c.until AS circuit_until,
         c.probe_node AS circuit_probe_node,
         (SELECT max(h.until) FROM postrider._holds h WHERE h.endpoint_id = e.id) AS held_until,
         (SELECT r.position FROM postrider._rates r WHERE r.endpoint_id = e.id) AS rate_position,
         e.revision, e.created_at, e.dropped_at
  FROM postrider.endpoints e JOIN postrider._circuits c ON c.endpoint_id = e.id;

CREATE TABLE postrider.nodes (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL,
  state text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'left', 'lost')),
  joined_at timestamptz NOT NULL,
  heartbeat_at timestamptz NOT NULL,
  lease_until timestamptz NOT NULL
);

-- Rows of claims and departures come and go with every batch of messages. While some old transaction is open anywhere,
-- PostgreSQL cannot forget those that are gone, and whoever reads would walk over all of them. So they have positions
-- that only go up, and views read them from the last bound on: there is nothing before it. See bounds.sql.
CREATE SEQUENCE postrider._positions AS bigint;
CREATE TABLE postrider._bounds (
  name text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  PRIMARY KEY (name, position)
);
INSERT INTO postrider._bounds (name, position) VALUES ('claims', 0), ('departures', 0);

-- How many messages left the queue, a row each time.
CREATE TABLE postrider._departure_rows (
  position bigint NOT NULL DEFAULT nextval('postrider._positions'),
  departed bigint NOT NULL
);
CREATE INDEX departure_rows_position ON postrider._departure_rows (position);
CREATE VIEW postrider._departures AS
  SELECT position, departed FROM postrider._departure_rows
  WHERE position >= (SELECT max(position) FROM postrider._bounds WHERE name = 'departures');

-- place: 0 ready, 1 behind its ordering key, 3 ready but on probation after a lost claim. A claim does not touch
-- the row: one tuple version from send to delivery. No CHECK: the server parses each anew in every INSERT (on a table
-- like this with two of its indexes 23 instead of 14 microseconds). The functions that send check, and a trigger those
-- that update. Keys are compared byte by byte: a language's rules would cost more than all else in an index.
CREATE TABLE postrider.queue (
  id bigint PRIMARY KEY,
  due_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  endpoint_id bigint NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  attempts_before integer NOT NULL DEFAULT 0,
  place smallint NOT NULL DEFAULT 0,
  priority smallint NOT NULL DEFAULT 0,
  losses smallint NOT NULL DEFAULT 0,
  delivered_late boolean NOT NULL DEFAULT false,
  scheduled_at timestamptz,
  expires_at timestamptz,
  key_scope bigint,
  key_position bigint,
  correlation_id uuid,
  content_type text NOT NULL,
  ordering_key text COLLATE "C",
  idempotency_key text COLLATE "C",
  event_type text,
  last_error text,
  headers jsonb,
  options jsonb,
  payload bytea
);
-- Only what may be claimed, in the order in which it is claimed.
CREATE INDEX queue_due ON postrider.queue (endpoint_id, priority DESC, due_at, id) WHERE place = 0;
-- The others, for whoever asks what waits longest and for suspects. One index: each costs something at every send.
CREATE INDEX queue_held_back ON postrider.queue (place, endpoint_id, due_at) WHERE place > 0;
-- An ordering key is known by its hash, because numbers are compared faster than texts: two keys that share one are
-- ordered together.
CREATE FUNCTION postrider._key(p_scope bigint, p_key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_key, p_scope);
-- Who is next of a key: the one that is not behind it, then the others by position. Two that are not behind it cannot
-- be: FIFO does not rest on code alone.
CREATE FUNCTION postrider._turn(place smallint, key_position bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN place = 1 THEN key_position ELSE -9223372036854775808 END;
CREATE UNIQUE INDEX queue_key ON postrider.queue (postrider._key(key_scope, ordering_key),
  postrider._turn(place, key_position)) WHERE ordering_key IS NOT NULL;
CREATE UNIQUE INDEX queue_idempotency ON postrider.queue (endpoint_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX queue_expiry ON postrider.queue (expires_at) WHERE expires_at IS NOT NULL;

-- One row for each claim of a node, however many messages it holds: counting an attempt costs no update of its
-- message. An id that is not queued any more says nothing; one that went back to the queue is taken out. `cut`: that
-- has happened, so whether an id is still held has to be looked up.
CREATE TABLE postrider._claim_rows (
  position bigint NOT NULL DEFAULT nextval('postrider._positions'),
  node_id bigint NOT NULL,
  batch bigint NOT NULL,
  started_at timestamptz NOT NULL,
  alone boolean NOT NULL,
  cut boolean NOT NULL DEFAULT false,
  ids bigint[] NOT NULL,
  PRIMARY KEY (node_id, batch)
) WITH (toast_tuple_target = 8160);
CREATE INDEX claim_rows_position ON postrider._claim_rows (position);
CREATE VIEW postrider._claims AS
  SELECT position, node_id, batch, started_at, alone, cut, ids FROM postrider._claim_rows
  WHERE position >= (SELECT max(position) FROM postrider._bounds WHERE name = 'claims');

-- Keys whose next message could not be let go at once, because a sender of the key was in the middle of its
-- transaction. A node looks again. No key, so that senders never conflict here.
CREATE TABLE postrider._stalled_keys (
  position bigint NOT NULL DEFAULT nextval('postrider._positions'),
  key bigint NOT NULL
);
CREATE INDEX stalled_keys_position ON postrider._stalled_keys (position);
CREATE INDEX stalled_keys_key ON postrider._stalled_keys (key);

-- Endpoints that were sent to by transactions that must not notify. A node looks every second.
CREATE TABLE postrider._unheard (
  endpoint_id bigint NOT NULL
);

-- Idempotency keys of completed messages, for idempotency_retention.
CREATE TABLE postrider._reservations (
  endpoint_id bigint NOT NULL,
  idempotency_key text COLLATE "C" NOT NULL,
  message_id bigint NOT NULL,
  digest bytea NOT NULL,
  until timestamptz NOT NULL,
  PRIMARY KEY (endpoint_id, idempotency_key)
);
CREATE INDEX reservations_until ON postrider._reservations (until);

CREATE TABLE postrider.attempts (
  message_id bigint NOT NULL,
  number integer NOT NULL,
  node_id bigint NOT NULL,
  started_at timestamptz NOT NULL,
  duration interval NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('delivered', 'failed', 'lost')),
  class text,
  error text,
  status integer,
  body bytea
) PARTITION BY RANGE (started_at);
CREATE INDEX attempts_message ON postrider.attempts (message_id);
CREATE TABLE postrider.attempts_default PARTITION OF postrider.attempts DEFAULT;

CREATE TABLE postrider.dlq (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  message_id bigint NOT NULL,
  endpoint_id bigint NOT NULL,
  status text NOT NULL DEFAULT 'failed' CHECK (status IN ('failed', 'redriven', 'discarded')),
  reason text NOT NULL,
  died_at timestamptz NOT NULL,
  errors jsonb NOT NULL,
  -- Its ordering key waits for it (on_dead = hold).
  holds_key boolean NOT NULL DEFAULT false,
  bytes bigint NOT NULL,
  priority smallint NOT NULL,
  attempts integer NOT NULL,
  losses smallint NOT NULL,
  key_scope bigint,
  ordering_key text COLLATE "C",
  created_at timestamptz NOT NULL,
  scheduled_at timestamptz,
  expires_at timestamptz,
  idempotency_key text,
  correlation_id uuid,
  event_type text,
  last_error text,
  content_type text NOT NULL,
  headers jsonb,
  options jsonb,
  payload bytea
);
CREATE INDEX dlq_message ON postrider.dlq (message_id);
CREATE INDEX dlq_endpoint ON postrider.dlq (endpoint_id, status, id);
CREATE INDEX dlq_died ON postrider.dlq (died_at);
-- A redrive takes whole ordering keys.
CREATE INDEX dlq_key ON postrider.dlq (key_scope, ordering_key, message_id) WHERE ordering_key IS NOT NULL;
CREATE INDEX dlq_holds ON postrider.dlq (postrider._key(key_scope, ordering_key)) WHERE holds_key;

CREATE TABLE postrider.archive (
  id bigint NOT NULL,
  endpoint_id bigint NOT NULL,
  status text NOT NULL CHECK (status IN ('completed', 'expired', 'cancelled')),
  finished_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  priority smallint NOT NULL,
  attempts integer NOT NULL,
  scheduled_at timestamptz,
  expires_at timestamptz,
  correlation_id uuid,
  content_type text NOT NULL,
  ordering_key text,
  idempotency_key text,
  event_type text,
  last_error text,
  headers jsonb,
  options jsonb,
  payload bytea
) PARTITION BY RANGE (created_at);
-- Ids grow with time, so a few blocks are all that has to be read for one.
CREATE INDEX archive_id ON postrider.archive USING brin (id, created_at)
  WITH (pages_per_range = 64, autosummarize = on);
CREATE TABLE postrider.archive_default PARTITION OF postrider.archive DEFAULT;

CREATE TABLE postrider.event_types (
  name text PRIMARY KEY,
  description text,
  schema jsonb,
  created_at timestamptz NOT NULL
);

CREATE TABLE postrider.subscriptions (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pattern text NOT NULL,
  endpoint_id bigint NOT NULL,
  filter jsonb,
  template jsonb,
  enabled boolean NOT NULL DEFAULT true,
  created_at timestamptz NOT NULL
);
-- The same endpoint, pattern, filter and template are one subscription. A digest, because a template may be longer than an
-- entry of an index. The text of jsonb has no line breaks.
CREATE FUNCTION postrider._rules_digest(p_filter jsonb, p_template jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = postrider, pg_temp
AS $$ SELECT sha256(convert_to(coalesce(p_filter::text, '') || E'\n' || coalesce(p_template::text, ''), 'UTF8')) $$;
CREATE UNIQUE INDEX subscriptions_once ON postrider.subscriptions
  (endpoint_id, pattern, postrider._rules_digest(filter, template));

CREATE TABLE postrider.event_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  kind text NOT NULL,
  subject text,
  detail jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX event_log_at ON postrider.event_log (at);
