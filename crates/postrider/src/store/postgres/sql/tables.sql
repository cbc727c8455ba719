-- Version 1: tables and what holds them together. Plain SQL: no extension, no superuser, PostgreSQL 14 to 18.

-- search_path: only the owner decides how names resolve. Functions that other roles can reach (by a grant, as a trigger, through a
-- view or an index) have `SET search_path = postrider, pg_temp`, or a body that is parsed at creation (RETURN). All others run
-- inside those, or in sessions of the program, which have the same path; while the path stays the same, plans are cached.

-- The store's clock: it alone decides on due times, expiry and leases.
CREATE FUNCTION postrider._now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock_timestamp();

CREATE SEQUENCE postrider.message_ids AS bigint;

-- One row. `version` goes up with every change of endpoints, settings or the pause. The version of a node's snapshot is this plus
-- the sum of all circuit epochs.
CREATE TABLE postrider._store (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  name text NOT NULL,
  schema_version integer NOT NULL,
  version bigint NOT NULL DEFAULT 1,
  paused_because text,
  -- The server and database where the store was created or renamed. See identity.sql.
  system_identifier bigint,
  database_oid oid
);

-- `postrider migrate` fills the table of names, defaults and ranges from the program, so that SQL and program check alike. A
-- setting without a row in `settings` has its default.
CREATE TABLE postrider._known_settings (
  name text PRIMARY KEY,
  -- The order of lists.
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

-- The protocols and their config keys, from the program (protocol/ in Rust), so that SQL and program check alike.
-- `postrider migrate` fills both tables.
CREATE TABLE postrider._known_protocols (
  name text PRIMARY KEY,
  -- In the program's order.
  position integer NOT NULL,
  -- What headers of messages may be: rules of a map, see _known_keys.rules.
  headers jsonb NOT NULL,
  -- Headers that a message may not set, in small letters.
  endpoint_headers text[] NOT NULL,
  -- Rules about two keys of a config. Where the key `given` is set (to the value `is`, if there is one), config.headers must
  -- not have `header`, or the key `needs` must be set too; else `field` is refused with `says`.
  relations jsonb NOT NULL
);

-- The config keys of each protocol, one row per key:
--   path           '' for the protocol's own keys; for the keys of an object the path of the object ('tls'); for
--                  the keys of a variant of a typed object the path, a colon and the variant ('auth:basic');
--                  deeper ones are joined by dots ('auth:basic.tls'). The key `type` of a typed object has no row.
--   position       in the program's order; lists of known keys are in this order
--   set_by         a config (endpoint), a message's options (message), or both
--   default_value  null where leaving the key out means "not used"
--   min, max       whole, codes: the range; seconds: the longest; text: max is the number of bytes; secrets: how many
--   choices        choice: what may be said; codes: the classes; typed: the names of its variants, in order
--   rules          text, secret, secrets: a list of rules, the first broken one is told. A text breaks a rule when it matches the
--                  regular expression `refuses`, or does not match `wants`; `says` ends the sentence that begins with the
--                  field. map: {"names": rules, "values": rules, "values_of": {name: rules}}, names in small letters
CREATE TABLE postrider._known_keys (
  protocol text NOT NULL,
  path text NOT NULL,
  position integer NOT NULL,
  name text NOT NULL,
  kind text NOT NULL CHECK (kind IN
    ('flag', 'whole', 'seconds', 'choice', 'text', 'codes', 'secret', 'secrets', 'map', 'object', 'typed')),
  set_by text NOT NULL CHECK (set_by IN ('endpoint', 'both', 'message')),
  required boolean NOT NULL,
  default_value jsonb,
  min numeric,
  max numeric,
  choices text[],
  rules jsonb,
  PRIMARY KEY (protocol, path, name)
);

-- The settings that every send and every settlement read, in one row. _refresh_limits() writes it.
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

-- How many messages were queued when the last id was `at_id` and `departed` messages had left. Senders add the ids that were
-- assigned since; nodes count again before the sum is far off. Ids after `exact_id` may belong to sends that rolled back.
CREATE TABLE postrider._gauge (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  queued bigint NOT NULL DEFAULT 0,
  at_id bigint NOT NULL DEFAULT 0,
  departed bigint NOT NULL DEFAULT 0,
  counted_at timestamptz NOT NULL DEFAULT '-infinity',
  exact_id bigint NOT NULL DEFAULT 0
);

-- How many messages an endpoint with its own max_queue_size held when it was counted. Every message that came or left since may
-- be one of its messages, which gives an upper and a lower bound. `at_id` is null when counting stopped at the limit.
CREATE TABLE postrider._parts (
  endpoint_id bigint PRIMARY KEY,
  queued bigint NOT NULL,
  at_id bigint,
  departed bigint NOT NULL
);

-- How many messages of each endpoint were queued and dead at the last exact count.
CREATE TABLE postrider._endpoint_gauge (
  endpoint_id bigint PRIMARY KEY,
  queued bigint NOT NULL,
  dead bigint NOT NULL
);
CREATE TABLE postrider._exact_count (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  at timestamptz NOT NULL,
  dead bigint NOT NULL
);

-- A dropped endpoint keeps its row, because archived messages refer to it by id.
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

-- What nodes write about endpoints is in separate tables: operators change `endpoints` in transactions that may stay open, and
-- no node waits for them. Operators write to the following tables only to reset a circuit.
CREATE TABLE postrider._circuits (
  endpoint_id bigint PRIMARY KEY,
  state text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'half_open', 'open')),
  epoch bigint NOT NULL DEFAULT 0,
  until timestamptz,
  probe_node bigint
);
-- How far a rate limit is used up. Written under the endpoint's claim lock.
CREATE TABLE postrider._rates (
  endpoint_id bigint PRIMARY KEY,
  position timestamptz NOT NULL
);
-- Receivers that asked for a pause (Retry-After); the latest `until` counts. Rows are only inserted, so that settlements never
-- conflict.
CREATE TABLE postrider._holds (
  endpoint_id bigint NOT NULL,
  until timestamptz NOT NULL
);
CREATE INDEX holds_endpoint ON postrider._holds (endpoint_id, until);
-- Endpoints whose receiver answered that it is gone, until endpoints.disabled_by says so. Rows are only inserted.
CREATE TABLE postrider._gone (
  endpoint_id bigint NOT NULL
);
CREATE INDEX gone_endpoint ON postrider._gone (endpoint_id);

