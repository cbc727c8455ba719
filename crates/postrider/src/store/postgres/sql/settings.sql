-- Settings and the system pause. Every change raises _store.version and notifies the nodes.

CREATE FUNCTION postrider._setting(p_name text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce((SELECT value FROM postrider.settings WHERE name = p_name),
                  (SELECT default_value FROM postrider._known_settings WHERE name = p_name));
END $$;

-- Serializes changes of endpoints, settings and the pause. Called before anything else is locked.
CREATE FUNCTION postrider._begin_change() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM postrider._store FOR UPDATE;
END $$;

-- Logs the change, raises the version, and notifies the nodes.
CREATE FUNCTION postrider._changed(p_kind text, p_subject text, p_detail jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._log_event(p_kind, p_subject, p_detail);
  UPDATE postrider._store SET version = version + 1;
  PERFORM pg_notify('postrider', 'config');
END $$;

CREATE FUNCTION postrider._check_setting(p_name text, p_value text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v postrider._known_settings;
BEGIN
  SELECT * INTO v FROM postrider._known_settings WHERE name = p_name;
  IF NOT FOUND THEN
    PERFORM postrider._invalid(coalesce(p_name, 'name'), 'unknown field; expected one of: '
      || (SELECT string_agg(name, ', ' ORDER BY position, name) FROM postrider._known_settings));
  END IF;
  IF v.choices IS NOT NULL THEN
    IF p_value IS NULL OR p_value <> ALL (v.choices) THEN
      PERFORM postrider._invalid(p_name, 'must be one of ' || array_to_string(v.choices, ', '));
    END IF;
  ELSIF p_value IS NULL OR p_value !~ E'^\\+?[0-9]{1,30}$' OR p_value::numeric NOT BETWEEN v.min AND v.max THEN
    PERFORM postrider._invalid(p_name, format('must be a whole number from %s to %s', v.min, v.max));
  END IF;
END $$;

-- Writes the row of _limits. `postrider migrate` calls it after it has filled _known_settings.
CREATE FUNCTION postrider._refresh_limits() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._limits AS l (max_queue_size, max_payload_bytes, max_headers_bytes, max_key_bytes,
    max_batch_messages, stale_recovery_timeout, archive, attempt_log, idempotency_retention)
  VALUES (
    postrider._setting('max_queue_size')::bigint, postrider._setting('max_payload_bytes')::bigint,
    postrider._setting('max_headers_bytes')::bigint, postrider._setting('max_key_bytes')::bigint,
    postrider._setting('max_batch_messages')::bigint,
    postrider._setting('stale_recovery_timeout')::integer * interval '1 second',
    postrider._setting('archive'), postrider._setting('attempt_log'),
    postrider._setting('idempotency_retention')::integer * interval '1 second')
  ON CONFLICT (single) DO UPDATE SET max_queue_size = excluded.max_queue_size,
    max_payload_bytes = excluded.max_payload_bytes, max_headers_bytes = excluded.max_headers_bytes,
    max_key_bytes = excluded.max_key_bytes, max_batch_messages = excluded.max_batch_messages,
    stale_recovery_timeout = excluded.stale_recovery_timeout, archive = excluded.archive,
    attempt_log = excluded.attempt_log, idempotency_retention = excluded.idempotency_retention;
END $$;

-- All or none: every value is checked before the first is written. {"name": "value", …}; numbers need no quotes.
CREATE FUNCTION postrider._configure(p_changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_change record;
  v_stuck record;
BEGIN
  PERFORM postrider._begin_change();
  FOR v_change IN SELECT key, value FROM jsonb_each_text(p_changes) ORDER BY key COLLATE "C" LOOP
    PERFORM postrider._check_setting(v_change.key, v_change.value);
  END LOOP;
  SELECT name, (config->>'timeout')::numeric AS timeout INTO v_stuck FROM postrider.endpoints
  WHERE dropped_at IS NULL AND p_changes ? 'stale_recovery_timeout'
    AND coalesce((config->>'timeout')::numeric, 10) >= (p_changes->>'stale_recovery_timeout')::numeric
  ORDER BY id LIMIT 1;
  IF FOUND THEN
    PERFORM postrider._conflict(format(
      'stale_recovery_timeout: endpoint "%s" has a timeout of %s s, which must stay below it',
      v_stuck.name, trim_scale(coalesce(v_stuck.timeout, 10))));
  END IF;
  INSERT INTO postrider.settings AS s (name, value) SELECT key, value FROM jsonb_each_text(p_changes)
  ON CONFLICT (name) DO UPDATE SET value = excluded.value;
  PERFORM postrider._changed('settings.changed', NULL,
    (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each_text(p_changes)));
END $$;

CREATE FUNCTION postrider.configure(name text, value text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  -- First, because a NULL name cannot be a JSON key.
  PERFORM postrider._check_setting(configure.name, configure.value);
  PERFORM postrider._configure(jsonb_build_object(configure.name, configure.value));
END $$;

CREATE FUNCTION postrider.show_config()
RETURNS TABLE (name text, value text, default_value text, min numeric, max numeric, choices text[], unit text,
               meaning text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
  SELECT k.name, coalesce(s.value, k.default_value), k.default_value, k.min, k.max, k.choices, k.unit, k.meaning
  FROM postrider._known_settings k LEFT JOIN postrider.settings s USING (name) ORDER BY k.position, k.name
$$;

-- Stops all dispatch until resume(); survives restarts.
CREATE FUNCTION postrider.pause(reason text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  IF reason IS NULL THEN
    PERFORM postrider._invalid('reason', 'is required');
  END IF;
  UPDATE postrider._store SET paused_because = reason;
  PERFORM postrider._changed('system.paused', NULL, jsonb_build_object('reason', reason));
END $$;

CREATE FUNCTION postrider.resume() RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  UPDATE postrider._store SET paused_because = NULL WHERE paused_because IS NOT NULL;
  IF FOUND THEN
    PERFORM postrider._changed('system.resumed', NULL, '{}');
  END IF;
END $$;
