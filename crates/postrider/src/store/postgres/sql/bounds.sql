-- Bounds: from which position on claims and departures are read (tables.sql says why). Now and then what is still there
-- is taken along to a new position, and the bound moves up.

-- So many rows that are gone may be walked over: it is not worth moving a bound for fewer.
CREATE FUNCTION postrider._positions_walked() RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 100 $$;

CREATE FUNCTION postrider._bound_lock(p_name text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE p_name WHEN 'claims' THEN 4 WHEN 'departures' THEN 5 END $$;

-- Called before a row gets its position: no bound moves over it until it is committed.
CREATE FUNCTION postrider._hold_bound(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1886548338, postrider._bound_lock(p_name));
END $$;

-- A position of which everything before it is committed. Null when the bound may stay, or when somebody who wrote takes
-- long to commit: other writers wait behind who waits here.
CREATE FUNCTION postrider._next_bound(p_name text) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE
  v_position bigint;
BEGIN
  IF (SELECT last_value FROM postrider._positions)
     < (SELECT max(position) FROM postrider._bounds WHERE name = p_name) + postrider._positions_walked() THEN
    RETURN NULL;
  END IF;
  PERFORM pg_advisory_xact_lock(1886548338, postrider._bound_lock(p_name));
  v_position := nextval('postrider._positions');
  -- Undoes the lock and nothing else. Whoever writes from now on does it behind this position, and need not wait.
  RAISE lock_not_available;
EXCEPTION WHEN lock_not_available THEN
  RETURN v_position;
END $$;

CREATE FUNCTION postrider._move_bound(p_name text, p_position bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO postrider._bounds (name, position) VALUES (p_name, p_position) ON CONFLICT DO NOTHING;
  DELETE FROM postrider._bounds WHERE name = p_name AND position < p_position;
END $$;

-- Each claim that there is, for who asks now and then. Whatever else it is that is asked of them, they are found by their
-- positions alone: all other ways lead over those that are gone.
CREATE FUNCTION postrider._current_claims() RETURNS SETOF postrider._claims LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN QUERY SELECT * FROM postrider._claims;
END $$;

-- One at a time. The sum stays the same, so nobody who reads it in between is misled.
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

-- One at a time. Claims that last are taken along. Those that are new or just being settled stay where they are, and
-- the bound before them: most are gone before it moves again.
CREATE FUNCTION postrider._take_claims_along() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_bound bigint := postrider._next_bound('claims');
BEGIN
  IF v_bound IS NOT NULL THEN
    UPDATE postrider._claim_rows SET position = v_bound WHERE (node_id, batch) IN (
      SELECT node_id, batch FROM postrider._claims WHERE position < v_bound - postrider._positions_walked()
      FOR UPDATE SKIP LOCKED);
    -- Not beyond what was held: a claim that was begun since may not be seen yet, and one after it may.
    PERFORM postrider._move_bound('claims', least(v_bound, (SELECT min(position) FROM postrider._claims)));
  END IF;
END $$;
