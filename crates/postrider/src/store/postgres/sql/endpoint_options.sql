-- What an endpoint's retry policy and options may be.

-- Checks a retry policy and returns it as it is kept: without max_retries, null when there is none.
CREATE FUNCTION postrider._checked_retry_policy(p_policy jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  v_field text;
  v_entry record;
BEGIN
  IF p_policy IS NULL OR p_policy = 'null' THEN
    RETURN '{}';
  END IF;
  PERFORM postrider._checked_depth('retry_policy', p_policy);
  IF NOT postrider._is_object(p_policy) THEN
    PERFORM postrider._invalid('retry_policy', 'must be an object');
  END IF;
  IF p_policy ?& ARRAY['max_attempts', 'max_retries'] THEN
    PERFORM postrider._invalid('retry_policy.max_retries', 'cannot be given beside max_attempts');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_policy) ORDER BY key COLLATE "C" LOOP
    v_field := 'retry_policy.' || v_given.key;
    CASE
      WHEN v_given.key = 'max_attempts' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 1001);
      WHEN v_given.key = 'max_retries' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 1000);
      WHEN v_given.key = 'backoff' THEN
        PERFORM postrider._check_choice(v_field, v_given.value,
          ARRAY['exponential', 'linear', 'fixed', 'quadratic'],
          'must be "exponential", "linear", "fixed" or "quadratic"');
      WHEN v_given.key IN ('base_delay_seconds', 'max_delay_seconds', 'increment_seconds') THEN
        PERFORM postrider._check_number(v_field, v_given.value, 0, 86400);
      WHEN v_given.key = 'multiplier' THEN
        PERFORM postrider._check_number(v_field, v_given.value, 1, 1000);
      WHEN v_given.key = 'jitter' THEN
        PERFORM postrider._check_number(v_field, v_given.value, 0, 1);
      WHEN v_given.key = 'schedule_seconds' THEN
        IF jsonb_typeof(v_given.value) <> 'array' OR jsonb_array_length(v_given.value) NOT BETWEEN 1 AND 1000 THEN
          PERFORM postrider._invalid(v_field, 'must be a list of 1 to 1000 delays in seconds');
        END IF;
        FOR v_entry IN SELECT item, n FROM jsonb_array_elements(v_given.value) WITH ORDINALITY AS a (item, n) LOOP
          PERFORM postrider._check_number(format('%s[%s]', v_field, v_entry.n - 1), v_entry.item, 0, 86400);
        END LOOP;
      ELSE
        PERFORM postrider._invalid(v_field, 'unknown field; expected one of: max_attempts, max_retries, backoff, '
          'base_delay_seconds, max_delay_seconds, increment_seconds, multiplier, jitter, schedule_seconds');
    END CASE;
  END LOOP;
  IF p_policy ? 'max_retries' THEN
    RETURN p_policy - 'max_retries' || jsonb_build_object('max_attempts', (p_policy->>'max_retries')::integer + 1);
  END IF;
  RETURN p_policy;
END $$;

CREATE FUNCTION postrider._check_rate_limit(p_field text, p_limit jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  v_path text;
BEGIN
  IF NOT postrider._is_object(p_limit) THEN
    PERFORM postrider._invalid(p_field, 'must be an object like {"limit":10,"interval":"second"}');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_limit) ORDER BY key COLLATE "C" LOOP
    v_path := format('%s.%s', p_field, v_given.key);
    CASE
      WHEN v_given.key IN ('limit', 'burst') THEN
        PERFORM postrider._check_whole(v_path, v_given.value, 1, 1000000);
      WHEN v_given.key = 'interval' THEN
        PERFORM postrider._check_choice(v_path, v_given.value, ARRAY['second', 'minute', 'hour'],
          'must be "second", "minute" or "hour"');
      ELSE
        PERFORM postrider._invalid(v_path, 'unknown field; expected one of: limit, interval, burst');
    END CASE;
  END LOOP;
  IF NOT p_limit ? 'limit' THEN
    PERFORM postrider._invalid(p_field || '.limit', 'is required');
  END IF;
  IF NOT p_limit ? 'interval' THEN
    PERFORM postrider._invalid(p_field || '.interval', 'is required');
  END IF;
