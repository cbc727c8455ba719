-- The monthly partitions of `archive` and `attempts`.

-- The month of a time, whatever the session's time zone.
CREATE FUNCTION postrider._month(p_at timestamptz) RETURNS timestamp LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT date_trunc('month', p_at AT TIME ZONE 'UTC') $$;

-- Partitions of `archive` or `attempts` by month, oldest first.
CREATE FUNCTION postrider._months(p_table text) RETURNS TABLE (name text, month timestamp) LANGUAGE sql STABLE AS $$
  SELECT c.relname::text, to_timestamp(right(c.relname, 7), 'YYYY_MM')::timestamp
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
  WHERE i.inhparent = to_regclass('postrider.' || p_table) AND c.relname ~ ('^' || p_table || '_[0-9]{4}_[0-9]{2}$')
  ORDER BY c.relname
$$;

-- Creates one month unless it exists; true when it was created. Rows of that month in the default partition would block attaching
-- it, so they move first, in the same transaction, or readers would miss them in between. Only attaching, at the end, blocks
-- readers; it waits for them up to the caller's lock_timeout, because readers would queue up behind it. DateStyle: the bounds of
-- the partition must be read as they were written.
CREATE FUNCTION postrider._make_month(p_table text, p_month timestamp) RETURNS boolean LANGUAGE plpgsql
SET DateStyle = 'ISO' AS $$
DECLARE
  v_name text := p_table || '_' || to_char(p_month, 'YYYY_MM');
  v_from timestamptz := p_month AT TIME ZONE 'UTC';
  v_to timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
  v_column text := CASE p_table WHEN 'archive' THEN 'created_at' ELSE 'started_at' END;
