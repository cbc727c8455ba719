-- Capture: triggers that send the changes of an application's table. All but the checks run with the caller's rights: capturing a
-- table needs the right to create triggers on it, and writing to it needs the right to send. TRUNCATE is not captured.

-- Checks the endpoint, and the headers of all messages.
CREATE FUNCTION postrider._check_captured(p_endpoint text, p_headers jsonb) RETURNS void LANGUAGE plpgsql STABLE
AS $$
DECLARE
  v postrider.endpoints;
BEGIN
  IF p_endpoint IS NULL THEN
    PERFORM postrider._invalid('p_endpoint', 'is required');
  END IF;
  SELECT * INTO v FROM postrider.endpoints WHERE name = p_endpoint AND dropped_at IS NULL;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', p_endpoint);
  END IF;
  IF p_headers IS NOT NULL THEN
    PERFORM postrider._check_message_headers('p_options.headers', v.protocol, v.config, v.options->'override_headers',
      max_headers_bytes, p_headers)
    FROM postrider._limits;
  END IF;
END $$;

CREATE FUNCTION postrider._note_skipped_capture() RETURNS void LANGUAGE sql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$ SELECT postrider._count('capture_skipped', 1) $$;

-- Sends one captured change.
CREATE FUNCTION postrider._send_captured(
  p_endpoint text, p_operation text, p_table text, p_old jsonb, p_new jsonb, p_options jsonb, p_key text
) RETURNS void LANGUAGE plpgsql SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider.send_with_options(p_endpoint,
    jsonb_build_object('op', lower(p_operation), 'table', p_table, 'at', postrider._now(),
      'txid', pg_current_xact_id()::text::bigint, 'old', p_old, 'new', p_new),
    coalesce((p_options->>'priority')::integer, 0), p_ordering_key => p_key, p_headers => p_options->'headers');
END $$;

CREATE FUNCTION postrider._send_captured_row(
  p_endpoint text, p_operation text, p_table text, p_old record, p_new record, p_options jsonb
) RETURNS void LANGUAGE plpgsql SET search_path = postrider, pg_temp AS $$
DECLARE
  v_old jsonb := to_jsonb(p_old);
  v_new jsonb := to_jsonb(p_new);
  v_column text := p_options->>'ordering_key';
BEGIN
  -- Without its ordering key the message would be out of order.
  IF NOT coalesce(v_new, v_old) ? v_column THEN
    RAISE EXCEPTION USING ERRCODE = '22023', COLUMN = 'ordering_key', MESSAGE = format(
      'ordering_key: %s has no column "%s" any more; capture the table again with the new name of the column', p_table, v_column);
  END IF;
  PERFORM postrider._send_captured(p_endpoint, p_operation, p_table, v_old, v_new, p_options,
    coalesce(v_new, v_old)->>v_column);
END $$;

-- TG_ARGV: endpoint, options, and `partitioned` when rows come from partitions: messages name the partitioned table. on_refused =
-- skip: the statement succeeds without its message, also when the row cannot be stored as JSON.
CREATE FUNCTION postrider._capture_row() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
DECLARE
  v_options jsonb := TG_ARGV[1]::jsonb;
  v_table text := format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
BEGIN
  IF TG_ARGV[2] = 'partitioned' THEN
    SELECT format('%I.%I', n.nspname, c.relname) INTO v_table
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = pg_partition_root(TG_RELID);
  END IF;
  IF v_options->>'on_refused' = 'skip' THEN
    BEGIN
      PERFORM postrider._send_captured_row(TG_ARGV[0], TG_OP, v_table, OLD, NEW, v_options);
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR SQLSTATE '42704' OR SQLSTATE '55000' OR SQLSTATE '53400' THEN
      PERFORM postrider._note_skipped_capture();
    END;
  ELSE
    PERFORM postrider._send_captured_row(TG_ARGV[0], TG_OP, v_table, OLD, NEW, v_options);
  END IF;
  RETURN NULL;
END $$;

