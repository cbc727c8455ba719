DELETE FROM _postrider_queue;
DELETE FROM _postrider_counts;
INSERT INTO _postrider_counts (endpoint_id, dead, dlq_bytes)
SELECT endpoint_id, count(*), sum(bytes) FROM _postrider_dlq GROUP BY endpoint_id
UNION ALL SELECT 0, count(*), sum(bytes) FROM _postrider_dlq;
