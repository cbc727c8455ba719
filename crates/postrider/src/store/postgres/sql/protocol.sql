-- The checks that read _known_protocols and _known_keys, the tables of protocols and config keys that `postrider migrate` fills from
-- the program (known_keys.rs): SQL and program refuse the same things in the same words. A new protocol, key or rule is rows there,
-- and needs no new function. tables.sql says what the columns mean.

-- As the program writes a text between quotes.
CREATE FUNCTION postrider._quoted(p_text text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT '"' || replace(replace(p_text, E'\\', E'\\\\'), '"', E'\\"') || '"' $$;

-- As the program lists what may be said.
CREATE FUNCTION postrider._one_of(p_choices text[]) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT string_agg(postrider._quoted(c), ' or ' ORDER BY n) FROM unnest(p_choices) WITH ORDINALITY AS u (c, n) $$;

CREATE FUNCTION postrider._is_object(p_value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(jsonb_typeof(p_value) = 'object', false) $$;

CREATE FUNCTION postrider._check_whole(p_field text, p_value jsonb, p_min numeric, p_max numeric) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  -- 5.0 is no whole number here: the program reads it as a fraction.
  IF jsonb_typeof(p_value) = 'number' AND p_value::text ~ '^[0-9]+$' AND p_value::text::numeric BETWEEN p_min AND p_max
  THEN
    RETURN;
  END IF;
  PERFORM postrider._invalid(p_field, format('must be a whole number from %s to %s', p_min, p_max));
END $$;

CREATE FUNCTION postrider._check_number(p_field text, p_value jsonb, p_min numeric, p_max numeric) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF jsonb_typeof(p_value) = 'number' AND p_value::text::numeric BETWEEN p_min AND p_max THEN
    RETURN;
  END IF;
  PERFORM postrider._invalid(p_field, format('must be a number from %s to %s', p_min, p_max));
END $$;

-- A list of whole numbers, and of names for many of them.
CREATE FUNCTION postrider._check_codes(p_field text, p_value jsonb, p_min numeric, p_max numeric, p_classes text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_item record;
BEGIN
  IF jsonb_typeof(p_value) <> 'array' THEN
    PERFORM postrider._invalid(p_field, 'must be a list');
  END IF;
  FOR v_item IN SELECT item, n FROM jsonb_array_elements(p_value) WITH ORDINALITY AS a (item, n) LOOP
    CONTINUE WHEN jsonb_typeof(v_item.item) = 'string' AND (v_item.item #>> '{}') = ANY (p_classes)
      OR jsonb_typeof(v_item.item) = 'number' AND v_item.item::text ~ '^[0-9]+$'
         AND v_item.item::text::numeric BETWEEN p_min AND p_max;
    PERFORM postrider._invalid(format('%s[%s]', p_field, v_item.n - 1),
      format('must be a whole number from %s to %s, or %s', p_min, p_max, postrider._one_of(p_classes)));
  END LOOP;
END $$;

-- A text that is one of these. The sentence joins them as the program does.
CREATE FUNCTION postrider._check_choice(p_field text, p_value jsonb, p_choices text[], p_sentence text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF jsonb_typeof(p_value) = 'string' AND (p_value #>> '{}') = ANY (p_choices) THEN
    RETURN;
  END IF;
  PERFORM postrider._invalid(p_field, p_sentence);
END $$;

-- What is wrong with a path below some directory: as the program walks it, `.` counts at the beginning only.
CREATE FUNCTION postrider._leaves_its_directory(p_path text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT p_path ~ '^/' OR p_path ~ E'^\\.(/|$)' OR p_path ~ E'(^|/)\\.\\.(/|$)' $$;

-- Is the text a reference to a secret? `broken` says why it only looks like one.
CREATE FUNCTION postrider._secret_reference(p_text text, OUT is_reference boolean, OUT broken text)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  is_reference := p_text LIKE '${%' OR p_text LIKE 'file:%';
  IF p_text LIKE '${%' AND p_text NOT LIKE '%}' THEN
    broken := 'begins like a reference ${NAME} but does not end with }';
  ELSIF p_text LIKE '${%' AND p_text !~ E'^\\$\\{POSTRIDER_SECRET_[A-Za-z0-9_]+\\}$' THEN
    broken := 'refers to a variable that is not allowed; names begin with POSTRIDER_SECRET_ and have letters, '
      'digits and ''_''';
  ELSIF p_text LIKE 'file:%' AND (p_text = 'file:' OR postrider._leaves_its_directory(substr(p_text, 6))) THEN
    broken := 'refers to a file that is not below the directory of secrets';
  END IF;
END $$;

-- The end of the sentence about a text that breaks one of the rules; null when it breaks none. In PL/pgSQL: every send calls it
-- for each header, and a session plans its statements once.
CREATE FUNCTION postrider._broken_rule(p_rules jsonb, p_text text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_rule jsonb;
BEGIN
  FOR n IN 0 .. coalesce(jsonb_array_length(p_rules), 0) - 1 LOOP
    v_rule := p_rules->n;
    IF p_text ~ (v_rule->>'refuses') OR p_text !~ (v_rule->>'wants') THEN
      RETURN v_rule->>'says';
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- Only an endpoint may refer to secrets. A message says what it means.
CREATE FUNCTION postrider._check_secret(p_field text, p_value jsonb, p_rules jsonb, p_references boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_text text := p_value #>> '{}';
  v_reference record;
  v_broken text;
BEGIN
  IF jsonb_typeof(p_value) <> 'string' THEN
    PERFORM postrider._invalid(p_field, 'must be a string');
  END IF;
  v_reference := postrider._secret_reference(v_text);
  v_broken := CASE WHEN p_references AND v_reference.is_reference THEN v_reference.broken
                   ELSE postrider._broken_rule(p_rules, v_text) END;
  IF v_broken IS NOT NULL THEN
    PERFORM postrider._invalid(p_field, v_broken);
  END IF;
END $$;

CREATE FUNCTION postrider._broken_name(p_rules jsonb, p_name text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN postrider._broken_rule(p_rules->'names', lower(p_name COLLATE "C"));
END $$;

CREATE FUNCTION postrider._broken_value(p_rules jsonb, p_name text, p_text text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN coalesce(postrider._broken_rule(p_rules->'values_of'->lower(p_name COLLATE "C"), p_text),
                  postrider._broken_rule(p_rules->'values', p_text));
END $$;

-- A receiver would get only one of them, and the sender could not tell which.
CREATE FUNCTION postrider._check_none_twice(p_within text, p_names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
BEGIN
  SELECT name INTO v_name
  FROM (SELECT name, n, row_number() OVER (PARTITION BY lower(name COLLATE "C") ORDER BY n) AS nth
        FROM unnest(p_names) WITH ORDINALITY AS u (name, n)) AS named
  WHERE nth > 1 ORDER BY n LIMIT 1;
  IF FOUND THEN
    PERFORM postrider._invalid(format('%s.%s', p_within, v_name), 'is given twice; names of headers ignore case');
  END IF;
END $$;

-- A map of names and texts, such as headers.
CREATE FUNCTION postrider._check_map(p_field text, p_map jsonb, p_rules jsonb, p_references boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v record;
  v_reference record;
  v_broken text;
BEGIN
  IF NOT postrider._is_object(p_map) THEN
    PERFORM postrider._invalid(p_field, 'must be an object');
  END IF;
  FOR v IN SELECT key, value FROM jsonb_each(p_map) ORDER BY key COLLATE "C" LOOP
    IF jsonb_typeof(v.value) <> 'string' THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v.key), 'must be a string');
    END IF;
    v_reference := postrider._secret_reference(v.value #>> '{}');
    IF p_references AND v_reference.broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v.key), v_reference.broken);
    END IF;
  END LOOP;
  PERFORM postrider._check_none_twice(p_field,
    ARRAY(SELECT key FROM jsonb_object_keys(p_map) AS key ORDER BY key COLLATE "C"));
  FOR v IN SELECT key, value FROM jsonb_each_text(p_map) ORDER BY key COLLATE "C" LOOP
    v_reference := postrider._secret_reference(v.value);
    v_broken := postrider._broken_name(p_rules, v.key);
    -- The sink checks the value of a reference when it connects.
    IF v_broken IS NULL AND NOT (p_references AND v_reference.is_reference) THEN
      v_broken := postrider._broken_value(p_rules, v.key, v.value);
    END IF;
    IF v_broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v.key), v_broken);
    END IF;
  END LOOP;
END $$;

-- The key of this config that sets a header itself, such as `auth`.
CREATE FUNCTION postrider._key_that_sets(p_protocol text, p_config jsonb, p_header text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT relation->>'given'
    FROM postrider._known_protocols, jsonb_array_elements(relations) AS relation
    WHERE name = p_protocol AND relation->>'header' = lower(p_header) AND NOT relation ? 'is'
      AND p_config #> string_to_array(relation->>'given', '.') IS NOT NULL
    LIMIT 1);
END $$;

-- A message may not replace this header: a key such as `auth` sets it, or the config does and override_headers does not list it.
-- Without such a list, messages may not replace secret headers.
CREATE FUNCTION postrider._keeps_header(p_protocol text, p_config jsonb, p_override_headers jsonb, p_name text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN postrider._key_that_sets(p_protocol, p_config, p_name) IS NOT NULL OR EXISTS (
    SELECT FROM jsonb_each_text(coalesce(p_config->'headers', '{}')) AS h
    WHERE lower(h.key) = lower(p_name) AND CASE
      WHEN p_override_headers IS NULL
        THEN lower(h.key) ~ 'auth|cookie|api-key|apikey|token|secret|password|credential|access-key'
             OR h.value LIKE '${%' OR h.value LIKE 'file:%'
      ELSE NOT EXISTS (SELECT FROM jsonb_array_elements_text(p_override_headers) AS o WHERE lower(o) = lower(p_name)) END);
END $$;

-- One value against its row of the table.
CREATE FUNCTION postrider._check_value(
  p_field text, p_value jsonb, k postrider._known_keys, p_references boolean
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_text text := p_value #>> '{}';
  v_path text := CASE WHEN k.path = '' THEN k.name ELSE k.path || '.' || k.name END;
  v_variant text;
  v_broken text;
BEGIN
  CASE k.kind
    WHEN 'flag' THEN
      IF jsonb_typeof(p_value) <> 'boolean' THEN
        PERFORM postrider._invalid(p_field, 'must be true or false');
      END IF;
    WHEN 'whole' THEN
      PERFORM postrider._check_whole(p_field, p_value, k.min, k.max);
    WHEN 'seconds' THEN
      IF jsonb_typeof(p_value) <> 'number' OR v_text::numeric < 1e-9 OR v_text::numeric > k.max THEN
        PERFORM postrider._invalid(p_field, format('must be a number of seconds above 0 and up to %s', k.max));
      END IF;
    WHEN 'choice' THEN
      PERFORM postrider._check_choice(p_field, p_value, k.choices, 'must be ' || postrider._one_of(k.choices));
    WHEN 'text' THEN
      IF jsonb_typeof(p_value) <> 'string' THEN
        PERFORM postrider._invalid(p_field, 'must be a string');
      END IF;
      IF octet_length(v_text) NOT BETWEEN coalesce(k.min, 1) AND k.max THEN
        PERFORM postrider._invalid(p_field, format('must have %s to %s bytes', coalesce(k.min, 1), k.max));
      END IF;
      v_broken := postrider._broken_rule(k.rules, v_text);
      IF v_broken IS NOT NULL THEN
        PERFORM postrider._invalid(p_field, v_broken);
      END IF;
    WHEN 'codes' THEN
      PERFORM postrider._check_codes(p_field, p_value, k.min, k.max, k.choices);
    WHEN 'secret' THEN
      PERFORM postrider._check_secret(p_field, p_value, k.rules, p_references);
    WHEN 'secrets' THEN
      IF jsonb_typeof(p_value) <> 'array' OR jsonb_array_length(p_value) NOT BETWEEN k.min AND k.max THEN
        PERFORM postrider._invalid(p_field, format('must be a list of %s to %s strings', k.min, k.max));
      END IF;
      PERFORM postrider._check_secret(format('%s[%s]', p_field, n - 1), item, k.rules, p_references)
      FROM jsonb_array_elements(p_value) WITH ORDINALITY AS a (item, n);
    WHEN 'map' THEN
      PERFORM postrider._check_map(p_field, p_value, k.rules, p_references);
    WHEN 'object' THEN
      PERFORM postrider._check_keys(k.protocol, p_field, v_path, 'message', p_value, true, p_references);
    WHEN 'typed' THEN
      v_variant := p_value->>'type';
      IF NOT postrider._is_object(p_value) THEN
        PERFORM postrider._invalid(p_field, 'must be an object');
      ELSIF v_variant IS NULL OR v_variant <> ALL (k.choices) OR jsonb_typeof(p_value->'type') <> 'string' THEN
        PERFORM postrider._invalid(p_field || '.type', 'must be ' || postrider._one_of(k.choices));
      END IF;
      PERFORM postrider._check_keys(k.protocol, p_field, v_path || ':' || v_variant, 'message', p_value, true,
        p_references);
  END CASE;
END $$;

-- Every key of p_map is in the table, and required keys are given. Keys that are set by p_but alone are not known here.
CREATE FUNCTION postrider._check_keys(
  p_protocol text, p_within text, p_path text, p_but text, p_map jsonb, p_required boolean, p_references boolean
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  k postrider._known_keys;
  v_missing text;
BEGIN
  IF NOT postrider._is_object(p_map) THEN
    PERFORM postrider._invalid(p_within, 'must be an object');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_map) ORDER BY key COLLATE "C" LOOP
    CONTINUE WHEN p_path LIKE '%:%' AND v_given.key = 'type';
    SELECT * INTO k FROM postrider._known_keys
    WHERE protocol = p_protocol AND path = p_path AND name = v_given.key AND set_by <> p_but;
    IF NOT FOUND THEN
      PERFORM postrider._invalid(format('%s.%s', p_within, v_given.key), 'unknown field; expected one of: '
        || concat_ws(', ', CASE WHEN p_path LIKE '%:%' THEN 'type' END,
             (SELECT string_agg(name, ', ' ORDER BY position) FROM postrider._known_keys
              WHERE protocol = p_protocol AND path = p_path AND set_by <> p_but)));
    END IF;
    PERFORM postrider._check_value(format('%s.%s', p_within, v_given.key), v_given.value, k, p_references);
  END LOOP;
  IF p_required THEN
    SELECT name INTO v_missing FROM postrider._known_keys
    WHERE protocol = p_protocol AND path = p_path AND set_by <> p_but AND required AND NOT p_map ? name
    ORDER BY position LIMIT 1;
    IF FOUND THEN
      PERFORM postrider._invalid(format('%s.%s', p_within, v_missing), 'is required');
    END IF;
  END IF;
END $$;

CREATE FUNCTION postrider._check_protocol(p_protocol text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM postrider._known_protocols WHERE name = p_protocol) THEN
    PERFORM postrider._invalid('protocol', 'must be one of '
      || (SELECT string_agg(name, ', ' ORDER BY position) FROM postrider._known_protocols));
  END IF;
END $$;

-- An endpoint's config; errors name the field as `config.<key>`. The program looks closer at URLs and certificates: what it
-- cannot use fails there when the sink connects.
CREATE FUNCTION postrider._check_config(p_protocol text, p_config jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_relation jsonb;
  v_given jsonb;
BEGIN
  PERFORM postrider._check_protocol(p_protocol);
  PERFORM postrider._checked_depth('config', p_config);
  PERFORM postrider._check_keys(p_protocol, 'config', '', 'message', p_config, true, true);
  FOR v_relation IN SELECT r FROM postrider._known_protocols, jsonb_array_elements(relations) AS r WHERE name = p_protocol LOOP
    v_given := p_config #> string_to_array(v_relation->>'given', '.');
    CONTINUE WHEN v_given IS NULL OR v_relation ? 'is' AND v_given <> v_relation->'is';
    IF v_relation ? 'header' AND EXISTS (
         SELECT FROM jsonb_object_keys(coalesce(p_config->'headers', '{}')) AS h WHERE lower(h) = v_relation->>'header')
       OR v_relation ? 'needs' AND p_config #> string_to_array(v_relation->>'needs', '.') IS NULL THEN
      PERFORM postrider._invalid('config.' || (v_relation->>'field'), v_relation->>'says');
    END IF;
  END LOOP;
END $$;

-- An attempt has to end before it is taken for stuck.
CREATE FUNCTION postrider._check_timeout(p_field text, p_protocol text, p_seconds jsonb, p_limit interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_seconds jsonb := coalesce(p_seconds, (SELECT default_value FROM postrider._known_keys
                                          WHERE protocol = p_protocol AND path = '' AND name = 'timeout'));
BEGIN
  IF (v_seconds #>> '{}')::numeric >= extract(epoch FROM p_limit) THEN
    PERFORM postrider._invalid(p_field,
      format('must be below stale_recovery_timeout, which is %s s', trim_scale(extract(epoch FROM p_limit)::numeric)));
  END IF;
END $$;

-- A message's headers.
CREATE FUNCTION postrider._check_message_headers(
  p_field text, p_protocol text, p_config jsonb, p_override_headers jsonb, p_bytes_max bigint, p_headers jsonb
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_bytes bigint;
  v record;
  k postrider._known_protocols;
  v_broken text;
BEGIN
  PERFORM postrider._checked_depth(p_field, p_headers);
  IF jsonb_typeof(p_headers) <> 'object'
     OR EXISTS (SELECT FROM jsonb_each(p_headers) WHERE jsonb_typeof(value) <> 'string') THEN
    PERFORM postrider._invalid(p_field, 'must be an object of strings');
  END IF;
  SELECT coalesce(sum(octet_length(key) + octet_length(value)), 0) INTO v_bytes FROM jsonb_each_text(p_headers);
  IF v_bytes > p_bytes_max THEN
    PERFORM postrider._too_large(p_field, v_bytes, p_bytes_max, 'max_headers_bytes');
  END IF;
  PERFORM postrider._check_none_twice(p_field,
    ARRAY(SELECT key FROM jsonb_object_keys(p_headers) AS key ORDER BY key COLLATE "C"));
  SELECT * INTO k FROM postrider._known_protocols WHERE name = p_protocol;
  FOR v IN SELECT key, value FROM jsonb_each_text(p_headers) ORDER BY key COLLATE "C" LOOP
    v_broken := coalesce(postrider._broken_name(k.headers, v.key),
      CASE WHEN lower(v.key) = ANY (k.endpoint_headers) THEN 'can be set by the endpoint only' END,
      postrider._broken_value(k.headers, v.key, v.value));
    IF v_broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v.key), v_broken);
    END IF;
  END LOOP;
  FOR v IN SELECT key FROM jsonb_object_keys(p_headers) AS key ORDER BY key COLLATE "C" LOOP
    IF postrider._keeps_header(p_protocol, p_config, p_override_headers, v.key) THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v.key),
        'is set by the endpoint, which does not let messages replace it');
    END IF;
  END LOOP;
END $$;

-- A message's options. A message need not repeat what its endpoint requires.
CREATE FUNCTION postrider._check_message_options(
  p_field text, p_protocol text, p_config jsonb, p_options jsonb, p_stale_recovery_timeout interval
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._checked_depth(p_field, p_options);
  PERFORM postrider._check_keys(p_protocol, p_field, '', 'endpoint', p_options, false, false);
  PERFORM postrider._check_timeout(p_field || '.timeout', p_protocol, coalesce(p_options->'timeout', p_config->'timeout'),
    p_stale_recovery_timeout);
END $$;