-- The same for a statement: old and new are lists of rows, in the same order. Only the trigger function sees these tables, so both
-- branches read them: without skip there is no subtransaction.
CREATE FUNCTION postrider._capture_statement() RETURNS trigger LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
DECLARE
  v_options jsonb := TG_ARGV[1]::jsonb;
  v_table text := format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
  v_old jsonb;
  v_new jsonb;
BEGIN
  IF v_options->>'on_refused' = 'skip' THEN
    BEGIN
      IF TG_OP <> 'INSERT' THEN
        v_old := (SELECT jsonb_agg(to_jsonb(o.*)) FROM old_rows AS o);
      END IF;
      IF TG_OP <> 'DELETE' THEN
        v_new := (SELECT jsonb_agg(to_jsonb(n.*)) FROM new_rows AS n);
      END IF;
      IF v_old IS NOT NULL OR v_new IS NOT NULL THEN
        PERFORM postrider._send_captured(TG_ARGV[0], TG_OP, v_table, v_old, v_new, v_options, NULL);
      END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR SQLSTATE '42704' OR SQLSTATE '55000' OR SQLSTATE '53400' THEN
      PERFORM postrider._note_skipped_capture();
    END;
    RETURN NULL;
  END IF;
  IF TG_OP <> 'INSERT' THEN
    v_old := (SELECT jsonb_agg(to_jsonb(o.*)) FROM old_rows AS o);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    v_new := (SELECT jsonb_agg(to_jsonb(n.*)) FROM new_rows AS n);
  END IF;
  IF v_old IS NOT NULL OR v_new IS NOT NULL THEN
    PERFORM postrider._send_captured(TG_ARGV[0], TG_OP, v_table, v_old, v_new, v_options, NULL);
  END IF;
  RETURN NULL;
END $$;

-- Checks a capture; returns the operations in capitals.
CREATE FUNCTION postrider._checked_capture(
  p_table regclass, p_endpoint text, p_operations text[], p_options jsonb, p_known text[]
) RETURNS text[] LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_operations text[] := ARRAY(SELECT DISTINCT upper(o) FROM unnest(p_operations) AS o ORDER BY 1);
  v_key text;
BEGIN
  IF p_table IS NULL THEN
    PERFORM postrider._invalid('p_table', 'is required');
  END IF;
  IF NOT EXISTS (SELECT FROM pg_class WHERE oid = p_table) THEN
    PERFORM postrider._unknown('table', p_table::text);
  END IF;
  IF (SELECT relnamespace = 'postrider'::regnamespace FROM pg_class WHERE oid = p_table) THEN
    PERFORM postrider._invalid('p_table', 'must not be one of Postrider''s own');
  END IF;
  PERFORM postrider._check_captured(p_endpoint, NULL);
  IF cardinality(v_operations) = 0 OR NOT v_operations <@ ARRAY['INSERT', 'UPDATE', 'DELETE'] THEN
    PERFORM postrider._invalid('p_operations', 'must be a list of insert, update and delete');
  END IF;
  IF p_options IS NOT NULL AND NOT postrider._is_object(p_options) THEN
    PERFORM postrider._invalid('p_options', 'must be an object');
  END IF;
  FOR v_key IN SELECT jsonb_object_keys(p_options) LOOP
    IF v_key <> ALL (p_known) THEN
      PERFORM postrider._invalid('p_options.' || v_key, 'unknown field; expected one of: ' || array_to_string(p_known, ', '));
    END IF;
  END LOOP;
  IF p_options ? 'on_refused' THEN
    PERFORM postrider._check_choice('p_options.on_refused', p_options->'on_refused', ARRAY['fail', 'skip'],
      'must be "fail" or "skip"');
  END IF;
  IF p_options ? 'priority' THEN
    PERFORM postrider._check_whole('p_options.priority', p_options->'priority', 0, 10);
  END IF;
  PERFORM postrider._check_captured(p_endpoint, p_options->'headers');
  IF p_options ? 'ordering_key' AND NOT EXISTS (
       SELECT FROM pg_attribute WHERE attrelid = p_table AND attnum > 0 AND NOT attisdropped
         AND attname = p_options->>'ordering_key') THEN
    PERFORM postrider._invalid('p_options.ordering_key', 'must be the name of a column of the table');
  END IF;
  RETURN v_operations;
