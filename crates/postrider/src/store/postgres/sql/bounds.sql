-- Bounds: the position from which claims and departures are read (tables.sql says why). Now and then the remaining rows move to a
-- new position, and the bound moves up.

-- Readers may walk over this many deleted rows; moving a bound for fewer is not worth it.
CREATE FUNCTION postrider._positions_walked() RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 100 $$;

CREATE FUNCTION postrider._bound_lock(p_name text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE p_name WHEN 'claims' THEN :store_claims WHEN 'departures' THEN :store_departures END $$;

-- Called before a row gets its position: the bound cannot pass the row until it commits.
CREATE FUNCTION postrider._hold_bound(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(:lock_store, postrider._bound_lock(p_name));
END $$;

-- A position before which everything is committed. Null when the bound may stay, or when a writer takes long to commit: while we
-- wait for it, other writers wait behind us.
CREATE FUNCTION postrider._next_bound(p_name text) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE
  v_position bigint;
BEGIN
  IF (SELECT last_value FROM postrider._positions)
     < (SELECT max(position) FROM postrider._bounds WHERE name = p_name) + postrider._positions_walked() THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock(:lock_store, postrider._bound_lock(p_name));
  v_position := nextval('postrider._positions');
  -- Releases the lock by rolling back this block. Writers get positions after this one from now on.
  RAISE lock_not_available;
EXCEPTION WHEN lock_not_available THEN
  RETURN v_position;
END $$;

CREATE FUNCTION postrider._move_bound(p_name text, p_position bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._bounds (name, position) VALUES (p_name, p_position) ON CONFLICT DO NOTHING;
  DELETE FROM postrider._bounds WHERE name = p_name AND position < p_position;
END $$;

-- All claims, for occasional queries. Always read by position: other plans would walk over deleted rows.
CREATE FUNCTION postrider._current_claims() RETURNS SETOF postrider._claims LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN QUERY SELECT * FROM postrider._claims;
END $$;

CREATE FUNCTION postrider._departed(p_count bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM postrider._hold_bound('departures');
  INSERT INTO postrider._departure_rows (departed) VALUES (p_count);
END $$;

-- One session at a time. The sum stays the same, so readers in between are right.
CREATE FUNCTION postrider._fold_departures() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_bound bigint := postrider._next_bound('departures');
BEGIN
  IF v_bound IS NOT NULL THEN
    WITH folded AS (DELETE FROM postrider._departures RETURNING departed)
    INSERT INTO postrider._departure_rows (position, departed) SELECT v_bound, coalesce(sum(departed), 0) FROM folded;
    PERFORM postrider._move_bound('departures', v_bound);
  END IF;
END $$;

-- One session at a time. Old claims move to the new position. New ones and those that are being settled stay, and the bound stays
-- before them: most are deleted before it moves again.
CREATE FUNCTION postrider._take_claims_along() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_bound bigint := postrider._next_bound('claims');
BEGIN
  IF v_bound IS NOT NULL THEN
    UPDATE postrider._claim_rows SET position = v_bound WHERE (node_id, batch) IN (
      SELECT node_id, batch FROM postrider._claims WHERE position < v_bound - postrider._positions_walked()
      FOR UPDATE SKIP LOCKED);
    -- Not past the first remaining claim: one that began since may be visible while an earlier one is not.
    PERFORM postrider._move_bound('claims', least(v_bound, (SELECT min(position) FROM postrider._claims)));
  END IF;
END $$;
