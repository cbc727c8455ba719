-- What JSON has to be on every way in. json/mod.rs says the same.

-- Lists and objects, one within the other, deeper than nodes read them? The server walks over the value once.
CREATE FUNCTION postrider._is_too_deep(p_value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT jsonb_path_exists(p_value, 'strict $.**{128} ? (@.type() == "array" || @.type() == "object")') $$;

-- The same of every member of every object of a list.
CREATE FUNCTION postrider._has_too_deep_members(p_list jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT jsonb_path_exists(p_list, 'strict $.**{130} ? (@.type() == "array" || @.type() == "object")') $$;

-- The value itself.
CREATE FUNCTION postrider._checked_depth(p_field text, p_value jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF postrider._is_too_deep(p_value) THEN
    PERFORM postrider._invalid(p_field, 'is more than 128 levels deep');
  END IF;
  RETURN p_value;
END $$;

-- The same of text that may not be JSON. Without its strings only the brackets count, and each round takes the innermost ones.
CREATE FUNCTION postrider._is_too_deep_text(p_text text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  -- Most have far fewer brackets, and counting is quick.
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

-- Does a payload of this content type have to be JSON?
CREATE FUNCTION postrider._is_json(p_content_type text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT lower(btrim(split_part(p_content_type, ';', 1))) ~ '^application/json$|[+]json$' $$;

-- Bytes that say they are JSON. The type json, not jsonb: any number is taken, and any escape.
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
    -- The server's own parser would give up with other words.
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
