-- The table of config keys, and the checks that read it. The table is the program's own (protocol/*.rs), so that
-- SQL and program refuse the same things in the same words.
--
-- `postrider migrate` empties it and fills it from Protocol::ALL and Protocol::keys(), one row a key:
--   protocol       Protocol::as_str()
--   path           '' for the protocol's own keys; for the keys of an object the path of the object ('tls'); for
--                  the keys of a variant of a typed object the path, a colon and the variant ('auth:basic');
--                  deeper ones are joined by dots ('auth:basic.tls'). The key `type` of a typed object has no row.
--   position       its number over the whole table, from 1, in the program's order: lists are in this order
--   name           Key::name
--   kind           flag, whole, seconds, choice, text, codes, secret, secrets, headers, object, typed (Kind in small letters)
--   scope          endpoint, both, message (Scope)
--   required       Key::required
--   default_value  Key::default as jsonb, or null
--   min, max       whole, codes: its range; seconds: max; text: max is bytes_max; secrets: how many; else null
--   choices        choice: what may be said; codes: the classes; typed: the names of its variants, in order; else null
--   rule           text, secret, secrets: the name of the rule, that of the Rust function: url, method, url_suffix,
--                  signing_secret, username, no_control, token, certificates, path (_broken_rule below); else null
CREATE TABLE postrider._known_keys (
  protocol text NOT NULL,
  path text NOT NULL,
  position integer NOT NULL,
  name text NOT NULL,
  kind text NOT NULL CHECK (kind IN
    ('flag', 'whole', 'seconds', 'choice', 'text', 'codes', 'secret', 'secrets', 'headers', 'object', 'typed')),
  scope text NOT NULL CHECK (scope IN ('endpoint', 'both', 'message')),
  required boolean NOT NULL,
  default_value jsonb,
  min numeric,
  max numeric,
  choices text[],
  rule text,
  PRIMARY KEY (protocol, path, name)
);

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