-- Consecutive failures reported by update_circuit_breaker(); nodes count their own in memory.
CREATE TABLE postrider._reported_failures (
  endpoint_id bigint PRIMARY KEY,
  epoch bigint NOT NULL,
  consecutive integer NOT NULL
);

-- Attempt results by endpoint. A node sums them up and reports them about once a second, so that no delivery writes here.
-- update_circuit_breaker() writes here too; nodes skip a row that its transaction has locked.
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

-- Leases may not run out before `earliest_at`: one full lease after the store became reachable again, so that every node has
-- time to reconnect. The store was away when no node confirmed its lease for a while, or when the server was restarted or
-- replaced by a standby.
CREATE TABLE postrider._judgement (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  earliest_at timestamptz NOT NULL,
  server_started_at timestamptz NOT NULL
);

-- Locks that a session has held for too long, as nodes saw it a moment ago. Written only while there are any.
CREATE TABLE postrider._in_the_way (
  lock text NOT NULL,
  session text NOT NULL,
  since timestamptz NOT NULL,
  seen_at timestamptz NOT NULL,
  -- The endpoint whose messages are blocked; null with stops_delivery: all endpoints.
  endpoint_id bigint,
  stops_delivery boolean NOT NULL
);

-- Rows of claims and departures come and go with every batch of messages. While any old transaction is open, PostgreSQL cannot
-- remove deleted rows, and every reader would walk over them. So rows have positions that only go up, and views read from the
-- last bound on: there are no live rows before it. See bounds.sql.
CREATE SEQUENCE postrider._positions AS bigint;
CREATE TABLE postrider._bounds (
  name text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  PRIMARY KEY (name, position)
);
INSERT INTO postrider._bounds (name, position) VALUES ('claims', 0), ('departures', 0);

-- How many messages left the queue, one row per transaction.
CREATE TABLE postrider._departure_rows (
  position bigint NOT NULL DEFAULT nextval('postrider._positions'),
  departed bigint NOT NULL
);
CREATE INDEX departure_rows_position ON postrider._departure_rows (position);
CREATE VIEW postrider._departures AS
  SELECT position, departed FROM postrider._departure_rows
  WHERE position >= (SELECT max(position) FROM postrider._bounds WHERE name = 'departures');

