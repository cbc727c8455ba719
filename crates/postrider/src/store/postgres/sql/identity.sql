-- Detects a store in a copied database. A copy that is used beside the original assigns the same ids to other messages. A physical
-- standby has the same identifiers, so a failover is not a copy; a copy of the server's files cannot be detected.

-- Identifies the server. Null where the role may not read it.
CREATE FUNCTION postrider._system_identifier() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
  RETURN NULL;
END $$;

-- Called when the store is created here or gets a new name.
CREATE FUNCTION postrider._note_identity() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE postrider._store SET system_identifier = postrider._system_identifier(),
    database_oid = (SELECT oid FROM pg_database WHERE datname = current_database());
END $$;

-- The warning about a copy; null when this is the original, or when that is unknown.
CREATE FUNCTION postrider._copied() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_system bigint := postrider._system_identifier();
  v_database oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
  RETURN (
    SELECT format('store %s was created in database %s of server %s, and this is database %s of server %s, so it is a copy; if both '
             'are in use, different messages have the same id: stop the nodes here and run `postrider migrate --new-store-id`',
             s.name, s.database_oid, coalesce(s.system_identifier::text, '?'), v_database, coalesce(v_system::text, '?'))
    FROM postrider._store s WHERE s.database_oid <> v_database OR s.system_identifier <> v_system);
END $$;
