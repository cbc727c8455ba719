-- Event types, subscriptions, and publish: an event becomes one message for every endpoint that wants it.

-- Keywords of JSON Schema that are enforced; others are refused when the event type is made.
CREATE FUNCTION postrider._check_schema(p_field text, p_schema jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  v_field text;
  v_item record;
BEGIN
  IF jsonb_typeof(p_schema) = 'boolean' THEN
    RETURN;
  END IF;
  IF NOT postrider._is_object(p_schema) THEN
    PERFORM postrider._invalid(p_field, 'must be an object or a boolean');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_schema) ORDER BY key COLLATE "C" LOOP
    v_field := format('%s.%s', p_field, v_given.key);
    CASE
      WHEN v_given.key = 'type' THEN
        FOR v_item IN
          SELECT t FROM jsonb_array_elements(
            CASE jsonb_typeof(v_given.value) WHEN 'array' THEN v_given.value ELSE jsonb_build_array(v_given.value) END) AS t
        LOOP
          PERFORM postrider._check_choice(v_field, v_item.t,
            ARRAY['null', 'boolean', 'object', 'array', 'number', 'string', 'integer'],
            'must be "null", "boolean", "object", "array", "number", "string" or "integer", or a list of them');
        END LOOP;
      WHEN v_given.key = 'enum' THEN
        IF jsonb_typeof(v_given.value) <> 'array' THEN
          PERFORM postrider._invalid(v_field, 'must be a list');
        END IF;
      WHEN v_given.key IN ('const', 'title', 'description', '$schema', '$id', '$comment', 'default', 'examples') THEN
        NULL;
      WHEN v_given.key = 'required' THEN
        IF jsonb_typeof(v_given.value) <> 'array'
           OR EXISTS (SELECT FROM jsonb_array_elements(v_given.value) AS r WHERE jsonb_typeof(r) <> 'string') THEN
          PERFORM postrider._invalid(v_field, 'must be a list of strings');
        END IF;
      WHEN v_given.key = 'properties' THEN
        IF NOT postrider._is_object(v_given.value) THEN
          PERFORM postrider._invalid(v_field, 'must be an object');
        END IF;
        FOR v_item IN SELECT key, value FROM jsonb_each(v_given.value) ORDER BY key COLLATE "C" LOOP
          PERFORM postrider._check_schema(format('%s.%s', v_field, v_item.key), v_item.value);
        END LOOP;
      WHEN v_given.key IN ('additionalProperties', 'items') THEN
        PERFORM postrider._check_schema(v_field, v_given.value);
      WHEN v_given.key IN ('minimum', 'maximum') THEN
        IF jsonb_typeof(v_given.value) <> 'number' THEN
          PERFORM postrider._invalid(v_field, 'must be a number');
        END IF;
      WHEN v_given.key IN ('minLength', 'maxLength', 'minItems', 'maxItems') THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 9007199254740991);
      ELSE
        PERFORM postrider._invalid(v_field, 'is not known here; known are: type, enum, const, required, properties, '
          'additionalProperties, items, minimum, maximum, minLength, maxLength, minItems, maxItems');
    END CASE;
  END LOOP;
END $$;

