-- Whether this database is the one that the store was made in. A copy that is used beside the original gives the same ids to other
-- messages. A physical standby has the same server and database, so a failover is no copy; one made of files cannot be told apart.

-- Of the whole server, made with it. Null where an ordinary role may not ask.
CREATE FUNCTION postrider._system_identifier() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
  RETURN NULL;
END $$;

-- The store belongs here: it was made here, or has got a new name.
CREATE FUNCTION postrider._note_identity() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE postrider._store SET system_identifier = postrider._system_identifier(),
    database_oid = (SELECT oid FROM pg_database WHERE datname = current_database());
END $$;

-- What to say of a copy; null where the store was made, or where nothing is known of that.
CREATE FUNCTION postrider._copied() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_system bigint := postrider._system_identifier();
  v_database oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
  RETURN (
    SELECT format('store %s was made in database %s of server %s, and this is database %s of server %s, so it is a copy; if both '
             'are in use, different messages have the same id: stop the nodes here and run `postrider migrate --new-store-id`',
             s.name, s.database_oid, coalesce(s.system_identifier::text, '?'), v_database, coalesce(v_system::text, '?'))
    FROM postrider._store s WHERE s.database_oid <> v_database OR s.system_identifier <> v_system);
END $$;