-- What of a host is a number has to be an IPv4 address, in any of the spellings that browsers take.
CREATE FUNCTION postrider._is_ipv4(p_host text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_parts text[] := string_to_array(regexp_replace(lower(p_host), E'\\.$', ''), '.');
  v_last integer := cardinality(v_parts);
  v_part text;
  v_number numeric;
BEGIN
  IF v_last > 4 THEN
    RETURN false;
  END IF;
  FOR i IN 1 .. v_last LOOP
    v_part := v_parts[i];
    IF v_part ~ '^0x[0-9a-f]{0,8}$' THEN
      v_number := ('x' || lpad(substr(v_part, 3), 16, '0'))::bit(64)::bigint;
    ELSIF v_part ~ '^0[0-7]{0,11}$' THEN
      SELECT coalesce(sum(substr(v_part, n, 1)::numeric * 8 ^ (length(v_part) - n)), 0) INTO v_number
      FROM generate_series(1, length(v_part)) AS n;
    ELSIF v_part ~ '^[1-9][0-9]{0,9}$' THEN
      v_number := v_part::numeric;
    ELSE
      RETURN false;
    END IF;
    IF v_number >= (CASE WHEN i < v_last THEN 256 ELSE 256 ^ (5 - v_last) END) THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- What is wrong with an http or https address; null when nothing is. Hosts in other alphabets, and what stands for
-- them (xn--), are taken as they are: the node that connects turns them into a name.
CREATE FUNCTION postrider._broken_url(p_url text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_authority text;
  v_host text;
  v_port text;
BEGIN
  IF p_url ~ E'[\\u0001-\\u0020\\u007f-\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\\\]' THEN
    RETURN 'must not contain spaces, control characters or backslashes';
  END IF;
  IF p_url !~ '^[A-Za-z][A-Za-z0-9+.-]*:' THEN
    RETURN 'is not a valid URL: relative URL without a base';
  END IF;
  IF p_url !~* '^https?:' THEN
    RETURN 'must begin with http:// or https://';
  END IF;
  v_authority := substring(p_url FROM '^[A-Za-z]+:/*([^/?#]*)');
  v_host := substring(v_authority FROM '([^@]*)$');
  v_port := substring(v_host FROM E'^(?:\\[[^]]*\\]|[^:[]*):(.*)$');
  v_host := CASE WHEN v_port IS NULL THEN v_host ELSE left(v_host, -1 - length(v_port)) END;
  IF v_host = '' THEN
    RETURN 'is not a valid URL: empty host';
  END IF;
  IF v_port IS NOT NULL AND (v_port !~ '^[0-9]*$' OR nullif(v_port, '')::numeric > 65535) THEN
    RETURN 'is not a valid URL: invalid port number';
  END IF;
  IF v_host ~ E'^\\[' THEN
    BEGIN
      IF v_host !~ E'^\\[[0-9A-Fa-f:.]+\\]$' OR family(substr(v_host, 2, length(v_host) - 2)::inet) <> 6 THEN
        RETURN 'is not a valid URL: invalid IPv6 address';
      END IF;
    EXCEPTION WHEN invalid_text_representation THEN
      RETURN 'is not a valid URL: invalid IPv6 address';
    END;
  ELSIF v_host ~ E'[<>^|[\\]:]' OR v_host ~* '%(?![2-7][0-9a-f])' OR v_host ~* '%(2[035f]|3[acef]|40|5[b-e]|7[cf])' THEN
    RETURN 'is not a valid URL: invalid international domain name';
  ELSIF v_host ~ E'(^|\\.)([0-9]+|0[xX][0-9A-Fa-f]*)\\.?$' AND NOT postrider._is_ipv4(v_host) THEN
    RETURN 'is not a valid URL: invalid IPv4 address';
  END IF;
  IF v_authority LIKE '%@%' AND v_authority !~ '^:?@[^@]*$' THEN
    RETURN 'must not contain a user name or password; use config.auth';
  END IF;
  IF p_url LIKE '%#%' THEN
    RETURN 'must not contain a fragment (#)';
  END IF;
  IF v_port ~ '^0+$' THEN
    RETURN 'must have a host, and a port other than 0 if it has one';
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION postrider._broken_signing_secret(p_secret text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_encoded text := substring(p_secret FROM '^(?:whsec_|whsk_)(.*)$');
  v_bytes integer;
BEGIN
  IF v_encoded IS NULL THEN
    RETURN 'must begin with whsec_ or whsk_, or be a reference to such a secret';
  END IF;
  IF v_encoded !~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$' THEN
    RETURN 'must be base64 after its prefix';
  END IF;
  v_bytes := octet_length(decode(v_encoded, 'base64'));
  IF p_secret LIKE E'whsec\\_%' AND v_bytes NOT BETWEEN 24 AND 64 THEN
    RETURN 'must be 24 to 64 bytes long after whsec_, once decoded';
  END IF;
  IF p_secret LIKE E'whsk\\_%' AND v_bytes NOT IN (32, 64) THEN
    RETURN 'must be a seed of 32 bytes after whsk_, or seed and public key together, once decoded';
  END IF;
  RETURN NULL;
END $$;

-- What a rule says of a text, as the end of a sentence that begins with the field; null when it is kept. Each is
-- the function of the same name in protocol/*.rs.
CREATE FUNCTION postrider._broken_rule(p_rule text, p_text text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_control constant text := E'[\\u0001-\\u001f\\u007f-\\u009f]';
  v_path text;
BEGIN
  CASE p_rule
    WHEN 'url' THEN
      RETURN postrider._broken_url(p_text);
    WHEN 'method' THEN
      RETURN CASE WHEN p_text !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' THEN 'is not a valid HTTP method'
                  WHEN p_text IN ('CONNECT', 'TRACE') THEN 'must not be CONNECT or TRACE'
                  WHEN p_text ~ '[a-z]' THEN 'must be in capitals' END;
    WHEN 'url_suffix' THEN
      v_path := split_part(p_text, '?', 1);
      RETURN CASE WHEN p_text !~ '^[/?]' OR p_text LIKE '//%' THEN 'must start with one ''/'' or with ''?'''
                  WHEN regexp_replace(p_text, '%2e', '.', 'gi') LIKE '%..%' OR p_text ~ E'[#\\\\]'
                    THEN 'must not contain ''..'', ''#'' or a backslash'
                  WHEN p_text ~ '[^!-~]' THEN 'must be visible ASCII characters; percent-encode the others'
                  WHEN v_path ~ '[<>`]' OR substr(p_text, length(v_path) + 1) ~ '[<>"]'
                    THEN 'has a path or query that cannot be sent: invalid uri character' END;
    WHEN 'signing_secret' THEN
      RETURN postrider._broken_signing_secret(p_text);
    WHEN 'username' THEN
      RETURN CASE WHEN p_text LIKE '%:%' OR p_text ~ v_control
                  THEN 'must not contain '':'' or control characters' END;
    WHEN 'no_control' THEN
      RETURN CASE WHEN p_text ~ v_control THEN 'must not contain control characters' END;
    WHEN 'token' THEN
      RETURN CASE WHEN p_text = '' OR p_text ~ '[^!-~]' THEN 'must be visible ASCII characters without spaces' END;
    WHEN 'certificates' THEN
      RETURN CASE WHEN p_text LIKE '%PRIVATE KEY-----%'
                    THEN 'must hold certificates only, and no private key'
                  WHEN p_text !~ '-----BEGIN CERTIFICATE-----'
                    THEN 'must be PEM text with at least one certificate'
                  WHEN regexp_replace(p_text,
                         E'-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\\s]*-----END \\1-----', '', 'g') ~ '-----BEGIN '
                    THEN 'is not valid PEM' END;
    WHEN 'path' THEN
      RETURN CASE WHEN postrider._leaves_its_directory(p_text) OR p_text LIKE '%/' OR p_text ~ v_control
                  THEN 'must be a path of a file relative to the node''s --file-root, without ''.'' or ''..''' END;
    ELSE
      RAISE EXCEPTION 'there is no rule "%": the table of keys is newer than these functions', p_rule;
  END CASE;
END $$;

CREATE FUNCTION postrider._check_secret(p_field text, p_value jsonb, p_rule text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_text text := p_value #>> '{}';
  v_reference record;
BEGIN
  IF jsonb_typeof(p_value) <> 'string' THEN
    PERFORM postrider._invalid(p_field, 'must be a string');
  END IF;
  v_reference := postrider._secret_reference(v_text);
  v_reference.broken := CASE WHEN v_reference.is_reference THEN v_reference.broken
                             ELSE postrider._broken_rule(p_rule, v_text) END;
  IF v_reference.broken IS NOT NULL THEN
    PERFORM postrider._invalid(p_field, v_reference.broken);
  END IF;
END $$;

-- What is wrong with a header that an endpoint or a message wants to set.
CREATE FUNCTION postrider._broken_header(p_name text, p_text text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_name text := lower(p_name);
BEGIN
  RETURN CASE
    WHEN p_name !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' THEN 'is not a valid header name'
    WHEN v_name IN ('connection', 'content-length', 'expect', 'keep-alive', 'te', 'trailer', 'transfer-encoding',
                    'upgrade', 'http2-settings') OR v_name LIKE 'proxy-%'
      THEN 'belongs to the connection and cannot be set'
    WHEN v_name ~ '^(webhook-|postrider-|ce-)'
      THEN 'cannot be set; headers beginning with webhook-, postrider-, ce- are Postrider''s'
    WHEN v_name = 'host' AND p_text <> ''
         AND p_text !~ E'^(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9._-]+)(:[0-9]*)?$'
      THEN 'must be a host name with an optional port'
    WHEN p_text ~ E'[^\\t -~]' THEN 'must be visible ASCII characters, spaces and tabs'
  END;
END $$;

-- A receiver would get one of them, and no sender could tell which.
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

-- Names and texts of one map. References to secrets were replaced by nothing before.
CREATE FUNCTION postrider._check_headers(p_within text, p_headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_header record;
  v_broken text;
BEGIN
  PERFORM postrider._check_none_twice(p_within,
    ARRAY(SELECT key FROM jsonb_object_keys(p_headers) AS key ORDER BY key COLLATE "C"));
  FOR v_header IN SELECT key, value FROM jsonb_each_text(p_headers) ORDER BY key COLLATE "C" LOOP
    v_broken := postrider._broken_header(v_header.key, v_header.value);
    IF v_broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s.%s', p_within, v_header.key), v_broken);
    END IF;
  END LOOP;
END $$;

-- A message may not replace this header: `auth` sets it, or the config does and override_headers does not list it. Without
-- such a list what is secret is kept.
CREATE FUNCTION postrider._keeps_header(p_config jsonb, p_override_headers jsonb, p_name text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(p_config ? 'auth', false) AND lower(p_name) = 'authorization' OR EXISTS (
    SELECT FROM jsonb_each_text(coalesce(p_config->'headers', '{}')) AS h
    WHERE lower(h.key) = lower(p_name) AND CASE
      WHEN p_override_headers IS NULL
        THEN lower(h.key) ~ 'auth|cookie|api-key|apikey|token|secret|password|credential|access-key'
             OR h.value LIKE '${%' OR h.value LIKE 'file:%'
      ELSE NOT EXISTS (SELECT FROM jsonb_array_elements_text(p_override_headers) AS o WHERE lower(o) = lower(p_name)) END)
$$;

CREATE FUNCTION postrider._check_config_headers(p_field text, p_value jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_header record;
  v_reference record;
  v_known jsonb := '{}';
BEGIN
  IF NOT postrider._is_object(p_value) THEN
    PERFORM postrider._invalid(p_field, 'must be an object');
  END IF;
  FOR v_header IN SELECT key, value FROM jsonb_each(p_value) ORDER BY key COLLATE "C" LOOP
    IF jsonb_typeof(v_header.value) <> 'string' THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v_header.key), 'must be a string');
    END IF;
    v_reference := postrider._secret_reference(v_header.value #>> '{}');
    IF v_reference.broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s.%s', p_field, v_header.key), v_reference.broken);
    END IF;
    -- What it stands for is known, and checked, only when the sink connects.
    v_known := v_known || jsonb_build_object(v_header.key,
      CASE WHEN v_reference.is_reference THEN '""' ELSE v_header.value END);
  END LOOP;
  PERFORM postrider._check_headers(p_field, v_known);
END $$;

-- One value against its row of the table.
CREATE FUNCTION postrider._check_value(p_field text, p_value jsonb, k postrider._known_keys) RETURNS void
LANGUAGE plpgsql AS $$
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
      IF octet_length(v_text) NOT BETWEEN 1 AND k.max THEN
        PERFORM postrider._invalid(p_field, format('must have 1 to %s bytes', k.max));
      END IF;
      v_broken := postrider._broken_rule(k.rule, v_text);
      IF v_broken IS NOT NULL THEN
        PERFORM postrider._invalid(p_field, v_broken);
      END IF;
    WHEN 'codes' THEN
      PERFORM postrider._check_codes(p_field, p_value, k.min, k.max, k.choices);
    WHEN 'secret' THEN
      PERFORM postrider._check_secret(p_field, p_value, k.rule);
    WHEN 'secrets' THEN
      IF jsonb_typeof(p_value) <> 'array' OR jsonb_array_length(p_value) NOT BETWEEN k.min AND k.max THEN
        PERFORM postrider._invalid(p_field, format('must be a list of %s to %s strings', k.min, k.max));
      END IF;
      PERFORM postrider._check_secret(format('%s[%s]', p_field, n - 1), item, k.rule)
      FROM jsonb_array_elements(p_value) WITH ORDINALITY AS a (item, n);
    WHEN 'headers' THEN
      PERFORM postrider._check_config_headers(p_field, p_value);
    WHEN 'object' THEN
      PERFORM postrider._check_keys(k.protocol, p_field, v_path, 'message', p_value, true);
    WHEN 'typed' THEN
      v_variant := p_value->>'type';
      IF NOT postrider._is_object(p_value) THEN
        PERFORM postrider._invalid(p_field, 'must be an object');
      ELSIF v_variant IS NULL OR v_variant <> ALL (k.choices) OR jsonb_typeof(p_value->'type') <> 'string' THEN
        PERFORM postrider._invalid(p_field || '.type', 'must be ' || postrider._one_of(k.choices));
      END IF;
      PERFORM postrider._check_keys(k.protocol, p_field, v_path || ':' || v_variant, 'message', p_value, true);
  END CASE;
END $$;

-- Every key of p_map is in the table, and what is required is there. Keys of scope p_but are not known here.
CREATE FUNCTION postrider._check_keys(
  p_protocol text, p_within text, p_path text, p_but text, p_map jsonb, p_required boolean
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
    WHERE protocol = p_protocol AND path = p_path AND name = v_given.key AND scope <> p_but;
    IF NOT FOUND THEN
      PERFORM postrider._invalid(format('%s.%s', p_within, v_given.key), 'is not known here; known are: '
        || concat_ws(', ', CASE WHEN p_path LIKE '%:%' THEN 'type' END,
             (SELECT string_agg(name, ', ' ORDER BY position) FROM postrider._known_keys
              WHERE protocol = p_protocol AND path = p_path AND scope <> p_but)));
    END IF;
    PERFORM postrider._check_value(format('%s.%s', p_within, v_given.key), v_given.value, k);
  END LOOP;
  IF p_required THEN
    SELECT name INTO v_missing FROM postrider._known_keys
    WHERE protocol = p_protocol AND path = p_path AND scope <> p_but AND required AND NOT p_map ? name
    ORDER BY position LIMIT 1;
    IF FOUND THEN
      PERFORM postrider._invalid(format('%s.%s', p_within, v_missing), 'is required');
    END IF;
  END IF;
END $$;

CREATE FUNCTION postrider._check_protocol(p_protocol text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM postrider._known_keys WHERE protocol = p_protocol) THEN
    PERFORM postrider._invalid('protocol', 'must be one of '
      || (SELECT string_agg(p.protocol, ', ' ORDER BY p.first) FROM (
            SELECT protocol, min(position) AS first FROM postrider._known_keys GROUP BY protocol) AS p));
  END IF;
END $$;

-- An endpoint's config; errors name the field as `config.<key>`.
CREATE FUNCTION postrider._check_config(p_protocol text, p_config jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._check_protocol(p_protocol);
  PERFORM postrider._checked_depth('config', p_config);
  PERFORM postrider._check_keys(p_protocol, 'config', '', 'message', p_config, true);
  IF p_protocol = 'http' THEN
    IF p_config ? 'auth' AND EXISTS (
         SELECT FROM jsonb_object_keys(coalesce(p_config->'headers', '{}')) AS h WHERE lower(h) = 'authorization') THEN
      PERFORM postrider._invalid('config.headers.authorization', 'cannot stand beside config.auth');
    END IF;
    IF p_config->>'cloudevents' = 'structured' AND EXISTS (
         SELECT FROM jsonb_object_keys(coalesce(p_config->'headers', '{}')) AS h WHERE lower(h) = 'content-type') THEN
      PERFORM postrider._invalid('config.headers.content-type',
        'cannot stand beside structured cloudevents, which have a content type of their own');
    END IF;
    IF p_config ? 'cloudevents_type' AND NOT p_config ? 'cloudevents' THEN
      PERFORM postrider._invalid('config.cloudevents_type', 'needs config.cloudevents');
    END IF;
  END IF;
END $$;

-- An attempt has to end before it is taken for stuck.
CREATE FUNCTION postrider._check_timeout(p_field text, p_seconds jsonb, p_limit interval) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF coalesce((p_seconds #>> '{}')::numeric, 10) >= extract(epoch FROM p_limit) THEN
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
  v_name text;
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
  -- A file sink writes them as JSON strings, which can hold anything.
  IF p_protocol = 'http' THEN
    PERFORM postrider._check_headers(p_field, p_headers);
    FOR v_name IN SELECT key FROM jsonb_object_keys(p_headers) AS key ORDER BY key COLLATE "C" LOOP
      IF lower(v_name) = 'host' THEN
        PERFORM postrider._invalid(format('%s.%s', p_field, v_name), 'can be set by the endpoint only');
      ELSIF postrider._keeps_header(p_config, p_override_headers, v_name) THEN
        PERFORM postrider._invalid(format('%s.%s', p_field, v_name),
          'is set by the endpoint, which does not let messages replace it');
      END IF;
    END LOOP;
  END IF;
END $$;

-- A message's options. What an endpoint requires, a message need not repeat.
CREATE FUNCTION postrider._check_message_options(
  p_field text, p_protocol text, p_config jsonb, p_options jsonb, p_stale_recovery_timeout interval
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._checked_depth(p_field, p_options);
  PERFORM postrider._check_keys(p_protocol, p_field, '', 'endpoint', p_options, false);
  PERFORM postrider._check_timeout(p_field || '.timeout', coalesce(p_options->'timeout', p_config->'timeout'),
    p_stale_recovery_timeout);
END $$;

-- Checks a retry policy and returns it as it is kept: without max_retries, null when there is none.
CREATE FUNCTION postrider._checked_retry_policy(p_policy jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  v_field text;
  v_entry record;
BEGIN
  IF p_policy IS NULL OR p_policy = 'null' THEN
    RETURN '{}';
  END IF;
  PERFORM postrider._checked_depth('retry_policy', p_policy);
  IF NOT postrider._is_object(p_policy) THEN
    PERFORM postrider._invalid('retry_policy', 'must be an object');
  END IF;
  IF p_policy ?& ARRAY['max_attempts', 'max_retries'] THEN
    PERFORM postrider._invalid('retry_policy.max_retries', 'cannot be given beside max_attempts');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_policy) ORDER BY key COLLATE "C" LOOP
    v_field := 'retry_policy.' || v_given.key;
    CASE
      WHEN v_given.key = 'max_attempts' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 1001);
      WHEN v_given.key = 'max_retries' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 1000);
      WHEN v_given.key = 'backoff' THEN
        PERFORM postrider._check_choice(v_field, v_given.value,
          ARRAY['exponential', 'linear', 'fixed', 'quadratic'],
          'must be "exponential", "linear", "fixed" or "quadratic"');
      WHEN v_given.key IN ('base_delay_seconds', 'max_delay_seconds', 'increment_seconds') THEN
        PERFORM postrider._check_number(v_field, v_given.value, 0, 86400);
      WHEN v_given.key = 'multiplier' THEN
        PERFORM postrider._check_number(v_field, v_given.value, 1, 1000);
      WHEN v_given.key = 'jitter' THEN
        PERFORM postrider._check_number(v_field, v_given.value, 0, 1);
      WHEN v_given.key = 'schedule_seconds' THEN
        IF jsonb_typeof(v_given.value) <> 'array' OR jsonb_array_length(v_given.value) NOT BETWEEN 1 AND 1000 THEN
          PERFORM postrider._invalid(v_field, 'must be a list of 1 to 1000 delays in seconds');
        END IF;
        FOR v_entry IN SELECT item, n FROM jsonb_array_elements(v_given.value) WITH ORDINALITY AS a (item, n) LOOP
          PERFORM postrider._check_number(format('%s[%s]', v_field, v_entry.n - 1), v_entry.item, 0, 86400);
        END LOOP;
      ELSE
        PERFORM postrider._invalid(v_field, 'is not known here; known are: max_attempts, max_retries, backoff, '
          'base_delay_seconds, max_delay_seconds, increment_seconds, multiplier, jitter, schedule_seconds');
    END CASE;
  END LOOP;
  IF p_policy ? 'max_retries' THEN
    RETURN p_policy - 'max_retries' || jsonb_build_object('max_attempts', (p_policy->>'max_retries')::integer + 1);
  END IF;
  RETURN p_policy;
END $$;

CREATE FUNCTION postrider._check_rate_limit(p_field text, p_limit jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  v_path text;
BEGIN
  IF NOT postrider._is_object(p_limit) THEN
    PERFORM postrider._invalid(p_field, 'must be an object like {"limit":10,"interval":"second"}');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_limit) ORDER BY key COLLATE "C" LOOP
    v_path := format('%s.%s', p_field, v_given.key);
    CASE
      WHEN v_given.key IN ('limit', 'burst') THEN
        PERFORM postrider._check_whole(v_path, v_given.value, 1, 1000000);
      WHEN v_given.key = 'interval' THEN
        PERFORM postrider._check_choice(v_path, v_given.value, ARRAY['second', 'minute', 'hour'],
          'must be "second", "minute" or "hour"');
      ELSE
        PERFORM postrider._invalid(v_path, 'is not known here; known are: limit, interval, burst');
    END CASE;
  END LOOP;
  IF NOT p_limit ? 'limit' THEN
    PERFORM postrider._invalid(p_field || '.limit', 'is required');
  END IF;
  IF NOT p_limit ? 'interval' THEN
    PERFORM postrider._invalid(p_field || '.interval', 'is required');
  END IF;
END $$;

CREATE FUNCTION postrider._check_header_names(p_field text, p_names jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_item record;
  v_broken text;
BEGIN
  IF jsonb_typeof(p_names) <> 'array' OR jsonb_array_length(p_names) > 100 THEN
    PERFORM postrider._invalid(p_field, 'must be a list of at most 100 names of headers');
  END IF;
  FOR v_item IN SELECT item, n FROM jsonb_array_elements(p_names) WITH ORDINALITY AS a (item, n) LOOP
    v_broken := CASE WHEN jsonb_typeof(v_item.item) = 'string' THEN postrider._broken_header(v_item.item #>> '{}', '')
                     ELSE 'must be a string' END;
    IF v_broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s[%s]', p_field, v_item.n - 1), v_broken);
    END IF;
  END LOOP;
  PERFORM postrider._check_none_twice(p_field, ARRAY(SELECT jsonb_array_elements_text(p_names)));
END $$;

-- Checks the options of an endpoint with this protocol and config, and returns them as they are kept.
CREATE FUNCTION postrider._checked_options(p_protocol text, p_config jsonb, p_options jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_of_auth bigint;
  v_given record;
  v_field text;
BEGIN
  IF p_options IS NULL OR p_options = 'null' THEN
    RETURN '{}';
  END IF;
  PERFORM postrider._checked_depth('options', p_options);
  IF NOT postrider._is_object(p_options) THEN
    PERFORM postrider._invalid('options', 'must be an object');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_options) ORDER BY key COLLATE "C" LOOP
    v_field := 'options.' || v_given.key;
    CASE v_given.key
      WHEN 'durability' THEN
        PERFORM postrider._check_choice(v_field, v_given.value, ARRAY['durable'], 'must be "durable"');
      WHEN 'max_in_flight' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 1, 10000);
      WHEN 'rate_limit' THEN
        PERFORM postrider._check_rate_limit(v_field, v_given.value);
      WHEN 'on_dead' THEN
        PERFORM postrider._check_choice(v_field, v_given.value, ARRAY['continue', 'hold'],
          'must be "continue" or "hold"');
      WHEN 'key_scope' THEN
        PERFORM postrider._check_choice(v_field, v_given.value, ARRAY['endpoint', 'global'],
          'must be "endpoint" or "global"');
      WHEN 'max_queue_size' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 9223372036854775807);
      WHEN 'override_headers' THEN
        PERFORM postrider._check_header_names(v_field, v_given.value);
      ELSE
        PERFORM postrider._invalid(v_field, 'is not known here; known are: durability, max_in_flight, rate_limit, '
          'on_dead, key_scope, max_queue_size, override_headers');
    END CASE;
  END LOOP;
  IF p_options ? 'override_headers' THEN
    IF p_protocol <> 'http' THEN
      PERFORM postrider._invalid('options.override_headers', 'only http endpoints have it');
    END IF;
    SELECT n - 1 INTO v_of_auth FROM jsonb_array_elements_text(p_options->'override_headers') WITH ORDINALITY AS a (name, n)
    WHERE lower(name) = 'authorization' AND p_config ? 'auth';
    IF FOUND THEN
      PERFORM postrider._invalid(format('options.override_headers[%s]', v_of_auth),
        'is set by config.auth and cannot be replaced');
    END IF;
  END IF;
  RETURN p_options;
END $$;