END $$;

-- The trigger's name. The server would truncate a long one, and two endpoints would share a trigger.
CREATE FUNCTION postrider._capture_name(p_of text, p_endpoint text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = postrider, pg_temp AS $$
  SELECT CASE WHEN length(name) <= 63 THEN name ELSE left(name, 54) || '_' || left(md5(name), 8) END
  FROM (SELECT format('postrider_capture_%s_%s', p_of, p_endpoint)) AS whole (name)
$$;

-- One message per changed row: {op, table, at, txid, old, new}. Options: on_refused (fail or skip), priority,
-- headers, and ordering_key, the name of the column whose value is the message's ordering key.
CREATE FUNCTION postrider.capture_rows(
  p_table regclass, p_endpoint text, p_operations text[] DEFAULT ARRAY['insert', 'update', 'delete'],
  p_options jsonb DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SET search_path = postrider, pg_temp AS $$
DECLARE
  v_operations text[] := postrider._checked_capture(p_table, p_endpoint, p_operations, p_options,
    ARRAY['on_refused', 'priority', 'headers', 'ordering_key']);
BEGIN
  EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s FOR EACH ROW '
    'EXECUTE FUNCTION postrider._capture_row(%L, %L, %L)',
    postrider._capture_name('rows', p_endpoint), array_to_string(v_operations, ' OR '), p_table, p_endpoint,
    coalesce(p_options, '{}'),
    (SELECT CASE relkind WHEN 'p' THEN 'partitioned' ELSE '' END FROM pg_class WHERE oid = p_table));
END $$;

-- One message per statement, with all its rows; none when it changes no row.
CREATE FUNCTION postrider.capture_statements(
  p_table regclass, p_endpoint text, p_operations text[] DEFAULT ARRAY['insert', 'update', 'delete'],
  p_options jsonb DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SET search_path = postrider, pg_temp AS $$
DECLARE
  v_operations text[] := postrider._checked_capture(p_table, p_endpoint, p_operations, p_options,
    ARRAY['on_refused', 'priority', 'headers']);
  v_operation text;
  v_name text;
BEGIN
  -- Drop triggers of an earlier call with more operations.
  FOR v_name IN
    SELECT t.tgname FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) AS o
      JOIN pg_trigger t ON t.tgrelid = p_table AND t.tgname = postrider._capture_name(lower(o), p_endpoint)
    WHERE o <> ALL (v_operations)
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', v_name, p_table);
  END LOOP;
  FOREACH v_operation IN ARRAY v_operations LOOP
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON %s REFERENCING %s FOR EACH STATEMENT '
      'EXECUTE FUNCTION postrider._capture_statement(%L, %L)',
      postrider._capture_name(lower(v_operation), p_endpoint), v_operation, p_table,
      CASE v_operation WHEN 'INSERT' THEN 'NEW TABLE AS new_rows' WHEN 'DELETE' THEN 'OLD TABLE AS old_rows'
                       ELSE 'OLD TABLE AS old_rows NEW TABLE AS new_rows' END, p_endpoint, coalesce(p_options, '{}'));
  END LOOP;
END $$;

-- Drops all captures of a table; returns how many triggers.
CREATE FUNCTION postrider.uncapture(p_table regclass) RETURNS integer LANGUAGE plpgsql
SET search_path = postrider, pg_temp AS $$
DECLARE
  v_name text;
  v_count integer := 0;
BEGIN
  FOR v_name IN
    SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = p_table AND NOT t.tgisinternal AND p.pronamespace = 'postrider'::regnamespace
      AND p.proname IN ('_capture_row', '_capture_statement')
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', v_name, p_table);
    v_count := v_count + 1;
  END LOOP;
  RETURN v_count;
END $$;