END $$;

CREATE FUNCTION postrider._check_override_headers(p_protocol text, p_config jsonb, p_names jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_field constant text := 'options.override_headers';
  v_rules jsonb;
  v record;
  v_broken text;
BEGIN
  SELECT rules INTO v_rules FROM postrider._known_keys
  WHERE protocol = p_protocol AND path = '' AND name = 'headers' AND set_by <> 'message';
  IF NOT FOUND THEN
    PERFORM postrider._invalid(v_field, format('%s endpoints have no headers in their config', p_protocol));
  END IF;
  FOR v IN SELECT name, n FROM jsonb_array_elements_text(p_names) WITH ORDINALITY AS a (name, n) LOOP
    v_broken := coalesce(postrider._broken_name(v_rules, v.name),
      'is set by config.' || postrider._key_that_sets(p_protocol, p_config, v.name) || ' and cannot be replaced');
    IF v_broken IS NOT NULL THEN
      PERFORM postrider._invalid(format('%s[%s]', v_field, v.n - 1), v_broken);
    END IF;
  END LOOP;
  PERFORM postrider._check_none_twice(v_field, ARRAY(SELECT jsonb_array_elements_text(p_names)));
END $$;

CREATE FUNCTION postrider._check_names(p_field text, p_names jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_at bigint;
BEGIN
  IF jsonb_typeof(p_names) <> 'array' OR jsonb_array_length(p_names) > 100 THEN
    PERFORM postrider._invalid(p_field, 'must be a list of at most 100 names of headers');
  END IF;
  SELECT n - 1 INTO v_at FROM jsonb_array_elements(p_names) WITH ORDINALITY AS a (item, n)
  WHERE jsonb_typeof(item) <> 'string' ORDER BY n LIMIT 1;
  IF FOUND THEN
    PERFORM postrider._invalid(format('%s[%s]', p_field, v_at), 'must be a string');
  END IF;
END $$;

-- Checks the options of an endpoint with this protocol and config, and returns them as they are kept.
CREATE FUNCTION postrider._checked_options(p_protocol text, p_config jsonb, p_options jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_given record;
  v_field text;
BEGIN
  IF p_options IS NULL OR p_options = 'null' THEN
    RETURN '{}';
  END IF;
  PERFORM postrider._checked_depth('options', p_options);
  IF NOT postrider._is_object(p_options) THEN
    PERFORM postrider._invalid('options', 'must be an object');
  END IF;
  FOR v_given IN SELECT key, value FROM jsonb_each(p_options) ORDER BY key COLLATE "C" LOOP
    v_field := 'options.' || v_given.key;
    CASE v_given.key
      WHEN 'durability' THEN
        PERFORM postrider._check_choice(v_field, v_given.value, ARRAY['durable'], 'must be "durable"');
      WHEN 'max_in_flight' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 1, 10000);
      WHEN 'rate_limit' THEN
        PERFORM postrider._check_rate_limit(v_field, v_given.value);
      WHEN 'on_dead' THEN
        PERFORM postrider._check_choice(v_field, v_given.value, ARRAY['continue', 'hold'],
          'must be "continue" or "hold"');
      WHEN 'key_scope' THEN
        PERFORM postrider._check_choice(v_field, v_given.value, ARRAY['endpoint', 'global'],
          'must be "endpoint" or "global"');
      WHEN 'max_queue_size' THEN
        PERFORM postrider._check_whole(v_field, v_given.value, 0, 9223372036854775807);
      WHEN 'override_headers' THEN
        PERFORM postrider._check_names(v_field, v_given.value);
      ELSE
        PERFORM postrider._invalid(v_field, 'unknown field; expected one of: durability, max_in_flight, rate_limit, '
          'on_dead, key_scope, max_queue_size, override_headers');
    END CASE;
  END LOOP;
  IF p_options ? 'override_headers' THEN
    PERFORM postrider._check_override_headers(p_protocol, p_config, p_options->'override_headers');
  END IF;
  RETURN p_options;
END $$;
