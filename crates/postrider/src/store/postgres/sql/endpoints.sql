-- Endpoints and their circuits. Nodes never wait here for people, whose transactions may stay open for long.

CREATE FUNCTION postrider._exists_already(p_what text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '42710', MESSAGE = format('%s "%s" exists already', p_what, p_name),
    COLUMN = p_what, CONSTRAINT = p_name;
END $$;

-- The endpoint of this name, locked; 42704 when there is none.
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
  PERFORM postrider._check_timeout('config.timeout', config->'timeout',
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

-- What is null stays as it is. A JSON null resets retry_policy or options to their defaults. Triggers check the change and
-- tell of it.
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

-- An UPDATE of endpoints, by alter_endpoint() or by the owner: the lock of all changes first, then the check of each row,
-- then the event.
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
     AND (EXISTS (SELECT FROM postrider.queue q WHERE q.place = 1 AND q.endpoint_id = NEW.id)
          OR EXISTS (SELECT FROM postrider.queue q WHERE q.place = 0 AND q.endpoint_id = NEW.id AND q.ordering_key IS NOT NULL)
          OR EXISTS (SELECT FROM postrider.queue q WHERE q.place = 3 AND q.endpoint_id = NEW.id AND q.ordering_key IS NOT NULL)
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

-- Its endpoint goes away, so even one in flight is taken back: its late result finds nothing to change.
CREATE FUNCTION postrider._cancel_by_force(p_id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v postrider.queue;
BEGIN
  SELECT * INTO v FROM postrider.queue WHERE id = p_id FOR UPDATE;
  IF FOUND THEN
    PERFORM postrider._tell_unblocked(postrider._leave(p_id,
      CASE WHEN v.delivered_late THEN 'completed' ELSE 'cancelled' END,
      v.attempts + CASE WHEN postrider._is_claimed(p_id) THEN 1 ELSE 0 END));
    PERFORM postrider._departed(1);
  END IF;
END $$;

-- Tables whose triggers send to this endpoint, which is their first argument.
CREATE FUNCTION postrider._captured_for(p_endpoint text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_argument bytea := convert_to(p_endpoint, getdatabaseencoding()) || E'\\x00';
BEGIN
  RETURN (SELECT string_agg(DISTINCT t.tgrelid::regclass::text, ', ')
          FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
          WHERE p.pronamespace = 'postrider'::regnamespace AND p.proname IN ('_capture_row', '_capture_statement')
            AND t.tgparentid = 0 AND substring(t.tgargs FROM 1 FOR length(v_argument)) = v_argument);
END $$;

-- One step of a drop: cancels up to p_limit messages of the endpoint, and drops it when none is left. True when
-- done. What a sender commits after that is cancelled by a node within a second, or by the next cleanup if it took a day.
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
  -- Like everybody who needs both, first the claims and then their messages.
  PERFORM FROM postrider._claim_rows r WHERE (r.node_id, r.batch) IN (
    SELECT c.node_id, c.batch
    FROM postrider._current_claims() c, unnest(c.ids) AS held (id) JOIN unnest(v_ids) AS own (id) USING (id))
  ORDER BY r.node_id, r.batch FOR UPDATE;
  PERFORM postrider._cancel_by_force(id) FROM unnest(v_ids[1:p_limit]) AS id;
  IF cardinality(v_ids) > p_limit THEN
    RETURN false;
  END IF;
  -- Every key that waits for a dead head of this endpoint goes on: in the global scope others wait behind it.
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

-- Refused while it has messages; forced: they become cancelled.
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

-- The receiver answered that it is gone: sends are accepted and kept, and from now on nothing is claimed. What an
-- operator said before stands.
CREATE FUNCTION postrider._note_gone(p_endpoint bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._gone (endpoint_id)
  SELECT id FROM postrider._endpoints WHERE id = p_endpoint AND disabled_by IS NULL;
END $$;

-- Disables what was noted, but for what somebody is changing right now: a node looks again every second.
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
  -- What was noted before is over with this.
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

-- A receiver asked to be left alone. Kept in the store: a restart does not forget it.
CREATE FUNCTION postrider._hold_endpoint(p_endpoint bigint, p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._holds (endpoint_id, until) SELECT p_endpoint, p_until
  WHERE NOT EXISTS (SELECT FROM postrider._holds WHERE endpoint_id = p_endpoint AND until >= p_until);
END $$;

-- What is over says nothing any more.
CREATE FUNCTION postrider._clean_holds(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_count integer;
BEGIN
  DELETE FROM postrider._holds WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM postrider._holds WHERE until <= postrider._now() LIMIT p_limit FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Compare-and-swap on the epoch; false when somebody else was first, or is resetting it and does not commit. p_until: of
-- an open circuit when it may be probed, of a half-open one how long the probe of p_probe_node is leased. p_kind: of the
-- event, circuit.<state> unless given.
CREATE FUNCTION postrider._move_circuit(
  p_endpoint bigint, p_from_epoch bigint, p_state text, p_epoch bigint, p_until timestamptz, p_probe_node bigint,
  p_kind text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  v_name text;
BEGIN
  UPDATE postrider._circuits c SET state = p_state, epoch = p_epoch, until = p_until, probe_node = p_probe_node
  FROM postrider.endpoints e
  WHERE c.endpoint_id = p_endpoint AND c.epoch = p_from_epoch AND e.id = p_endpoint AND e.dropped_at IS NULL
  RETURNING e.name INTO v_name;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM postrider._log_event(coalesce(p_kind, 'circuit.' || p_state), v_name, jsonb_build_object('epoch', p_epoch));
  PERFORM pg_notify('postrider', 'config');
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;

CREATE FUNCTION postrider.reset_circuit_breaker(name text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
DECLARE
  v_id bigint;
  v_epoch bigint;
BEGIN
  PERFORM postrider._begin_change();
  v_id := (postrider._endpoint(name)).id;
  SELECT epoch INTO v_epoch FROM postrider._circuits WHERE endpoint_id = v_id FOR UPDATE;
  DELETE FROM postrider._holds WHERE endpoint_id = v_id;
  PERFORM postrider._move_circuit(v_id, v_epoch, 'closed', v_epoch + 1, NULL, NULL, 'circuit.reset');
END $$;

-- Consecutive failures reported through update_circuit_breaker; nodes count their own in memory.
CREATE TABLE postrider._reported_failures (
  endpoint_id bigint PRIMARY KEY,
  epoch bigint NOT NULL,
  consecutive integer NOT NULL
);

-- For programs that deliver by themselves: reports one attempt, as a node would see it. Within the cooldown a report is of an
-- attempt that began before the circuit opened, and does not count; after it a report counts like a probe.
CREATE FUNCTION postrider.update_circuit_breaker(endpoint_id bigint, success boolean) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v postrider._endpoints;
  v_consecutive integer;
  v_now timestamptz := postrider._now();
  v_until timestamptz := v_now + postrider._setting('circuit_breaker_cooldown')::integer * interval '1 second';
  v_is_probe boolean;
BEGIN
  IF success IS NULL THEN
    PERFORM postrider._invalid('success', 'must be true or false');
  END IF;
  PERFORM postrider._begin_change();
  PERFORM FROM postrider._circuits c WHERE c.endpoint_id = update_circuit_breaker.endpoint_id FOR UPDATE;
  SELECT * INTO v FROM postrider._endpoints e WHERE e.id = update_circuit_breaker.endpoint_id AND e.dropped_at IS NULL;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('endpoint', update_circuit_breaker.endpoint_id::text);
  END IF;
  UPDATE postrider._results r SET delivered = r.delivered + success::integer,
    retryable = r.retryable + (NOT success)::integer,
    consecutive_failures = CASE WHEN success THEN 0 ELSE r.consecutive_failures + 1 END,
    last_success_at = CASE WHEN success THEN v_now ELSE r.last_success_at END,
    last_failure_at = CASE WHEN success THEN r.last_failure_at ELSE v_now END,
    last_error = CASE WHEN success THEN r.last_error ELSE '[RETRYABLE] reported by update_circuit_breaker()' END
  WHERE r.endpoint_id = v.id;
  v_is_probe := v.circuit = 'half_open' OR (v.circuit = 'open' AND v.circuit_until <= v_now);
  IF v_is_probe AND success THEN
    PERFORM postrider._move_circuit(v.id, v.circuit_epoch, 'closed', v.circuit_epoch + 1, NULL, NULL);
  ELSIF v_is_probe THEN
    PERFORM postrider._move_circuit(v.id, v.circuit_epoch, 'open', v.circuit_epoch + 1, v_until, NULL);
  ELSIF v.circuit = 'closed' AND success THEN
    DELETE FROM postrider._reported_failures r WHERE r.endpoint_id = v.id;
  ELSIF v.circuit = 'closed' THEN
    INSERT INTO postrider._reported_failures AS r (endpoint_id, epoch, consecutive) VALUES (v.id, v.circuit_epoch, 1)
    ON CONFLICT (endpoint_id) DO UPDATE SET epoch = excluded.epoch,
      consecutive = CASE WHEN r.epoch = excluded.epoch THEN r.consecutive + 1 ELSE 1 END
    RETURNING consecutive INTO v_consecutive;
    IF v_consecutive >= postrider._setting('circuit_breaker_threshold')::integer THEN
      DELETE FROM postrider._reported_failures r WHERE r.endpoint_id = v.id;
      PERFORM postrider._move_circuit(v.id, v.circuit_epoch, 'open', v.circuit_epoch + 1, v_until, NULL);
    END IF;
  END IF;
END $$;
