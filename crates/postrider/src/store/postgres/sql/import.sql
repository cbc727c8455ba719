-- Import of a whole store, into an empty one, in one transaction.

-- Refuses a store that is not empty, or that a node runs on: the node would keep the store's old name.
CREATE FUNCTION postrider._check_empty() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_found text := concat_ws(', ',
    CASE WHEN EXISTS (SELECT FROM postrider.endpoints) THEN 'endpoints' END,
    CASE WHEN EXISTS (SELECT FROM postrider.queue) THEN 'queued messages' END,
    CASE WHEN EXISTS (SELECT FROM postrider.dlq) THEN 'dead letters' END,
    CASE WHEN EXISTS (SELECT FROM postrider.archive) THEN 'archived messages' END,
    CASE WHEN EXISTS (SELECT FROM postrider.attempts) THEN 'attempts' END,
    CASE WHEN EXISTS (SELECT FROM postrider._reservations) THEN 'reserved idempotency keys' END,
    CASE WHEN EXISTS (SELECT FROM postrider.replays) THEN 'replays' END,
    CASE WHEN EXISTS (SELECT FROM postrider._replayed) THEN 'replayed messages' END,
    CASE WHEN EXISTS (SELECT FROM postrider.event_types) THEN 'event types' END,
    CASE WHEN EXISTS (SELECT FROM postrider.subscriptions) THEN 'subscriptions' END,
    CASE WHEN EXISTS (SELECT FROM postrider.settings) THEN 'changed settings' END);
BEGIN
  PERFORM postrider._refuse_beside_nodes('import again');
  IF v_found <> '' THEN
    PERFORM postrider._conflict(format(
      'this store is not empty, it has %s; import into another database, or make this one new: '
      'DROP SCHEMA postrider CASCADE, then `postrider migrate`', v_found));
  END IF;
END $$;

-- Locks the store until the import ends. A node that starts meanwhile waits for it.
CREATE FUNCTION postrider._begin_import(p_archive_months text[], p_attempt_months text[]) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '10s' AS $$
BEGIN
  LOCK TABLE postrider._store IN ACCESS EXCLUSIVE MODE;
  LOCK TABLE postrider.nodes IN EXCLUSIVE MODE;
  PERFORM postrider._check_empty();
  PERFORM postrider._hold_bound('claims');
  -- Left by nodes that have ended.
  DELETE FROM postrider.nodes;
  DELETE FROM postrider.event_log;
  -- Before the rows, which would have to be moved otherwise.
  PERFORM postrider._make_month('archive', month::timestamp) FROM unnest(p_archive_months) AS month;
  PERFORM postrider._make_month('attempts', month::timestamp) FROM unnest(p_attempt_months) AS month;
  -- Imported letters keep their status.
  ALTER TABLE postrider.dlq DISABLE TRIGGER dlq_begins_failed;
END $$;

-- Inserts an endpoint with what nodes wrote about it.
CREATE FUNCTION postrider._import_endpoint() RETURNS trigger LANGUAGE plpgsql SET search_path = postrider, pg_temp AS $$
BEGIN
  INSERT INTO postrider.endpoints (id, name, protocol, config, retry_policy, options, disabled_by, paused, revision,
    created_at, dropped_at) OVERRIDING SYSTEM VALUE
  VALUES (NEW.id, NEW.name, NEW.protocol, NEW.config, NEW.retry_policy, NEW.options, NEW.disabled_by, NEW.paused,
    NEW.revision, NEW.created_at, NEW.dropped_at);
  INSERT INTO postrider._circuits (endpoint_id, state, epoch, until, probe_node)
  VALUES (NEW.id, NEW.circuit, NEW.circuit_epoch, NEW.circuit_until, NEW.circuit_probe_node);
  INSERT INTO postrider._results (endpoint_id) VALUES (NEW.id);
  INSERT INTO postrider._holds (endpoint_id, until) SELECT NEW.id, NEW.held_until WHERE NEW.held_until IS NOT NULL;
  INSERT INTO postrider._rates (endpoint_id, position)
  SELECT NEW.id, NEW.rate_position WHERE NEW.rate_position IS NOT NULL;
  RETURN NEW;
END $$;
CREATE TRIGGER endpoints_imported INSTEAD OF INSERT ON postrider._endpoints FOR EACH ROW
EXECUTE FUNCTION postrider._import_endpoint();

-- The next id is above all that were ever assigned.
CREATE FUNCTION postrider._continue_ids(p_sequence text, p_last jsonb) RETURNS void LANGUAGE sql AS $$
  SELECT setval(p_sequence::regclass, greatest(p_last::bigint, 1), p_last::bigint > 0)
$$;

CREATE FUNCTION postrider._end_import(p_name text, p_paused text, p_last_ids jsonb, p_rows jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  ALTER TABLE postrider.dlq ENABLE TRIGGER dlq_begins_failed;
  PERFORM postrider._continue_ids('postrider.message_ids', p_last_ids->'message');
  PERFORM postrider._continue_ids(pg_get_serial_sequence('postrider.endpoints', 'id'), p_last_ids->'endpoint');
  PERFORM postrider._continue_ids(pg_get_serial_sequence('postrider.nodes', 'id'), p_last_ids->'node');
  PERFORM postrider._continue_ids(pg_get_serial_sequence('postrider.dlq', 'id'), p_last_ids->'dead_letter');
  PERFORM postrider._continue_ids(pg_get_serial_sequence('postrider.event_log', 'id'), p_last_ids->'event');
  PERFORM postrider._continue_ids(pg_get_serial_sequence('postrider.subscriptions', 'id'), p_last_ids->'subscription');
  PERFORM postrider._continue_ids(pg_get_serial_sequence('postrider.replays', 'id'), p_last_ids->'replay');
  UPDATE postrider._store SET name = p_name, paused_because = p_paused;
  PERFORM postrider._refresh_limits();
  PERFORM postrider._recount_queue();
  PERFORM postrider._changed('store.imported', NULL, p_rows);
END $$;