BEGIN
  IF to_regclass('postrider.' || v_name) IS NOT NULL THEN
    RETURN false;
  END IF;
  EXECUTE format('CREATE TABLE postrider.%I (LIKE postrider.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
    v_name, p_table);
  EXECUTE format(
    'WITH moved AS (DELETE FROM postrider.%I WHERE %I >= $1 AND %I < $2 RETURNING *)
     INSERT INTO postrider.%I SELECT * FROM moved', p_table || '_default', v_column, v_column, v_name)
  USING v_from, v_to;
  EXECUTE format('ALTER TABLE postrider.%I ATTACH PARTITION postrider.%I FOR VALUES FROM (%L) TO (%L)',
    p_table, v_name, v_from, v_to);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  -- A reader holds the table. The default partition takes new rows; the next round tries again.
  RETURN false;
END $$;

-- Creates this and the next p_ahead months, and the months of rows in the default partition; returns how many.
CREATE FUNCTION postrider._maintain_months(p_table text, p_ahead integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_month timestamp := postrider._month(postrider._now());
  v_stray timestamptz;
  v_made integer := 0;
BEGIN
  FOR n IN 0 .. p_ahead LOOP
    v_made := v_made + postrider._make_month(p_table, v_month + n * interval '1 month')::integer;
  END LOOP;
  LOOP
    -- Rows with times outside of this range, written by another program, stay there.
    EXECUTE format('SELECT %I FROM postrider.%I WHERE %1$I >= ''1970-01-01 00:00+00'' AND %1$I < ''9999-12-01 00:00+00'' LIMIT 1',
      CASE p_table WHEN 'archive' THEN 'created_at' ELSE 'started_at' END, p_table || '_default') INTO v_stray;
    EXIT WHEN v_stray IS NULL OR NOT postrider._make_month(p_table, postrider._month(v_stray));
    v_made := v_made + 1;
  END LOOP;
  RETURN v_made;
END $$;

-- Creates the coming months, and empties the default partitions; returns how many partitions were created.
CREATE FUNCTION postrider.maintain_archive_partitions(months_ahead integer DEFAULT 3) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = postrider, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
  IF months_ahead IS NULL OR months_ahead NOT BETWEEN 0 AND 120 THEN
    PERFORM postrider._invalid('months_ahead', 'must be a whole number from 0 to 120');
  END IF;
  PERFORM pg_advisory_xact_lock(:lock_store, :store_months);
  RETURN postrider._maintain_months('archive', months_ahead) + postrider._maintain_months('attempts', months_ahead);
END $$;

-- Attempts of queued messages are kept however old they are, and so is their month.
CREATE FUNCTION postrider._has_queued(p_partition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_queued boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT FROM postrider.%I a JOIN postrider.queue q ON q.id = a.message_id)', p_partition)
  INTO v_queued;
  RETURN v_queued;
END $$;

-- True when it was dropped.
CREATE FUNCTION postrider._drop_attempts(p_partition text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF postrider._has_queued(p_partition) THEN
    RETURN false;
  END IF;
  EXECUTE format('DROP TABLE postrider.%I', p_partition);
  RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN false;
END $$;

-- Deletes the other attempts of a month that is kept.
CREATE FUNCTION postrider._clean_attempts(p_partition text, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_count integer;
BEGIN
  IF NOT postrider._has_queued(p_partition) THEN
    RETURN 0;
  END IF;
  EXECUTE format(
    'DELETE FROM postrider.%I WHERE ctid = ANY (ARRAY(
       SELECT a.ctid FROM postrider.%I a
       WHERE NOT EXISTS (SELECT FROM postrider.queue q WHERE q.id = a.message_id) LIMIT $1))', p_partition, p_partition)
  USING p_limit;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
EXCEPTION WHEN lock_not_available THEN
  RETURN 0;
END $$;

-- Drops a month of the archive when all of it was finished before p_before. True when it was dropped.
CREATE FUNCTION postrider._drop_archived(p_partition text, p_before timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_look text := format('SELECT EXISTS (SELECT FROM postrider.%I WHERE finished_at > $1)', p_partition);
  v_kept boolean;
BEGIN
  EXECUTE v_look INTO v_kept USING p_before;
  IF NOT v_kept THEN
    -- Wait for transactions that archive into it, then check again.
    EXECUTE format('LOCK TABLE postrider.%I IN SHARE MODE', p_partition);
    EXECUTE v_look INTO v_kept USING p_before;
  END IF;
  IF v_kept THEN
    RETURN false;
  END IF;
  EXECUTE format('DROP TABLE postrider.%I', p_partition);
  PERFORM postrider._log_event('archive.dropped', p_partition, '{}');
  RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN false;
END $$;

-- Months that ended before this time are old.
CREATE FUNCTION postrider._kept_from(p_retention_months integer) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT (postrider._now() AT TIME ZONE 'UTC' - p_retention_months * interval '1 month') AT TIME ZONE 'UTC'
$$;

CREATE FUNCTION postrider._old_months(p_table text, p_retention_months integer) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  SELECT name FROM postrider._months(p_table)
  WHERE month + interval '1 month' <= postrider._kept_from(p_retention_months) AT TIME ZONE 'UTC'
$$;

-- Drops one month of either table; true when one was dropped. Archiving then waits until this transaction ends, so nothing else is
-- done in it.
CREATE FUNCTION postrider._drop_old_month(p_retention_months integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
BEGIN
  FOR v_name IN SELECT * FROM postrider._old_months('archive', p_retention_months) LOOP
    IF postrider._drop_archived(v_name, postrider._kept_from(p_retention_months)) THEN
      RETURN true;
    END IF;
  END LOOP;
  FOR v_name IN SELECT * FROM postrider._old_months('attempts', p_retention_months) LOOP
    IF postrider._drop_attempts(v_name) THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

CREATE FUNCTION postrider._clean_old_attempts(p_retention_months integer, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
  v_done integer := 0;
BEGIN
  FOR v_name IN SELECT * FROM postrider._old_months('attempts', p_retention_months) LOOP
    EXIT WHEN v_done >= p_limit;
    v_done := v_done + postrider._clean_attempts(v_name, p_limit - v_done);
  END LOOP;
  RETURN v_done;
END $$;

-- Drops months whose newest finished_at is older than the retention; returns how many of the archive.
CREATE FUNCTION postrider.cleanup_old_archive_partitions(retention_months integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = postrider, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
  v_months integer := coalesce(retention_months, postrider._setting('archive_retention_months')::integer);
  v_before bigint := (SELECT count(*) FROM postrider._months('archive'));
BEGIN
  IF v_months NOT BETWEEN 1 AND 120 THEN
    PERFORM postrider._invalid('retention_months', 'must be a whole number from 1 to 120');
  END IF;
  PERFORM pg_advisory_xact_lock(:lock_store, :store_months);
  WHILE postrider._drop_old_month(v_months) LOOP
  END LOOP;
  WHILE postrider._clean_old_attempts(v_months, 10000) > 0 LOOP
  END LOOP;
  RETURN v_before - (SELECT count(*) FROM postrider._months('archive'));
END $$;

-- Does nothing: settling archives. Part of the interface.
CREATE FUNCTION postrider.archive_completed_messages(older_than_seconds integer DEFAULT 3600, batch_size integer DEFAULT 1000)
RETURNS integer LANGUAGE sql IMMUTABLE SECURITY DEFINER SET search_path = postrider, pg_temp AS $$ SELECT 0 $$;
