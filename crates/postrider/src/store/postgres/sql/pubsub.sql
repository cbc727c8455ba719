-- Event types, subscriptions, and publish: an event becomes one message for every endpoint that wants it.

CREATE FUNCTION postrider._check_event_name(p_field text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_name IS NULL OR p_name !~ E'^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$' OR length(p_name) > 128 THEN
    PERFORM postrider._invalid(p_field,
      'must be 1 to 128 letters, digits, ''-'' or ''_'' in segments with a ''.'' between them');
  END IF;
END $$;

-- Creates an event type. Its schema is enforced on every event.
CREATE FUNCTION postrider.create_event_type(name text, description text DEFAULT NULL, schema jsonb DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM postrider._check_event_name('name', create_event_type.name);
  IF create_event_type.schema IS NOT NULL THEN
    PERFORM postrider._checked_depth('schema', create_event_type.schema);
    PERFORM postrider._check_schema('schema', create_event_type.schema);
  END IF;
  INSERT INTO postrider.event_types (name, description, schema, created_at)
  VALUES (create_event_type.name, create_event_type.description, create_event_type.schema, postrider._now())
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    PERFORM postrider._exists_already('event type', create_event_type.name);
  END IF;
  PERFORM postrider._log_event('event_type.created', create_event_type.name, '{}');
END $$;

-- Its subscriptions stay: a pattern may match other types, and the type may be created again.
CREATE FUNCTION postrider.drop_event_type(name text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  IF drop_event_type.name IS NULL THEN
    PERFORM postrider._invalid('name', 'is required');
  END IF;
  DELETE FROM postrider.event_types t WHERE t.name = drop_event_type.name;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('event type', drop_event_type.name);
  END IF;
  PERFORM postrider._log_event('event_type.dropped', drop_event_type.name, '{}');
END $$;

-- The library needs to know whether the subscription existed.
CREATE FUNCTION postrider._subscribe(
  p_pattern text, p_endpoint text, p_filter jsonb, p_template jsonb, OUT id bigint, OUT existed boolean
) LANGUAGE plpgsql AS $$
DECLARE
  v_endpoint bigint;
BEGIN
  IF p_pattern IS NULL OR length(p_pattern) > 128
     OR p_pattern !~ E'^(\\*|[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?)$' THEN
    PERFORM postrider._invalid('pattern', 'must be the name of an event type, one that ends with ''.*'', or ''*''');
  END IF;
  PERFORM postrider._checked_depth('filter', p_filter), postrider._checked_depth('template', p_template);
  -- A type that is named in full must exist; types that a pattern matches may be created later.
  IF p_pattern !~ E'\\*$' AND NOT EXISTS (SELECT FROM postrider.event_types WHERE name = p_pattern) THEN
    PERFORM postrider._unknown('event type', p_pattern);
  END IF;
  SELECT e.id INTO v_endpoint FROM postrider.endpoints e WHERE e.name = p_endpoint AND e.dropped_at IS NULL FOR SHARE;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', p_endpoint);
  END IF;
  -- Loop: another transaction may drop the existing one in between.
  LOOP
    INSERT INTO postrider.subscriptions AS s (pattern, endpoint_id, filter, template, created_at)
    VALUES (p_pattern, v_endpoint, p_filter, p_template, postrider._now())
    ON CONFLICT DO NOTHING RETURNING s.id INTO id;
    existed := NOT FOUND;
    EXIT WHEN NOT existed;
    SELECT s.id INTO id FROM postrider.subscriptions s
    WHERE s.endpoint_id = v_endpoint AND s.pattern = p_pattern
      AND postrider._rules_digest(s.filter, s.template) = postrider._rules_digest(p_filter, p_template);
    EXIT WHEN FOUND;
  END LOOP;
  IF NOT existed THEN
    PERFORM postrider._log_event('subscription.created', p_pattern,
      jsonb_build_object('subscription', id, 'endpoint', p_endpoint));
  END IF;
END $$;

-- p_pattern: the name of an event type, `orders.*` for one or more segments after it, or `*` for everything. Subscribing again
-- with the same filter and template returns the subscription that exists.
CREATE FUNCTION postrider.subscribe(p_pattern text, p_endpoint text, p_filter jsonb DEFAULT NULL, p_template jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  RETURN (postrider._subscribe(p_pattern, p_endpoint, p_filter, p_template)).id;
END $$;

CREATE FUNCTION postrider.unsubscribe(subscription_id bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_pattern text;
BEGIN
  DELETE FROM postrider.subscriptions WHERE id = subscription_id RETURNING pattern INTO v_pattern;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('subscription', subscription_id::text);
  END IF;
  PERFORM postrider._log_event('subscription.dropped', v_pattern, jsonb_build_object('subscription', subscription_id));
END $$;

CREATE FUNCTION postrider._enable_subscription(p_id bigint, p_enabled boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v postrider.subscriptions;
BEGIN
  SELECT * INTO v FROM postrider.subscriptions WHERE id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('subscription', p_id::text);
  END IF;
  IF v.enabled <> p_enabled THEN
    UPDATE postrider.subscriptions SET enabled = p_enabled WHERE id = p_id;
    PERFORM postrider._log_event(CASE WHEN p_enabled THEN 'subscription.enabled' ELSE 'subscription.disabled' END,
      v.pattern, jsonb_build_object('subscription', p_id));
  END IF;
END $$;

CREATE FUNCTION postrider.enable_subscription(subscription_id bigint) RETURNS void LANGUAGE sql
SECURITY DEFINER SET search_path = postrider, pg_temp
AS $$ SELECT postrider._enable_subscription(subscription_id, true) $$;

CREATE FUNCTION postrider.disable_subscription(subscription_id bigint) RETURNS void LANGUAGE sql
SECURITY DEFINER SET search_path = postrider, pg_temp
AS $$ SELECT postrider._enable_subscription(subscription_id, false) $$;

-- Every pattern that matches an event type: itself, each prefix with `.*`, and `*`, for a look-up by index.
CREATE FUNCTION postrider._patterns_for(p_event_type text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ARRAY['*', p_event_type] || ARRAY(
    SELECT array_to_string(s[1:n], '.') || '.*'
    FROM (SELECT string_to_array(p_event_type, '.') AS s) AS segments, generate_series(1, cardinality(s) - 1) AS n)
$$;

-- The value at a JSON pointer; JSON null when there is none.
CREATE FUNCTION postrider._pointed(p_value jsonb, p_pointer text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_token text;
BEGIN
  FOREACH v_token IN ARRAY (string_to_array(p_pointer, '/'))[2:] LOOP
    v_token := replace(replace(v_token, '~1', '/'), '~0', '~');
    p_value := CASE jsonb_typeof(p_value)
      WHEN 'object' THEN p_value->v_token
      -- Unlike ->, no negative index.
      WHEN 'array' THEN CASE WHEN v_token ~ '^(0|[1-9][0-9]{0,8})$' THEN p_value->v_token::integer END END;
  END LOOP;
  RETURN coalesce(p_value, 'null');
END $$;

-- Fills a template: a string that is exactly {{/json/pointer}} becomes that value, or null.
CREATE FUNCTION postrider._filled(p_template jsonb, p_payload jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_pointer text;
BEGIN
  CASE jsonb_typeof(p_template)
    WHEN 'string' THEN
      v_pointer := substring(p_template #>> '{}' FROM E'^\\{\\{((?:/(?:(?!\\{\\{|\\}\\}).)*)?)\\}\\}$');
      IF v_pointer IS NULL THEN
        RETURN p_template;
      END IF;
      RETURN postrider._pointed(p_payload, v_pointer);
    WHEN 'object' THEN
      RETURN (SELECT coalesce(jsonb_object_agg(key, postrider._filled(value, p_payload)), '{}') FROM jsonb_each(p_template));
    WHEN 'array' THEN
      RETURN (SELECT coalesce(jsonb_agg(postrider._filled(value, p_payload) ORDER BY n), '[]')
              FROM jsonb_array_elements(p_template) WITH ORDINALITY AS a (value, n));
    ELSE
      RETURN p_template;
  END CASE;
END $$;

-- The elements of a list at these indexes. A list of one is a single publish: its element for every index.
CREATE FUNCTION postrider._picked(p_list anyarray, p_places bigint[]) RETURNS anyarray LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF cardinality(p_list) = 1 THEN
    RETURN array_fill(p_list[1], ARRAY[cardinality(p_places)]);
  END IF;
  RETURN ARRAY(SELECT p_list[n] FROM unnest(p_places) AS n);
END $$;

-- The messages for subscribers: one per entry of p_events, which are indexes into the other lists. An option that no event has stays
-- null.
CREATE FUNCTION postrider._fanned_out(
  p_event_types text[], p_payloads jsonb[], b postrider._batch, p_events bigint[], p_subscriptions bigint[],
  p_templates jsonb[]
) RETURNS postrider._batch LANGUAGE plpgsql AS $$
DECLARE
  t postrider._batch;
BEGIN
  t.payloads := postrider._picked(coalesce(b.payloads, ARRAY(
    SELECT convert_to(p::text, 'UTF8') FROM unnest(p_payloads) WITH ORDINALITY AS a (p, n) ORDER BY n)), p_events);
  IF num_nulls(VARIADIC p_templates) < cardinality(p_templates) THEN
    t.payloads := ARRAY(
      SELECT CASE WHEN w.template IS NULL THEN w.payload
                  ELSE convert_to(postrider._checked_depth('payload', postrider._filled(w.template, p_payloads[w.n]))::text,
                       'UTF8') END
      FROM unnest(t.payloads, p_events, p_templates) AS w (payload, n, template));
  END IF;
  t.event_types := postrider._picked(p_event_types, p_events);
  t.priorities := postrider._picked(b.priorities, p_events);
  t.scheduled_at := postrider._picked(b.scheduled_at, p_events);
  IF b.idempotency_keys IS NOT NULL THEN
    t.idempotency_keys := ARRAY(SELECT b.idempotency_keys[w.n] || '#' || w.id
                                FROM unnest(p_events, p_subscriptions) AS w (n, id));
  END IF;
  t.correlation_ids := postrider._picked(b.correlation_ids, p_events);
  t.expires_at := postrider._picked(b.expires_at, p_events);
  t.ordering_keys := postrider._picked(b.ordering_keys, p_events);
  t.headers := postrider._picked(b.headers, p_events);
  t.options := postrider._picked(b.options, p_events);
  RETURN t;
END $$;

-- Which subscriptions get which events: one entry per message, in the order of the events, then of the subscriptions. Endpoints that
-- an operator disabled are skipped and counted; messages for endpoints that are gone are kept. `OFFSET 0` fixes the join order,
-- from an event to matching subscriptions to their endpoints: without statistics the planner would begin with all endpoints.
CREATE FUNCTION postrider._wanted(
  p_event_types text[], p_payloads jsonb[], OUT skipped bigint, OUT events bigint[], OUT subscriptions bigint[],
  OUT endpoints text[], OUT templates jsonb[]
) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  SELECT count(*) FILTER (WHERE f.skipped), array_agg(f.n) FILTER (WHERE NOT f.skipped),
    array_agg(f.id) FILTER (WHERE NOT f.skipped), array_agg(f.endpoint) FILTER (WHERE NOT f.skipped),
    array_agg(f.template) FILTER (WHERE NOT f.skipped)
  INTO skipped, events, subscriptions, endpoints, templates
  FROM (SELECT e.n, s.id, o.name AS endpoint, s.template, o.disabled_by IS NOT DISTINCT FROM 'operator' AS skipped
        FROM (SELECT n, payload, postrider._patterns_for(event_type) AS fitting
              FROM unnest(p_event_types, p_payloads) WITH ORDINALITY AS given (event_type, payload, n) OFFSET 0) AS e
          CROSS JOIN LATERAL (
            SELECT id, endpoint_id, template FROM postrider.subscriptions
            WHERE pattern = ANY (e.fitting) AND enabled AND (filter IS NULL OR e.payload @> filter) OFFSET 0) AS s
          CROSS JOIN LATERAL (
            SELECT name, disabled_by, dropped_at FROM postrider.endpoints WHERE id = s.endpoint_id OFFSET 0) AS o
        WHERE o.dropped_at IS NULL ORDER BY e.n, s.id) AS f;
END $$;

-- The prefix of fields for one of several events; empty for a single one.
CREATE FUNCTION postrider._event_at(p_field text, p_place bigint) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_field = '' THEN '' ELSE format('%s[%s].', p_field, p_place - 1) END
$$;

-- Publishes events, all or nothing, and returns how many messages that made. Payloads in b are the original bytes. Two subscriptions
-- may make different messages of one event for one endpoint, so each message has its own idempotency key: `key#subscription`.
-- Generic plans: the planner would plan again for lists of another length, which takes longer than the fan-out.
CREATE FUNCTION postrider._publish(p_field text, p_event_types text[], p_payloads jsonb[], b postrider._batch)
RETURNS integer LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_event record;
  v_broken text;
  v_skipped bigint;
  v_limit bigint := postrider._setting('max_fanout')::bigint;
  v_widest bigint;
  v_made integer := 0;
  d postrider._destination;
  t postrider._batch;
  -- One entry per message: its event, subscription, endpoint and template.
  v_events bigint[];
  v_subscriptions bigint[];
  v_endpoints text[];
  v_templates jsonb[];
  -- max_batch_messages limits what callers send, not what it fans out to.
  v_chunk integer := (SELECT least(max_batch_messages, 10000) FROM postrider._limits);
BEGIN
  FOR v_event IN
    SELECT e.event_type, e.payload, e.n, k.name, k.schema
    FROM unnest(p_event_types, p_payloads) WITH ORDINALITY AS e (event_type, payload, n)
      LEFT JOIN postrider.event_types k ON k.name = e.event_type
    WHERE k.name IS NULL OR k.schema IS NOT NULL OR e.payload IS NULL OR postrider._is_too_deep(e.payload) ORDER BY e.n
  LOOP
    IF v_event.name IS NULL THEN
      PERFORM postrider._unknown('event type', v_event.event_type);
    END IF;
    IF v_event.payload IS NULL THEN
      PERFORM postrider._invalid(postrider._event_at(p_field, v_event.n) || 'payload', 'is required');
    END IF;
    PERFORM postrider._checked_depth(postrider._event_at(p_field, v_event.n) || 'payload', v_event.payload);
    v_broken := postrider._broken_schema(postrider._event_at(p_field, v_event.n) || 'payload', v_event.payload,
      v_event.schema);
    IF v_broken IS NOT NULL THEN
      PERFORM postrider._invalid(split_part(v_broken, ': ', 1), substr(v_broken, strpos(v_broken, ': ') + 2));
    END IF;
  END LOOP;
  -- Events are checked even without subscribers; checks that depend on the endpoint follow for each message.
  SELECT l.max_payload_bytes, l.max_headers_bytes, l.max_key_bytes
  INTO d.max_payload_bytes, d.max_headers_bytes, d.max_key_bytes FROM postrider._limits l;
  PERFORM postrider._check_message(postrider._event_at(p_field, e.n), d,
    octet_length(coalesce(b.payloads[e.n], convert_to(e.payload::text, 'UTF8'))), 'application/json',
    b.priorities[e.n], b.scheduled_at[e.n], b.expires_at[e.n], b.idempotency_keys[e.n], b.ordering_keys[e.n],
    e.event_type, b.headers[e.n], NULL)
  FROM unnest(p_event_types, p_payloads) WITH ORDINALITY AS e (event_type, payload, n);
  -- Leave room for the longest suffix.
  PERFORM postrider._check_key(postrider._event_at(p_field, n) || 'idempotency_key', k || '#9223372036854775807',
    d.max_key_bytes)
  FROM unnest(b.idempotency_keys) WITH ORDINALITY AS e (k, n) WHERE k IS NOT NULL;
  SELECT w.skipped, w.events, w.subscriptions, w.endpoints, w.templates
  INTO v_skipped, v_events, v_subscriptions, v_endpoints, v_templates FROM postrider._wanted(p_event_types, p_payloads) AS w;
  IF v_skipped > 0 THEN
    PERFORM postrider._count('publish_skipped', v_skipped);
  END IF;
  IF v_events IS NULL THEN
    RETURN 0;
  END IF;
  SELECT max(f.wanted) INTO v_widest FROM (SELECT count(*) AS wanted FROM unnest(v_events) AS n GROUP BY n) AS f;
  IF v_widest > v_limit THEN
    PERFORM postrider._too_large('event_type', v_widest, v_limit, 'max_fanout');
  END IF;
  IF cardinality(v_events) > v_chunk THEN
    -- All locks in order, as one batch would take them.
    PERFORM postrider._lock_idempotency_keys(array_agg(o.id), array_agg(k.key || '#' || w.id))
    FROM unnest(v_events, v_subscriptions, v_endpoints) AS w (n, id, endpoint)
      JOIN unnest(b.idempotency_keys) WITH ORDINALITY AS k (key, n) USING (n)
      JOIN postrider.endpoints o ON o.name = w.endpoint AND o.dropped_at IS NULL;
    PERFORM postrider._lock_keys(array_agg(postrider._key(postrider._key_scope(o), k.key)))
    FROM unnest(v_events, v_endpoints) AS w (n, endpoint)
      JOIN unnest(b.ordering_keys) WITH ORDINALITY AS k (key, n) USING (n)
      JOIN postrider.endpoints o ON o.name = w.endpoint AND o.dropped_at IS NULL;
  END IF;
  FOR a IN 1 .. cardinality(v_events) BY v_chunk LOOP
    t := postrider._fanned_out(p_event_types, p_payloads, b, v_events[a : a + v_chunk - 1],
      v_subscriptions[a : a + v_chunk - 1], v_templates[a : a + v_chunk - 1]);
    SELECT v_made + count(*) FILTER (WHERE NOT s.duplicate) INTO v_made FROM postrider._send_batch(NULL,
      v_endpoints[a : a + v_chunk - 1], t.payloads, NULL, t.priorities, t.scheduled_at, t.idempotency_keys,
      t.correlation_ids, t.expires_at, t.ordering_keys, t.headers, t.options, t.event_types,
      CASE WHEN p_field <> '' THEN v_events[a : a + v_chunk - 1] END) s;
  END LOOP;
  RETURN v_made;
END $$;

-- Publishes one event; returns how many messages that made. 0 is not an error.
CREATE FUNCTION postrider.publish(
  p_event_type text, p_payload jsonb, p_priority integer DEFAULT 0, p_scheduled_at timestamptz DEFAULT NULL,
  p_idempotency_key text DEFAULT NULL, p_correlation_id uuid DEFAULT NULL, p_expires_at timestamptz DEFAULT NULL,
  p_ordering_key text DEFAULT NULL, p_headers jsonb DEFAULT NULL, p_options jsonb DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  b postrider._batch;
BEGIN
  b.priorities := ARRAY[p_priority];
  b.scheduled_at := ARRAY[p_scheduled_at];
  b.idempotency_keys := CASE WHEN p_idempotency_key IS NOT NULL THEN ARRAY[p_idempotency_key] END;
  b.correlation_ids := ARRAY[p_correlation_id];
  b.expires_at := ARRAY[p_expires_at];
  b.ordering_keys := CASE WHEN p_ordering_key IS NOT NULL THEN ARRAY[p_ordering_key] END;
  b.headers := ARRAY[p_headers];
  b.options := ARRAY[p_options];
  RETURN postrider._publish('', ARRAY[p_event_type], ARRAY[p_payload], b);
END $$;

-- A list of objects: event_type, payload, and the options of publish.
CREATE FUNCTION postrider.publish_batch(p_events jsonb) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  -- Events are JSON.
  b postrider._batch := postrider._parsed_batch('events', p_events, array_prepend('event_type', array_remove(array_remove(
    postrider._message_fields(), 'payload_base64'), 'content_type')));
  v_missing integer;
BEGIN
  IF jsonb_array_length(p_events) = 0 THEN
    RETURN 0;
  END IF;
  SELECT n - 1 INTO v_missing FROM jsonb_array_elements(p_events) WITH ORDINALITY AS a (e, n)
  WHERE e->>'event_type' IS NULL OR NOT e ? 'payload' ORDER BY n LIMIT 1;
  IF FOUND THEN
    PERFORM postrider._invalid(format('events[%s]', v_missing), 'must have an event_type and a payload');
  END IF;
  b.payloads := NULL;
  RETURN postrider._publish('events', b.event_types,
    ARRAY(SELECT e->'payload' FROM jsonb_array_elements(p_events) WITH ORDINALITY AS a (e, n) ORDER BY n), b);
END $$;

-- For the library: events with their original bytes, which are JSON. p_single: errors do not say events[0].
CREATE FUNCTION postrider._program_publish(
  p_single boolean, p_payloads bytea[], p_priorities smallint[], p_scheduled_at timestamptz[], p_idempotency_keys text[],
  p_correlation_ids uuid[], p_expires_at timestamptz[], p_ordering_keys text[], p_headers jsonb[], p_options jsonb[],
  p_event_types text[]
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  b postrider._batch;
  v_count integer := coalesce(cardinality(p_payloads), 0);
  v_limit bigint := (SELECT max_batch_messages FROM postrider._limits);
BEGIN
  IF v_count > v_limit THEN
    PERFORM postrider._too_large('events', v_count, v_limit, 'max_batch_messages');
  ELSIF v_count = 0 THEN
    RETURN 0;
  END IF;
  b.payloads := p_payloads;
  b.priorities := coalesce(p_priorities::integer[], array_fill(0, ARRAY[v_count]));
  b.scheduled_at := p_scheduled_at;
  b.idempotency_keys := p_idempotency_keys;
  b.correlation_ids := p_correlation_ids;
  b.expires_at := p_expires_at;
  b.ordering_keys := p_ordering_keys;
  b.headers := p_headers;
  b.options := p_options;
  RETURN postrider._publish(CASE WHEN p_single THEN '' ELSE 'events' END, p_event_types,
    ARRAY(SELECT convert_from(p, 'UTF8')::jsonb FROM unnest(p_payloads) WITH ORDINALITY AS a (p, n) ORDER BY n), b);
END $$;
