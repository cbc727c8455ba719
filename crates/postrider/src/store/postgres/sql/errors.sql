-- Errors that functions raise. The message says field and rule; COLUMN carries the field for programs.

CREATE FUNCTION postrider._invalid(p_field text, p_rule text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('%s: %s', p_field, p_rule), COLUMN = p_field;
END $$;

-- Without a name the field is missing.
CREATE FUNCTION postrider._unknown(p_what text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_name IS NULL THEN
    PERFORM postrider._invalid(replace(p_what, ' ', '_'), 'is required');
  END IF;
  RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('there is no %s "%s"', p_what, p_name),
    COLUMN = p_what, CONSTRAINT = p_name;
END $$;

CREATE FUNCTION postrider._exists_already(p_what text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('%s "%s" exists already', p_what, p_name),
    COLUMN = p_what, CONSTRAINT = p_name;
END $$;

CREATE FUNCTION postrider._too_large(p_field text, p_size bigint, p_limit bigint, p_setting text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '54000',
    MESSAGE = format('%s: %s is more than %s allows, which is %s', p_field, p_size, p_setting, p_limit),
    COLUMN = p_field, CONSTRAINT = p_setting,
    DETAIL = json_build_object('size', p_size, 'limit', p_limit)::text;
END $$;

CREATE FUNCTION postrider._conflict(p_sentence text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = p_sentence;
END $$;

CREATE FUNCTION postrider._is_read_committed() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
END $$;

-- A claim changes no message, so a transaction with an old snapshot cannot see that a node is delivering one.
CREATE FUNCTION postrider._need_read_committed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT postrider._is_read_committed() THEN
    PERFORM postrider._conflict(format('this needs READ COMMITTED: at %s a transaction does not see which messages nodes '
      'are delivering', upper(current_setting('transaction_isolation'))));
  END IF;
END $$;