-- `place`: :ready, :behind_key (another message of its ordering key comes first), or :on_probation after a lost claim. A claim
-- does not touch the row: one tuple version from send to delivery. No CHECK, because the server parses every CHECK again for each
-- INSERT (measured with two indexes: 23 instead of 14 microseconds); send functions check, and triggers check updates. Keys are
-- compared byte by byte, because a locale's rules would be the most expensive part of an index.
CREATE TABLE postrider.queue (
  id bigint PRIMARY KEY,
  due_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  endpoint_id bigint NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  attempts_before integer NOT NULL DEFAULT 0,
  place smallint NOT NULL DEFAULT :ready,
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
-- Claimable messages, in claim order.
CREATE INDEX queue_due ON postrider.queue (endpoint_id, priority DESC, due_at, id) WHERE place = :ready;
-- The others, for suspects and for the oldest waiting message. One index for both: each index costs time at every send.
CREATE INDEX queue_held_back ON postrider.queue (place, endpoint_id, due_at) WHERE place > :ready;
-- An ordering key is identified by its hash, because numbers compare faster than texts. Two keys with the same hash are ordered
-- together.
CREATE FUNCTION postrider._key(p_scope bigint, p_key text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(p_key, p_scope);
-- Order within a key: the message that is not behind the key, then the others by position. The unique index below allows only one
-- message that is not behind its key, so FIFO does not depend on code alone.
CREATE FUNCTION postrider._turn(place smallint, key_position bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN place = :behind_key THEN key_position ELSE -9223372036854775808 END;
CREATE UNIQUE INDEX queue_key ON postrider.queue (postrider._key(key_scope, ordering_key),
  postrider._turn(place, key_position)) WHERE ordering_key IS NOT NULL;
CREATE UNIQUE INDEX queue_idempotency ON postrider.queue (endpoint_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX queue_expiry ON postrider.queue (expires_at) WHERE expires_at IS NOT NULL;

-- One row per claim of a node, however many messages it holds, so that counting an attempt updates no message (ARCHITECTURE.md has
-- the figures). An id whose message left the queue may stay in `ids`; an id whose message went back to the queue is removed.
-- `cut`: an id was removed, so a settle has to look up whether the claim still holds its messages.
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

-- Keys whose next message could not become ready, because a sender of the key had an open transaction. Nodes try again. Without a
-- primary key, so that senders never conflict here.
CREATE TABLE postrider._stalled_keys (
  position bigint NOT NULL DEFAULT nextval('postrider._positions'),
  key bigint NOT NULL
);
CREATE INDEX stalled_keys_position ON postrider._stalled_keys (position);
CREATE INDEX stalled_keys_key ON postrider._stalled_keys (key);

-- Endpoints of messages that were sent by transactions that must not notify. Upkeep reads them every second.
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
  class text CHECK (class IN ('retryable', 'permanent', 'gone')),
  error text,
  response_status integer,
  response_body bytea
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
  -- Later messages of the ordering key wait for this letter (on_dead = hold).
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
-- Ids grow with time, so finding one reads only a few blocks.
CREATE INDEX archive_id ON postrider.archive USING brin (id, created_at)
  WITH (pages_per_range = 64, autosummarize = on);
CREATE TABLE postrider.archive_default PARTITION OF postrider.archive DEFAULT;

-- Counters for metrics(). Rows are only inserted, so that no transaction waits here; _recount_queue() sums them up.
CREATE TABLE postrider._counts (
  name text NOT NULL,
  value bigint NOT NULL
);

-- How many bytes are left while dlq_max_bytes evicts in steps: the sum is computed once.
CREATE TABLE postrider._eviction (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  bytes_left bigint NOT NULL
);

-- The message that a replayed message was made from. Beside the queue, because few messages are replayed.
CREATE TABLE postrider._replayed (
  id bigint PRIMARY KEY,
  original_id bigint NOT NULL,
  at timestamptz NOT NULL
);
CREATE INDEX replayed_original ON postrider._replayed (original_id);
CREATE INDEX replayed_at ON postrider._replayed (at);

-- A replay of many: nodes advance it in steps. What is selected was finished by started_at and is at most last_id.
-- counted_to and position are ids: up to there it is counted, up to there it is replayed.
CREATE TABLE postrider.replays (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'stopped', 'completed')),
  endpoint_id bigint,
  event_type text,
  ordering_key text,
  status text CHECK (status IN ('completed', 'expired', 'cancelled', 'failed')),
  created_from timestamptz,
  created_until timestamptz,
  to_endpoint_id bigint,
  rate_limit jsonb,
  rate_position timestamptz,
  last_id bigint NOT NULL,
  counted bigint NOT NULL DEFAULT 0,
  counted_to bigint NOT NULL DEFAULT 0,
  position bigint NOT NULL DEFAULT 0,
  done bigint NOT NULL DEFAULT 0,
  skipped jsonb NOT NULL DEFAULT '{}',
  waiting text,
  next_at timestamptz NOT NULL,
  started_at timestamptz NOT NULL,
  ended_at timestamptz
);
CREATE INDEX replays_next ON postrider.replays (next_at) WHERE state = 'running';

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
-- The same endpoint, pattern, filter and template are one subscription. A digest, because a template may be too long for an index.
-- The text of jsonb has no line breaks.
CREATE FUNCTION postrider._rules_digest(p_filter jsonb, p_template jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = postrider, pg_temp
AS $$ SELECT sha256(convert_to(coalesce(p_filter::text, '') || E'\n' || coalesce(p_template::text, ''), 'UTF8')) $$;
CREATE UNIQUE INDEX subscriptions_once ON postrider.subscriptions
  (endpoint_id, pattern, postrider._rules_digest(filter, template));
CREATE INDEX subscriptions_pattern ON postrider.subscriptions (pattern);

CREATE TABLE postrider._tokens (
  prefix text PRIMARY KEY,
  name text NOT NULL,
  scope text NOT NULL CHECK (scope IN ('admin', 'application', 'monitor')),
  digest bytea NOT NULL,
  created_at timestamptz NOT NULL
);

CREATE TABLE postrider.event_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  kind text NOT NULL,
  subject text,
  detail jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX event_log_at ON postrider.event_log (at);