-- Where and why a value breaks a schema, `payload.total: must be at least 0`; null when it does not.
CREATE FUNCTION postrider._broken_schema(p_path text, p_value jsonb, p_schema jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_type text := jsonb_typeof(p_value);
  v_types jsonb := CASE jsonb_typeof(p_schema->'type') WHEN 'array' THEN p_schema->'type'
                        WHEN 'string' THEN jsonb_build_array(p_schema->'type') END;
  v_item record;
  v_broken text;
BEGIN
  IF p_schema = 'true' OR p_schema = '{}' THEN
    RETURN NULL;
  ELSIF p_schema = 'false' THEN
    RETURN p_path || ': is not allowed here';
  END IF;
  IF v_types IS NOT NULL AND NOT v_types ? v_type
     AND NOT (v_types ? 'integer' AND v_type = 'number' AND p_value::numeric = trunc(p_value::numeric)) THEN
    RETURN format('%s: must be of type %s', p_path,
      (SELECT string_agg(t, ' or ' ORDER BY n) FROM jsonb_array_elements_text(v_types) WITH ORDINALITY AS a (t, n)));
  END IF;
  IF p_schema ? 'enum' AND NOT EXISTS (SELECT FROM jsonb_array_elements(p_schema->'enum') AS e WHERE e = p_value) THEN
    RETURN format('%s: must be one of %s', p_path, p_schema->'enum');
  END IF;
  IF p_schema ? 'const' AND p_value <> p_schema->'const' THEN
    RETURN format('%s: must be %s', p_path, p_schema->'const');
  END IF;
  CASE v_type
    WHEN 'number' THEN
      RETURN CASE WHEN p_value::numeric < (p_schema->>'minimum')::numeric
                    THEN format('%s: must be at least %s', p_path, p_schema->>'minimum')
                  WHEN p_value::numeric > (p_schema->>'maximum')::numeric
                    THEN format('%s: must be at most %s', p_path, p_schema->>'maximum') END;
    WHEN 'string' THEN
      RETURN CASE WHEN length(p_value #>> '{}') < (p_schema->>'minLength')::numeric
                    THEN format('%s: must have at least %s characters', p_path, p_schema->>'minLength')
                  WHEN length(p_value #>> '{}') > (p_schema->>'maxLength')::numeric
                    THEN format('%s: must have at most %s characters', p_path, p_schema->>'maxLength') END;
    WHEN 'array' THEN
      IF jsonb_array_length(p_value) < (p_schema->>'minItems')::numeric THEN
        RETURN format('%s: must have at least %s items', p_path, p_schema->>'minItems');
      ELSIF jsonb_array_length(p_value) > (p_schema->>'maxItems')::numeric THEN
        RETURN format('%s: must have at most %s items', p_path, p_schema->>'maxItems');
      END IF;
      IF p_schema ? 'items' THEN
        FOR v_item IN SELECT i, n FROM jsonb_array_elements(p_value) WITH ORDINALITY AS a (i, n) LOOP
          v_broken := postrider._broken_schema(format('%s[%s]', p_path, v_item.n - 1), v_item.i, p_schema->'items');
          IF v_broken IS NOT NULL THEN
            RETURN v_broken;
          END IF;
        END LOOP;
      END IF;
    WHEN 'object' THEN
      SELECT r INTO v_broken FROM jsonb_array_elements_text(coalesce(p_schema->'required', '[]')) WITH ORDINALITY AS a (r, n)
      WHERE NOT p_value ? r ORDER BY n LIMIT 1;
      IF FOUND THEN
        RETURN format('%s.%s: is required', p_path, v_broken);
      END IF;
      FOR v_item IN SELECT key, value FROM jsonb_each(p_value) ORDER BY key COLLATE "C" LOOP
        IF (p_schema->'properties') ? v_item.key THEN
          v_broken := postrider._broken_schema(format('%s.%s', p_path, v_item.key), v_item.value,
            p_schema->'properties'->v_item.key);
        ELSIF p_schema ? 'additionalProperties' THEN
          v_broken := postrider._broken_schema(format('%s.%s', p_path, v_item.key), v_item.value,
            p_schema->'additionalProperties');
        ELSE
          v_broken := NULL;
        END IF;
        IF v_broken IS NOT NULL THEN
          RETURN v_broken;
        END IF;
      END LOOP;
    ELSE
      NULL;
  END CASE;
  RETURN NULL;
END $$;

CREATE FUNCTION postrider._check_event_name(p_field text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_name IS NULL OR p_name !~ E'^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$' OR length(p_name) > 128 THEN
    PERFORM postrider._invalid(p_field,
      'must be 1 to 128 letters, digits, ''-'' or ''_'' in segments with a ''.'' between them');
  END IF;
END $$;

-- Makes an event type. A schema is enforced on every event of it.
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

-- Its subscriptions stay: a pattern may fit other types, and the type may come back.
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

-- Whether the subscription existed already is for the library.
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
  -- A type that is named in full has to be there; what a pattern fits may come later.
  IF p_pattern !~ E'\\*$' AND NOT EXISTS (SELECT FROM postrider.event_types WHERE name = p_pattern) THEN
    PERFORM postrider._unknown('event type', p_pattern);
  END IF;
  SELECT e.id INTO v_endpoint FROM postrider.endpoints e WHERE e.name = p_endpoint AND e.dropped_at IS NULL FOR SHARE;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', p_endpoint);
  END IF;
  -- Again, when another transaction drops the one that was found.
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

-- Every pattern that fits an event type: itself, each beginning of it with `.*`, and `*`. So that an index finds them.
CREATE FUNCTION postrider._patterns_for(p_event_type text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ARRAY['*', p_event_type] || ARRAY(
    SELECT array_to_string(s[1:n], '.') || '.*'
    FROM (SELECT string_to_array(p_event_type, '.') AS s) AS segments, generate_series(1, cardinality(s) - 1) AS n)
$$;
CREATE INDEX subscriptions_pattern ON postrider.subscriptions (pattern);

-- What a JSON pointer points to; null where there is nothing.
CREATE FUNCTION postrider._pointed(p_value jsonb, p_pointer text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_token text;
BEGIN
  FOREACH v_token IN ARRAY (string_to_array(p_pointer, '/'))[2:] LOOP
    v_token := replace(replace(v_token, '~1', '/'), '~0', '~');
    p_value := CASE jsonb_typeof(p_value)
      WHEN 'object' THEN p_value->v_token
      -- Not what -> also takes: places from the end.
      WHEN 'array' THEN CASE WHEN v_token ~ '^(0|[1-9][0-9]{0,8})$' THEN p_value->v_token::integer END END;
  END LOOP;
  RETURN coalesce(p_value, 'null');
END $$;

-- A template filled: a string that is exactly {{/json/pointer}} becomes that value, null where there is none.
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

-- Of a list what is at each of these places. A list of one, the event of a single publish, is not looked up again and again.
CREATE FUNCTION postrider._picked(p_list anyarray, p_places bigint[]) RETURNS anyarray LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF cardinality(p_list) = 1 THEN
    RETURN array_fill(p_list[1], ARRAY[cardinality(p_places)]);
  END IF;
  RETURN ARRAY(SELECT p_list[n] FROM unnest(p_places) AS n);
END $$;

-- What subscribers get of events: one message for each entry of p_events, which are places in the other lists. Where no event
-- has an option, none of the messages has.
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

-- Who gets what of events: an entry for each message, in the order of the events and then of the subscriptions. What an
-- operator disabled is skipped and counted; what is gone is kept. The way is always the same, from an event to the
-- subscriptions that fit and from each to its endpoint, and `OFFSET 0` holds the planner to it: where it knows nothing of
-- the tables yet, it would rather begin with all endpoints.
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

-- How an event is named among several; one alone needs no name.
CREATE FUNCTION postrider._event_at(p_field text, p_place bigint) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_field = '' THEN '' ELSE format('%s[%s].', p_field, p_place - 1) END
$$;

-- Several events, all or nothing: what each of their subscribers gets, as one batch. Returns how many messages were made.
-- Where b has payloads, they are the bytes as they came. Two subscriptions may make different messages of one event for one
-- endpoint, so each has an idempotency key of its own: `key#subscription`. A session keeps its plans: the planner would
-- rather make a new one for every list of another length, and takes longer for that than the fan-out does.
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
  -- What is to be made: of which event, for which subscription.
  v_events bigint[];
  v_subscriptions bigint[];
  v_endpoints text[];
  v_templates jsonb[];
  -- The limit of a batch is about what callers write, not about what it becomes.
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
  -- A mistake is one even where nobody listens; what depends on the receiver is checked for each of them.
  SELECT l.max_payload_bytes, l.max_headers_bytes, l.max_key_bytes
  INTO d.max_payload_bytes, d.max_headers_bytes, d.max_key_bytes FROM postrider._limits l;
  PERFORM postrider._check_message(postrider._event_at(p_field, e.n), d,
    octet_length(coalesce(b.payloads[e.n], convert_to(e.payload::text, 'UTF8'))), 'application/json',
    b.priorities[e.n], b.scheduled_at[e.n], b.expires_at[e.n], b.idempotency_keys[e.n], b.ordering_keys[e.n],
    e.event_type, b.headers[e.n], NULL)
  FROM unnest(p_event_types, p_payloads) WITH ORDINALITY AS e (event_type, payload, n);
  -- With the number of any subscription behind it.
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
    -- As one batch would: all locks, in order.
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

-- One event to everybody who wants it; how many messages that made. Nobody is not an error.
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

-- For the library: events with their own bytes, which are JSON. A single one is not called events[0] when it is refused.
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
