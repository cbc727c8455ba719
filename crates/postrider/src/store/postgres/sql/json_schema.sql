-- JSON Schema, as far as event types enforce it. json/ and pubsub/ of the program have the same rules; tests compare the two.

-- Checks a schema: keywords that are not enforced are refused.
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
        PERFORM postrider._invalid(v_field, 'unknown field; expected one of: type, enum, const, required, properties, '
          'additionalProperties, items, minimum, maximum, minLength, maxLength, minItems, maxItems');
    END CASE;
  END LOOP;
END $$;

-- Where and why a value violates a schema, `payload.total: must be at least 0`; null when it does not.
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
