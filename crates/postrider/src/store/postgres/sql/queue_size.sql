-- The length of the queue, and max_queue_size of the whole queue and of endpoints.

-- Up to this many rows are counted on demand.
CREATE FUNCTION postrider._counted_at_once() RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT 10000 $$;

-- How many messages are queued: exact for short queues, from the gauge for long ones.
CREATE FUNCTION postrider._queued() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_queued bigint := (SELECT count(*) FROM (SELECT FROM postrider.queue LIMIT postrider._counted_at_once() + 1) AS first_of_them);
BEGIN
  IF v_queued > postrider._counted_at_once() THEN
    SELECT greatest(v_queued, g.queued + (m.last_value - g.at_id)
             - ((SELECT coalesce(sum(departed), 0) FROM postrider._departures) - g.departed))
    INTO v_queued FROM postrider._gauge g, postrider.message_ids m;
  END IF;
  RETURN v_queued;
END $$;

CREATE FUNCTION postrider._count_up_to(p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT count(*) FROM (SELECT FROM postrider.queue LIMIT p_limit) AS q);
END $$;

-- For very many: one session at a time, else null.
CREATE FUNCTION postrider._count_alone(p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_count bigint;
BEGIN
  IF pg_try_advisory_xact_lock(:lock_store, :store_exact_count) THEN
    v_count := postrider._count_up_to(p_limit);
    -- Releases the lock at once by rolling back this block: the caller's transaction may stay open.
    RAISE lock_not_available;
  END IF;
  RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
  RETURN v_count;
END $$;

-- Up to p_limit messages of an endpoint, one index scan per place. Planner settings: see _place_of_new.
CREATE FUNCTION postrider._queued_of(p_endpoint bigint, p_limit bigint) RETURNS bigint[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN ARRAY(
    SELECT id FROM postrider.queue WHERE endpoint_id = p_endpoint AND place = :ready
    UNION ALL
    SELECT id FROM postrider.queue WHERE endpoint_id = p_endpoint AND place = :behind_key
    UNION ALL
    SELECT id FROM postrider.queue WHERE endpoint_id = p_endpoint AND place = :on_probation
    LIMIT p_limit);
END $$;

CREATE FUNCTION postrider._queue_full(p_queued bigint, p_limit bigint, p_endpoint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '53400',
    MESSAGE = format('the queue is full: %s messages of %s (%s); try again later or raise max_queue_size',
      p_queued, p_limit, CASE WHEN p_endpoint IS NULL THEN 'the whole queue' ELSE format('endpoint "%s"', p_endpoint) END),
    CONSTRAINT = coalesce(p_endpoint, ''), DETAIL = json_build_object('queued', p_queued, 'limit', p_limit)::text;
END $$;

-- Refuses when the queue, or the endpoint's part of it, would exceed its limit. The first check reads nothing: it adds the ids that
-- were assigned since the last count. Only when that is over the limit anything is read, and while nodes count every second the
-- cost does not grow with the queue.
CREATE FUNCTION postrider._make_room(d postrider._destination, p_more bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_queued bigint;
  v_part postrider._parts;
BEGIN
  IF d.max_queue_size > 0 AND d.queued + p_more > d.max_queue_size THEN
    v_queued := d.queued - ((SELECT coalesce(sum(departed), 0) FROM postrider._departures) - d.departed);
    IF v_queued + p_more > d.max_queue_size THEN
      IF d.max_queue_size <= postrider._counted_at_once() THEN
        v_queued := postrider._count_up_to(d.max_queue_size + 1);
      -- No sender is refused below 95 %, even if every send since the last exact count rolled back.
      ELSIF v_queued - d.unsure < d.max_queue_size - d.max_queue_size / 20
            AND v_queued - d.unsure + p_more <= d.max_queue_size THEN
        v_queued := coalesce(postrider._count_alone(d.max_queue_size + 1), v_queued);
      END IF;
      IF v_queued + p_more > d.max_queue_size THEN
        PERFORM postrider._queue_full(v_queued, d.max_queue_size, NULL);
      END IF;
    END IF;
  END IF;
  IF d.queue_max > 0 AND d.queued + p_more > d.queue_max THEN
    SELECT * INTO v_part FROM postrider._parts WHERE endpoint_id = d.id;
    -- A count from a moment ago is enough.
    IF v_part.queued + greatest(d.last_id - v_part.at_id, 0) + p_more <= d.queue_max AND v_part.at_id IS NOT NULL THEN
      RETURN;
    END IF;
    v_queued := least(v_part.queued + (d.at_id - v_part.at_id), d.queue_max);
    -- A large limit is not counted again while nodes count: either there was room a moment ago, or there is none even if all
    -- messages that left since were of this endpoint. No sender is refused below 95 %.
    IF d.queue_max <= postrider._counted_at_once() OR d.counted_at < postrider._now() - interval '3 seconds'
       OR v_queued + p_more > d.queue_max
          AND (v_part.queued - ((SELECT coalesce(sum(departed), 0) FROM postrider._departures) - v_part.departed)
               >= least(d.queue_max - d.queue_max / 20, d.queue_max - p_more + 1)) IS NOT TRUE THEN
      v_queued := cardinality(postrider._queued_of(d.id, d.queue_max + 1));
    END IF;
    IF v_queued + p_more > d.queue_max THEN
      PERFORM postrider._queue_full(v_queued, d.queue_max, d.name);
    END IF;
  END IF;
END $$;

-- Refuses when the queue, or the part of any endpoint, has no room for the new messages of a batch.
CREATE FUNCTION postrider._make_room_for_batch(
  p_destinations postrider._destination[], p_endpoints text[], p_known bigint[], p_first integer[], p_new bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  d postrider._destination := p_destinations[1];
BEGIN
  d.queue_max := NULL;
  PERFORM postrider._make_room(d, p_new);
  FOR d IN SELECT * FROM unnest(p_destinations) WHERE queue_max > 0 LOOP
    d.max_queue_size := 0;
    PERFORM postrider._make_room(d, CASE WHEN p_endpoints IS NULL THEN p_new ELSE (
      SELECT count(*) FROM unnest(p_endpoints, p_known, p_first) AS m (endpoint, known, first)
      WHERE m.endpoint = d.name AND m.known IS NULL AND m.first IS NULL) END);
  END LOOP;
END $$;

-- Refuses when the queue has no room for all of these dead letters.
CREATE FUNCTION postrider._redrive_room(p_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  d postrider._destination;
  v_endpoint record;
  v_limit bigint;
BEGIN
  SELECT l.max_queue_size, g.queued + (m.last_value - g.at_id), m.last_value - g.exact_id, g.departed, g.counted_at, g.at_id,
         m.last_value
  INTO v_limit, d.queued, d.unsure, d.departed, d.counted_at, d.at_id, d.last_id
  FROM postrider._limits l, postrider._gauge g, postrider.message_ids m;
  d.max_queue_size := v_limit;
  PERFORM postrider._make_room(d, cardinality(p_ids));
  d.max_queue_size := 0;
  FOR v_endpoint IN
    SELECT e.id, e.name, (e.options->>'max_queue_size')::bigint AS queue_max, count(*) AS more
    FROM postrider.dlq l JOIN postrider.endpoints e ON e.id = l.endpoint_id
    WHERE l.id = ANY (p_ids) AND e.options ? 'max_queue_size' GROUP BY e.id ORDER BY e.id
  LOOP
    d.id := v_endpoint.id;
    d.name := v_endpoint.name;
    d.queue_max := v_endpoint.queue_max;
    PERFORM postrider._make_room(d, v_endpoint.more);
  END LOOP;
END $$;

-- How many more messages fit into the whole queue (endpoint_id is null), and into each of these endpoints whose own limit may be
-- too small for p_more.
CREATE FUNCTION postrider._room_left(p_endpoints bigint[], p_more bigint)
RETURNS TABLE (endpoint_id bigint, room bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_queued bigint := postrider._queued();
  v_limit bigint := (SELECT max_queue_size FROM postrider._limits);
BEGIN
  RETURN QUERY
    SELECT NULL::bigint, greatest(v_limit - v_queued, 0) WHERE v_limit > 0
    UNION ALL
    SELECT e.id, e.queue_max - cardinality(postrider._queued_of(e.id, e.queue_max))
    FROM (SELECT o.id, (o.options->>'max_queue_size')::bigint AS queue_max
          FROM postrider.endpoints o WHERE o.id = ANY (p_endpoints)) AS e
    WHERE e.queue_max > 0 AND v_queued + p_more > e.queue_max;
END $$;

-- Updates the gauge: adds the ids that were assigned since, subtracts departures. Nodes do this every second. Sends that rolled back
-- make the sum too high, so a short queue is counted exactly every time, and a long one now and then: a second of counting for
-- some minutes without. One node at a time; the others skip it.
CREATE FUNCTION postrider._recount_queue() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := postrider._now();
  v_last bigint;
  v_departed bigint;
  v_queued bigint;
  v_exact_at timestamptz := (SELECT at FROM postrider._exact_count);
  v_limit bigint := (SELECT max_queue_size FROM postrider._limits);
  g postrider._gauge;
  v_much_queued boolean;
BEGIN
  IF NOT pg_try_advisory_xact_lock(:lock_store, :store_count) THEN
    RETURN;
  END IF;
  -- The sum stays the same, so readers in between are right.
  IF EXISTS (SELECT FROM postrider._counts GROUP BY name HAVING count(*) > 1) THEN
    WITH folded AS (DELETE FROM postrider._counts RETURNING name, value)
    INSERT INTO postrider._counts (name, value) SELECT name, sum(value) FROM folded GROUP BY name;
  END IF;
  -- Queue and departures in one snapshot. The last id is read before it: ids that commit later are counted next time.
  v_last := (SELECT last_value FROM postrider.message_ids);
  SELECT (SELECT coalesce(sum(departed), 0) FROM postrider._departures),
         (SELECT count(*) FROM (SELECT FROM postrider.queue LIMIT postrider._counted_at_once() + 1) AS first_of_them)
  INTO v_departed, v_queued;
  v_much_queued := v_queued > postrider._counted_at_once();
  SELECT * INTO g FROM postrider._gauge;
  IF v_much_queued THEN
    v_queued := g.queued + (v_last - g.at_id) - (v_departed - g.departed);
  ELSE
    g.exact_id := v_last;
  END IF;
  -- Close to the limit, senders need to know how far the figure can be off.
  IF v_limit > postrider._counted_at_once() AND v_queued >= v_limit - v_limit / 10 AND v_last - g.exact_id > v_limit / 40 THEN
    v_exact_at := NULL;
  END IF;
  IF (v_much_queued OR EXISTS (SELECT FROM postrider.dlq WHERE status = 'failed' OFFSET postrider._counted_at_once()))
     AND (v_exact_at IS NULL OR v_exact_at > v_now
          OR v_exact_at < v_now - greatest(30, v_queued / 10000) * interval '1 second') THEN
    v_last := (SELECT last_value FROM postrider.message_ids);
    DELETE FROM postrider._endpoint_gauge;
    WITH queued AS (SELECT endpoint_id, count(*) AS count FROM postrider.queue GROUP BY endpoint_id),
         dead AS (SELECT endpoint_id, count(*) AS count FROM postrider.dlq WHERE status = 'failed' GROUP BY endpoint_id),
         kept AS (INSERT INTO postrider._endpoint_gauge (endpoint_id, queued, dead)
                  SELECT endpoint_id, coalesce(q.count, 0), coalesce(d.count, 0)
                  FROM queued q FULL JOIN dead d USING (endpoint_id) RETURNING queued, dead),
         noted AS (INSERT INTO postrider._exact_count AS x (at, dead) SELECT v_now, coalesce(sum(dead), 0) FROM kept
                   ON CONFLICT (single) DO UPDATE SET at = excluded.at, dead = excluded.dead)
    SELECT coalesce(sum(queued), 0), (SELECT coalesce(sum(departed), 0) FROM postrider._departures)
    INTO v_queued, v_departed FROM kept;
    g.exact_id := v_last;
  END IF;
  IF v_last <> g.at_id OR v_departed <> g.departed THEN
    PERFORM postrider._recount_parts(v_last, v_departed);
  END IF;
  UPDATE postrider._gauge SET queued = greatest(v_queued, 0), at_id = v_last, departed = v_departed, counted_at = v_now,
    exact_id = g.exact_id;
  PERFORM postrider._fold_departures();
  -- Last, because settlements of these claims wait for this commit, or are made later.
  PERFORM postrider._take_claims_along();
END $$;

-- Counts the endpoints with their own limit whose bounds do not tell whether senders are to be refused, because more than a fortieth
-- of the limit came and left since the last count: the most doubtful first, a bounded number of messages at a time. Senders count
-- the others when they have to.
CREATE FUNCTION postrider._recount_parts(p_last bigint, p_departed bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH limited AS (
    SELECT e.id, (e.options->>'max_queue_size')::bigint AS queue_max,
           coalesce(p.queued - (p_departed - p.departed), 0) AS least, p.queued + (p_last - p.at_id) AS most
    FROM postrider.endpoints e LEFT JOIN postrider._parts p ON p.endpoint_id = e.id
    WHERE e.dropped_at IS NULL AND (e.options->>'max_queue_size')::bigint > 0
  ), doubtful AS (
    SELECT *, sum(queue_max) OVER (ORDER BY least::float8 / queue_max, id) - queue_max AS before
    FROM limited WHERE (most < queue_max) IS NOT TRUE AND least < queue_max - queue_max / 40
  ), counted AS (
    SELECT id, queue_max, cardinality(postrider._queued_of(id, queue_max + 1)) AS count
    FROM doubtful WHERE before < 10 * postrider._counted_at_once()
  )
  INSERT INTO postrider._parts (endpoint_id, queued, at_id, departed)
  SELECT id, count, CASE WHEN count <= queue_max THEN p_last END, p_departed FROM counted
  ON CONFLICT (endpoint_id) DO UPDATE
  SET queued = excluded.queued, at_id = excluded.at_id, departed = excluded.departed;
END $$;
