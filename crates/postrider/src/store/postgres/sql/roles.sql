-- Roles and rights. PUBLIC has none; three roles have what their work needs, and none of them can read secrets.

REVOKE ALL ON SCHEMA postrider FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA postrider FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA postrider FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA postrider FROM PUBLIC;
DO $$
DECLARE
  v_type regtype;
BEGIN
  FOR v_type IN
    SELECT t.oid FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
    WHERE t.typnamespace = 'postrider'::regnamespace AND c.relkind = 'c'
  LOOP
    EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', v_type);
  END LOOP;
END $$;

-- The statements that create the roles and grant their rights. They may be run by another role with any search_path, so every name
-- has its schema.
CREATE FUNCTION postrider._role_statements() RETURNS SETOF text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_role text;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['postrider_admin', 'postrider_application', 'postrider_monitor'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
      RETURN NEXT format('CREATE ROLE %I NOLOGIN', v_role);
    END IF;
  END LOOP;
  RETURN NEXT 'GRANT USAGE ON SCHEMA postrider TO postrider_admin, postrider_application, postrider_monitor';
  -- Everything with a public name; _now and the functions below run in capture triggers with the writer's rights.
  RETURN QUERY SELECT format('GRANT EXECUTE ON FUNCTION %s TO postrider_admin', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname !~ '^_' ORDER BY p.oid;
  RETURN QUERY SELECT format('GRANT EXECUTE ON FUNCTION %s TO postrider_application', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN (
      'send', 'send_with_options', 'send_bytes', 'send_batch', 'send_batch_with_priority', 'send_batch_with_options',
      'enable_fast_mode', 'publish', 'publish_batch', 'cancel_message', 'message') ORDER BY p.oid;
  RETURN QUERY SELECT format('GRANT EXECUTE ON FUNCTION %s TO postrider_admin, postrider_application', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN (
      '_now', '_send_captured', '_send_captured_row', '_note_skipped_capture', '_program_send',
      '_program_send_batch', '_program_publish') ORDER BY p.oid;
  RETURN QUERY SELECT format('GRANT EXECUTE ON FUNCTION %s TO postrider_admin', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN (
      '_capture_row', '_capture_statement', '_capture_name', '_checked_capture') ORDER BY p.oid;
  RETURN QUERY SELECT format('GRANT EXECUTE ON FUNCTION %s TO postrider_monitor', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN (
      'health_check', 'get_worker_status', 'get_endpoint_health', 'metrics', 'show_config', 'dlq_summary') ORDER BY p.oid;
  -- _key and _turn are in an index of the queue: a session that read the queue and may not call them cannot use the index, not even
  -- when it sends.
  RETURN QUERY SELECT format('GRANT EXECUTE ON FUNCTION %s TO postrider_admin, postrider_monitor', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN (
      '_endpoint_statuses', '_as_json', '_key', '_turn') ORDER BY p.oid;
  RETURN NEXT 'GRANT SELECT ON postrider.queue, postrider.dlq, postrider.archive, postrider.attempts, '
    'postrider.event_types, postrider.subscriptions, postrider.event_log, postrider.settings, postrider.nodes, '
    'postrider.messages, postrider.endpoint_status, postrider.replays TO postrider_admin';
  RETURN NEXT 'GRANT SELECT ON postrider.event_log, postrider.settings, postrider.nodes, postrider.endpoint_status, '
    'postrider.replays TO postrider_monitor';
  RETURN NEXT 'GRANT SELECT (name, description, created_at) ON postrider.event_types TO postrider_monitor';
  RETURN NEXT 'GRANT SELECT (id, pattern, endpoint_id, enabled, created_at) ON postrider.subscriptions TO postrider_monitor';
  -- Without config, which has secrets.
  RETURN NEXT 'GRANT SELECT (id, name, protocol, retry_policy, options, disabled_by, paused, revision, created_at, '
    'dropped_at) ON postrider.endpoints TO postrider_admin, postrider_monitor';
  RETURN NEXT 'GRANT SELECT (id, endpoint_id, due_at, created_at, attempts, attempts_before, place, priority, losses, '
    'scheduled_at, expires_at, correlation_id, content_type, ordering_key, idempotency_key, event_type, last_error) '
    'ON postrider.queue TO postrider_monitor';
  RETURN NEXT 'GRANT SELECT (id, message_id, endpoint_id, status, reason, died_at, errors, holds_key, bytes, priority, '
    'attempts, losses, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type, '
    'last_error, content_type) ON postrider.dlq TO postrider_monitor';
  RETURN NEXT 'GRANT SELECT (id, endpoint_id, status, finished_at, created_at, priority, attempts, scheduled_at, '
    'expires_at, correlation_id, content_type, ordering_key, idempotency_key, event_type, last_error) '
    'ON postrider.archive TO postrider_monitor';
  RETURN NEXT 'GRANT SELECT (message_id, number, node_id, started_at, duration, outcome, class, error, response_status) '
    'ON postrider.attempts TO postrider_monitor';
  RETURN NEXT 'GRANT SELECT (id, endpoint, state, priority, attempts, due_at, created_at, scheduled_at, expires_at, '
    'finished_at, ordering_key, idempotency_key, correlation_id, event_type, content_type, last_error, dlq_id) '
    'ON postrider.messages TO postrider_monitor';
END $$;

-- Creates the roles and grants their rights, as far as this role may. Returns the statements that need another role; none when all is
-- done. `postrider migrate` calls it last and prints them.
CREATE FUNCTION postrider._install_roles() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  v_statement text;
BEGIN
  FOR v_statement IN SELECT s FROM postrider._role_statements() AS s LOOP
    BEGIN
      EXECUTE v_statement;
    EXCEPTION
      -- Roles belong to the whole server: another migration may have just created them.
      WHEN duplicate_object OR unique_violation THEN
        NULL;
      WHEN insufficient_privilege OR undefined_object THEN
        RETURN NEXT v_statement;
    END;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION postrider._role_statements(), postrider._install_roles() FROM PUBLIC;
