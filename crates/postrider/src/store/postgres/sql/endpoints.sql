-- Endpoints. Nodes never wait for operators here, whose transactions may stay open.

-- The endpoint of this name, locked; 42704 when it does not exist.
CREATE FUNCTION postrider._endpoint(p_name text) RETURNS postrider.endpoints LANGUAGE plpgsql AS $$
DECLARE
  v postrider.endpoints;
BEGIN
  IF p_name IS NULL THEN
    PERFORM postrider._invalid('name', 'is required');
  END IF;
  SELECT * INTO v FROM postrider.endpoints WHERE name = p_name AND dropped_at IS NULL FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', p_name);
  END IF;
  RETURN v;
END $$;

CREATE FUNCTION postrider.validate_endpoint_config(protocol text, config jsonb) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._check_config(protocol, config);
  PERFORM postrider._check_timeout('config.timeout', protocol, config->'timeout',
    (SELECT stale_recovery_timeout FROM postrider._limits));
END $$;

CREATE FUNCTION postrider.create_endpoint(
  name text, protocol text, config jsonb, retry_policy jsonb DEFAULT NULL, options jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_retry_policy jsonb;
  v_options jsonb;
  v_id bigint;
BEGIN
  PERFORM postrider._begin_change();
  IF create_endpoint.name IS NULL OR create_endpoint.name !~ '^[A-Za-z0-9._-]{1,128}$' THEN
    PERFORM postrider._invalid('name', 'must be 1 to 128 letters, digits, ''-'', ''_'' or ''.''');
  ELSIF create_endpoint.name IN ('.', '..') THEN
    PERFORM postrider._invalid('name', 'must not be ''.'' or ''..'', which no path of the API can name');
  END IF;
  PERFORM postrider.validate_endpoint_config(create_endpoint.protocol, create_endpoint.config);
  v_retry_policy := postrider._checked_retry_policy(create_endpoint.retry_policy);
  v_options := postrider._checked_options(create_endpoint.protocol, create_endpoint.config, create_endpoint.options);
  IF EXISTS (SELECT FROM postrider.endpoints e WHERE e.name = create_endpoint.name AND e.dropped_at IS NULL) THEN
    PERFORM postrider._exists_already('endpoint', create_endpoint.name);
  END IF;
  INSERT INTO postrider.endpoints (name, protocol, config, retry_policy, options, created_at)
  VALUES (create_endpoint.name, create_endpoint.protocol, create_endpoint.config, v_retry_policy, v_options,
    postrider._now())
  RETURNING id INTO v_id;
  INSERT INTO postrider._circuits (endpoint_id) VALUES (v_id);
  INSERT INTO postrider._results (endpoint_id) VALUES (v_id);
  PERFORM postrider._changed('endpoint.created', create_endpoint.name,
    jsonb_build_object('protocol', create_endpoint.protocol));
  RETURN v_id;
END $$;

-- A null argument changes nothing. A JSON null resets retry_policy or options to their defaults. Triggers check the change and
-- notify nodes.
CREATE FUNCTION postrider.alter_endpoint(
  name text, config jsonb DEFAULT NULL, retry_policy jsonb DEFAULT NULL, options jsonb DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_id bigint;
BEGIN
  PERFORM postrider._begin_change();
  v_id := (postrider._endpoint(alter_endpoint.name)).id;
  UPDATE postrider.endpoints e SET config = coalesce(alter_endpoint.config, e.config),
    retry_policy = coalesce(alter_endpoint.retry_policy, e.retry_policy),
    options = coalesce(alter_endpoint.options, e.options)
  WHERE e.id = v_id;
END $$;

-- An UPDATE of endpoints, by alter_endpoint() or by the owner: first the lock for changes, then the check of each row, then the
-- event.
CREATE FUNCTION postrider._begin_endpoint_change() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._begin_change();
  RETURN NULL;
END $$;

CREATE FUNCTION postrider._check_endpoint_change() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider.validate_endpoint_config(NEW.protocol, NEW.config);
  NEW.retry_policy := postrider._checked_retry_policy(NEW.retry_policy);
  NEW.options := postrider._checked_options(NEW.protocol, NEW.config, NEW.options);
  IF coalesce(NEW.options->>'key_scope', 'endpoint') <> coalesce(OLD.options->>'key_scope', 'endpoint')
     AND (EXISTS (SELECT FROM postrider.queue q WHERE q.place = :behind_key AND q.endpoint_id = NEW.id)
          OR EXISTS (SELECT FROM postrider.queue q WHERE q.place = :ready AND q.endpoint_id = NEW.id AND q.ordering_key IS NOT NULL)
          OR EXISTS (SELECT FROM postrider.queue q WHERE q.place = :on_probation AND q.endpoint_id = NEW.id AND q.ordering_key IS NOT NULL)
          OR EXISTS (SELECT FROM postrider.dlq d WHERE d.endpoint_id = NEW.id AND d.status = 'failed' AND d.ordering_key IS NOT NULL)) THEN
    PERFORM postrider._invalid('options.key_scope',
      'cannot change while the endpoint has messages or dead letters with ordering keys');
  END IF;
  NEW.revision := OLD.revision + 1;
  RETURN NEW;
END $$;

CREATE FUNCTION postrider._tell_endpoint_change() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._changed('endpoint.changed', NEW.name, jsonb_build_object('fields', to_jsonb(
    array_remove(ARRAY[CASE WHEN NEW.config <> OLD.config THEN 'config' END,
                       CASE WHEN NEW.retry_policy <> OLD.retry_policy THEN 'retry_policy' END,
                       CASE WHEN NEW.options <> OLD.options THEN 'options' END], NULL))));
  RETURN NULL;
END $$;

CREATE TRIGGER endpoints_change_begins BEFORE UPDATE OF config, retry_policy, options ON postrider.endpoints
FOR EACH STATEMENT EXECUTE FUNCTION postrider._begin_endpoint_change();
CREATE TRIGGER endpoints_checked BEFORE UPDATE OF config, retry_policy, options ON postrider.endpoints
FOR EACH ROW WHEN (NEW.dropped_at IS NULL) EXECUTE FUNCTION postrider._check_endpoint_change();
CREATE TRIGGER endpoints_changed AFTER UPDATE OF config, retry_policy, options ON postrider.endpoints
FOR EACH ROW WHEN (NEW.dropped_at IS NULL) EXECUTE FUNCTION postrider._tell_endpoint_change();

-- The other columns are written by functions only, between _allow_switch(true) and _allow_switch(false); see rules.sql.
CREATE FUNCTION postrider._allow_switch(p_allowed boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('postrider.switch', CASE WHEN p_allowed THEN 'allowed' ELSE '' END, true);
END $$;

-- Tables with capture triggers for this endpoint, which is the triggers' first argument.
CREATE FUNCTION postrider._captured_for(p_endpoint text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_argument bytea := convert_to(p_endpoint, getdatabaseencoding()) || E'\\x00';
BEGIN
  RETURN (SELECT string_agg(DISTINCT t.tgrelid::regclass::text, ', ')
          FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
          WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN ('_capture_row', '_capture_statement')
            AND t.tgparentid = 0 AND substring(t.tgargs FROM 1 FOR length(v_argument)) = v_argument);
END $$;

-- One step of a drop: cancels up to p_limit messages of the endpoint, and drops it when none is left. True when done. Messages that
-- senders commit after that are cancelled by a node within a second, or after a day by the next cleanup.
CREATE FUNCTION postrider._drop_endpoint(p_name text, p_force boolean, p_limit integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v postrider.endpoints;
  v_tables text := postrider._captured_for(p_name);
  v_ids bigint[];
  v_held record;
BEGIN
  PERFORM postrider._begin_change();
  v := postrider._endpoint(p_name);
  v_ids := ARRAY(SELECT id FROM unnest(postrider._queued_of(v.id, p_limit + 1)) AS id ORDER BY id);
  IF cardinality(v_ids) > 0 AND p_force IS NOT TRUE THEN
    PERFORM postrider._conflict(format(
      'endpoint "%s" has messages; force the drop to cancel them, or let them be delivered first', p_name));
  END IF;
  IF v_tables IS NOT NULL THEN
    PERFORM postrider._conflict(format('endpoint "%s" gets the changes of %s, which could not be written without it; '
      'call postrider.uncapture() first', p_name, v_tables));
  END IF;
  -- Lock order everywhere: claims, then messages.
  PERFORM FROM postrider._claim_rows r WHERE (r.node_id, r.batch) IN (
    SELECT c.node_id, c.batch
    FROM postrider._current_claims() c, unnest(c.ids) AS held (id) JOIN unnest(v_ids) AS own (id) USING (id))
  ORDER BY r.node_id, r.batch FOR UPDATE;
  PERFORM postrider._cancel_by_force(id) FROM unnest(v_ids[1:p_limit]) AS id;
  IF cardinality(v_ids) > p_limit THEN
    RETURN false;
  END IF;
  -- Release the keys that dead letters of this endpoint hold: with global scope, messages of other endpoints wait behind them.
  FOR v_held IN
    UPDATE postrider.dlq SET holds_key = false WHERE holds_key AND endpoint_id = v.id
    RETURNING postrider._key(key_scope, ordering_key) AS key
  LOOP
    PERFORM postrider._tell_unblocked(postrider._advance_key(v_held.key));
  END LOOP;
  DELETE FROM postrider.subscriptions WHERE endpoint_id = v.id;
  PERFORM postrider._allow_switch(true);
  UPDATE postrider.endpoints SET dropped_at = postrider._now(), config = '{}' WHERE id = v.id;
  PERFORM postrider._allow_switch(false);
  PERFORM postrider._changed('endpoint.dropped', p_name, jsonb_build_object('forced', coalesce(p_force, false)));
  RETURN true;
END $$;

-- Refused while it has messages, unless forced: then they are cancelled.
CREATE FUNCTION postrider.drop_endpoint(name text, p_force boolean DEFAULT false) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  LOOP
    EXIT WHEN postrider._drop_endpoint(name, p_force, 10000);
  END LOOP;
END $$;

-- Within a change that has begun.
CREATE FUNCTION postrider._set_disabled_by(p_endpoint bigint, p_by text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
BEGIN
  PERFORM postrider._allow_switch(true);
  UPDATE postrider.endpoints SET disabled_by = p_by
  WHERE id = p_endpoint AND dropped_at IS NULL AND disabled_by IS DISTINCT FROM p_by
    AND (disabled_by IS NULL OR p_by IS DISTINCT FROM 'gone') RETURNING name INTO v_name;
  PERFORM postrider._allow_switch(false);
  IF v_name IS NOT NULL AND p_by IS NULL THEN
    PERFORM postrider._changed('endpoint.enabled', v_name, '{}');
  ELSIF v_name IS NOT NULL THEN
    PERFORM postrider._changed('endpoint.disabled', v_name, jsonb_build_object('by', p_by));
  END IF;
END $$;

-- The receiver answered that it is gone: sends are accepted and kept, and nothing is claimed any more. An operator's earlier
-- disable stays.
CREATE FUNCTION postrider._note_gone(p_endpoint bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._gone (endpoint_id)
  SELECT id FROM postrider._endpoints WHERE id = p_endpoint AND disabled_by IS NULL;
END $$;

-- Disables the endpoints in _gone, except those that another transaction has locked: nodes try again every second.
CREATE FUNCTION postrider._disable_gone_endpoints() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_id bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM postrider._gone) THEN
    RETURN;
  END IF;
  PERFORM FROM postrider._store FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  FOR v_id IN
    SELECT id FROM postrider.endpoints WHERE id IN (SELECT endpoint_id FROM postrider._gone)
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    DELETE FROM postrider._gone WHERE endpoint_id = v_id;
    PERFORM postrider._set_disabled_by(v_id, 'gone');
  END LOOP;
END $$;

CREATE FUNCTION postrider.enable_endpoint(name text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_id bigint;
BEGIN
  PERFORM postrider._begin_change();
  v_id := (postrider._endpoint(name)).id;
  -- Clears _gone first, or the endpoint would be disabled again.
  PERFORM postrider._disable_gone_endpoints();
  PERFORM postrider._set_disabled_by(v_id, NULL);
END $$;

CREATE FUNCTION postrider.disable_endpoint(name text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
BEGIN
  PERFORM postrider._begin_change();
  PERFORM postrider._set_disabled_by((postrider._endpoint(name)).id, 'operator');
END $$;

CREATE FUNCTION postrider._set_paused(p_name text, p_paused boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v postrider.endpoints;
BEGIN
  PERFORM postrider._begin_change();
  v := postrider._endpoint(p_name);
  IF v.paused <> p_paused THEN
    PERFORM postrider._allow_switch(true);
    UPDATE postrider.endpoints SET paused = p_paused WHERE id = v.id;
    PERFORM postrider._allow_switch(false);
    PERFORM postrider._changed(CASE WHEN p_paused THEN 'endpoint.paused' ELSE 'endpoint.resumed' END, p_name, '{}');
  END IF;
END $$;

CREATE FUNCTION postrider.pause_endpoint(name text) RETURNS void LANGUAGE sql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$ SELECT postrider._set_paused(name, true) $$;

CREATE FUNCTION postrider.resume_endpoint(name text) RETURNS void LANGUAGE sql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$ SELECT postrider._set_paused(name, false) $$;
