-- API tokens. Only the prefix and a digest of a token are stored.

-- Returns the time of creation.
CREATE FUNCTION postrider._create_token(p_prefix text, p_name text, p_scope text, p_digest bytea, p_most bigint)
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := postrider._now();
BEGIN
  LOCK TABLE postrider._tokens IN SHARE ROW EXCLUSIVE MODE;
  IF (SELECT count(*) FROM postrider._tokens) >= p_most THEN
    PERFORM postrider._conflict(format('there are %s tokens already; revoke an unused one', p_most));
  END IF;
  INSERT INTO postrider._tokens (prefix, name, scope, digest, created_at)
  VALUES (p_prefix, p_name, p_scope, p_digest, v_now);
  PERFORM postrider._log_event('token.created', p_prefix, jsonb_build_object('name', p_name, 'scope', p_scope));
  RETURN v_now;
END $$;

CREATE FUNCTION postrider._revoke_token(p_prefix text, p_even_last boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
BEGIN
  -- Two sessions that revoke the last two tokens at once would each see the other's.
  LOCK TABLE postrider._tokens IN SHARE ROW EXCLUSIVE MODE;
  IF NOT p_even_last AND (SELECT count(*) = 1 AND max(prefix) = p_prefix FROM postrider._tokens) THEN
    PERFORM postrider._conflict(format('token %s is the last one; without any, any client on loopback may do everything',
      p_prefix));
  END IF;
  DELETE FROM postrider._tokens WHERE prefix = p_prefix RETURNING name INTO v_name;
  IF NOT FOUND THEN
    PERFORM postrider._unknown('token', p_prefix);
  END IF;
  PERFORM postrider._log_event('token.revoked', p_prefix, jsonb_build_object('name', v_name));
END $$;
