-- Checks of JSON that is sent. json/mod.rs has the same rules.

-- Is it nested deeper than nodes can read? One pass over the value.
CREATE FUNCTION postrider._is_too_deep(p_value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT jsonb_path_exists(p_value, 'strict $.**{128} ? (@.type() == "array" || @.type() == "object")') $$;

-- The same for every member of every object of a list.
CREATE FUNCTION postrider._has_too_deep_members(p_list jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT jsonb_path_exists(p_list, 'strict $.**{130} ? (@.type() == "array" || @.type() == "object")') $$;

-- Returns the value.
CREATE FUNCTION postrider._checked_depth(p_field text, p_value jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF postrider._is_too_deep(p_value) THEN
    PERFORM postrider._invalid(p_field, 'is more than 128 levels deep');
  END IF;
  RETURN p_value;
END $$;

-- The same for text that may not be JSON: without strings only brackets matter, and each round removes the innermost ones.
CREATE FUNCTION postrider._is_too_deep_text(p_text text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  -- Most texts have far fewer brackets, and counting them is fast.
  IF 2 * octet_length(p_text) - octet_length(replace(p_text, '[', '')) - octet_length(replace(p_text, '{', '')) <= 128 THEN
    RETURN false;
  END IF;
  p_text := translate(regexp_replace(regexp_replace(p_text, E'"(\\\\.|[^"\\\\])*"', '', 'g'), '[^][{}]+', '', 'g'), '{}', '[]');
  FOR i IN 1 .. 128 LOOP
    EXIT WHEN p_text = '';
    p_text := replace(p_text, '[]', '');
  END LOOP;
  RETURN p_text <> '';
END $$;

-- Must a payload of this content type be JSON?
CREATE FUNCTION postrider._is_json(p_content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT lower(btrim(split_part(p_content_type, ';', 1))) ~ '^application/json$|[+]json$' $$;

-- Checks bytes with a JSON content type. As json, not jsonb, which would refuse some numbers and escapes.
CREATE FUNCTION postrider._check_payload(p_field text, p_content_type text, p_payload bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_text text;
  v_too_deep boolean;
BEGIN
  IF p_payload IS NULL OR postrider._is_json(p_content_type) IS NOT TRUE THEN
    RETURN;
  END IF;
  BEGIN
    v_text := convert_from(p_payload, 'UTF8');
    v_too_deep := postrider._is_too_deep_text(v_text);
    -- The server's parser would fail with another error.
    IF NOT v_too_deep THEN
      PERFORM v_text::json;
    END IF;
  EXCEPTION WHEN data_exception THEN
    PERFORM postrider._invalid(p_field, 'is not JSON');
  END;
  IF v_too_deep THEN
    PERFORM postrider._invalid(p_field, 'is more than 128 levels deep');
  END IF;
END $$;
