-- Lists of messages, in windows of descending ids; the program chooses the width of a window.

-- The message with the highest id up to p_id that is queued or dead, if p_state includes that.
CREATE FUNCTION postrider._latest_open(p_state text, p_id bigint, OUT id bigint, OUT created_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  SELECT l.id, l.created_at INTO id, created_at FROM (
    (SELECT q.id, q.created_at FROM postrider.queue q
     WHERE (p_state IS NULL OR p_state IN ('pending', 'processing')) AND q.id <= p_id ORDER BY q.id DESC LIMIT 1)
    UNION ALL
    (SELECT d.message_id, d.created_at FROM postrider.dlq d
     WHERE (p_state IS NULL OR p_state = 'dead') AND d.message_id <= p_id ORDER BY d.message_id DESC LIMIT 1)) AS l
  ORDER BY l.id DESC LIMIT 1;
END $$;

-- The highest id up to p_id of a message that was archived and created before p_created_before, or slightly more. Bisection,
-- because a plan that reads until it finds one would read everything when there is none.
CREATE FUNCTION postrider._last_archived(p_id bigint, p_created_before timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
  v_before timestamptz := coalesce(p_created_before, 'infinity');
  v_first bigint := 0;
  v_last bigint := p_id;
  v_middle bigint;
BEGIN
  WHILE v_last - v_first > 500 LOOP
    v_middle := v_first + (v_last - v_first) / 2;
    IF EXISTS (SELECT FROM postrider.archive a WHERE a.id > v_middle AND a.id <= v_last AND a.created_at < v_before) THEN
      v_first := v_middle;
    ELSE
      v_last := v_middle;
    END IF;
  END LOOP;
  RETURN v_last;
END $$;

-- The highest id that can match, or slightly more, so that a list does not walk window by window over messages that cannot match.
-- Queued and dead messages that were created after p_too_new cannot. The name of an endpoint that never existed is an error, not
-- an empty list.
CREATE FUNCTION postrider._begin_list(p_endpoint text, p_state text, p_created_before timestamptz, p_too_new timestamptz)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_last_of_all bigint := (SELECT last_value FROM postrider.message_ids);
  v_first bigint := 0;
  v_last bigint := v_last_of_all;
  v_middle bigint;
  v_found record;
BEGIN
  IF p_endpoint IS NOT NULL AND NOT EXISTS (SELECT FROM postrider.endpoints WHERE name = p_endpoint) THEN
    PERFORM postrider._unknown('endpoint', p_endpoint);
  END IF;
  IF p_state IS NULL AND p_created_before IS NULL THEN
    RETURN v_last_of_all;
  END IF;
  WHILE p_too_new IS NOT NULL AND v_last - v_first > 500 LOOP
    v_middle := v_first + (v_last - v_first) / 2;
    v_found := postrider._latest_open(p_state, v_middle);
    IF v_found.created_at > p_too_new THEN
      v_last := v_found.id - 1;
    ELSE
      v_first := v_middle;
    END IF;
  END LOOP;
  v_last := coalesce((postrider._latest_open(p_state, v_last)).id, 0);
  IF p_state IS NULL OR p_state IN ('completed', 'expired', 'cancelled') THEN
    v_last := greatest(v_last, postrider._last_archived(v_last_of_all, p_created_before));
  END IF;
  RETURN v_last;
END $$;

-- The messages with p_from <= id < p_to, wherever they are. Every row has the number of messages in the window, matching or not,
-- the creation time of the newest, and the id from which on all were read: the p_rows_max highest of the queue and of the DLQ. The
-- archive has no order, so when it has more than that in the window, from_id is null. Without a match there is one row without a
-- message. Reading is what costs, so rows are counted before they are filtered; claimed messages are always few.
CREATE FUNCTION postrider._list_window(
  p_from bigint, p_to bigint, p_rows_max bigint, p_state text, p_endpoint text, p_ordering_key text, p_event_type text,
  p_correlation_id uuid, p_created_after timestamptz, p_created_before timestamptz, p_limit bigint)
RETURNS TABLE (rows bigint, newest timestamptz, from_id bigint, id bigint, endpoint text, state text, priority smallint,
               due_at timestamptz, attempts integer, last_error text, content_type text, idempotency_key text,
               correlation_id uuid, ordering_key text, event_type text, created_at timestamptz,
               scheduled_at timestamptz, expires_at timestamptz, finished_at timestamptz, dlq_id bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_claimed bigint[] := postrider._claimed_ids();
  -- Compare ids, and join names only for the result: there may be thousands of messages.
  v_endpoints bigint[] := ARRAY(SELECT e.id FROM postrider.endpoints e WHERE e.name = p_endpoint);
  v_after timestamptz := coalesce(p_created_after, '-infinity');
  v_before timestamptz := coalesce(p_created_before, 'infinity');
BEGIN
  RETURN QUERY
    WITH queued AS (
      (SELECT q.*, false AS claimed FROM postrider.queue q
       WHERE (p_state IS NULL OR p_state = 'pending') AND q.id >= p_from AND q.id < p_to
       ORDER BY q.id DESC LIMIT p_rows_max)
      UNION ALL
      SELECT q.*, true FROM postrider.queue q
      WHERE p_state = 'processing' AND q.id = ANY (v_claimed) AND q.id >= p_from AND q.id < p_to
    ), w AS MATERIALIZED (
      SELECT 1 AS source, q.id, q.endpoint_id, CASE WHEN q.claimed OR q.id = ANY (v_claimed) THEN 'processing' ELSE 'pending' END AS state,
        q.priority, q.due_at, q.attempts, q.last_error, q.content_type, q.idempotency_key, q.correlation_id,
        q.ordering_key, q.event_type, q.created_at, q.scheduled_at, q.expires_at, NULL::timestamptz AS finished_at,
        NULL::bigint AS dlq_id
      FROM queued q
      UNION ALL
      -- created_at excludes months that cannot match.
      (SELECT 2, a.id, a.endpoint_id, a.status, a.priority, NULL, a.attempts, a.last_error, a.content_type,
        a.idempotency_key, a.correlation_id, a.ordering_key, a.event_type, a.created_at, a.scheduled_at, a.expires_at,
        a.finished_at, NULL
       FROM postrider.archive a
       WHERE (p_state IS NULL OR p_state IN ('completed', 'expired', 'cancelled')) AND a.id >= p_from AND a.id < p_to
         AND a.created_at >= v_after AND a.created_at <= v_before
       LIMIT p_rows_max + 1)
      UNION ALL
      (SELECT 3, d.message_id, d.endpoint_id, 'dead', d.priority, NULL, d.attempts, d.last_error, d.content_type,
        d.idempotency_key, d.correlation_id, d.ordering_key, d.event_type, d.created_at, d.scheduled_at, d.expires_at,
        d.died_at, d.id
       FROM postrider.dlq d
       WHERE (p_state IS NULL OR p_state = 'dead') AND d.status <> 'redriven' AND d.message_id >= p_from
         AND d.message_id < p_to
       ORDER BY d.message_id DESC LIMIT p_rows_max)
    ), source AS (
      SELECT source, count(*) AS rows, min(w.id) AS lowest, max(w.created_at) AS newest FROM w GROUP BY source
    ), counted AS (
      SELECT coalesce(sum(s.rows), 0)::bigint AS rows, max(s.newest) AS newest,
        CASE WHEN bool_or(s.source = 2 AND s.rows > p_rows_max) THEN NULL
             ELSE greatest(p_from, max(s.lowest) FILTER (WHERE s.source <> 2 AND s.rows >= p_rows_max)) END AS from_id
      FROM source s
    ), matching AS (
      SELECT w.* FROM w
      WHERE (p_state IS NULL OR w.state = p_state) AND (p_endpoint IS NULL OR w.endpoint_id = ANY (v_endpoints))
        AND (p_ordering_key IS NULL OR w.ordering_key = p_ordering_key)
        AND (p_event_type IS NULL OR w.event_type = p_event_type)
        AND (p_correlation_id IS NULL OR w.correlation_id = p_correlation_id)
        -- Another program may have written infinity.
        AND w.created_at >= v_after AND (p_created_before IS NULL OR w.created_at < v_before)
      ORDER BY w.id DESC LIMIT p_limit
    )
    SELECT c.rows, c.newest, c.from_id, m.id, (SELECT e.name FROM postrider.endpoints e WHERE e.id = m.endpoint_id), m.state,
      m.priority, CASE WHEN m.state = 'pending' THEN m.due_at END,
      m.attempts + (m.state = 'processing')::integer, m.last_error, m.content_type, m.idempotency_key,
      m.correlation_id, m.ordering_key, m.event_type, m.created_at, m.scheduled_at, m.expires_at, m.finished_at, m.dlq_id
    FROM counted c LEFT JOIN matching m ON m.id >= c.from_id ORDER BY m.id DESC;
END $$;
