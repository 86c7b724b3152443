-- name: beat
-- A second run changes nothing. Workers have a new id at every start: the silent ones are forgotten here.
WITH silent AS (
    DELETE FROM workers WHERE beat_at < $3::timestamptz - interval '1 day' AND id <> $1
)
INSERT INTO workers (id, stats, beat_at, registry, traffic, started_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET
    stats = excluded.stats, registry = excluded.registry, traffic = excluded.traffic,
    started_at = excluded.started_at, beat_at = greatest(workers.beat_at, excluded.beat_at)

-- name: alive
SELECT count(*) FROM workers WHERE beat_at >= $1

-- name: beats
SELECT id, stats, beat_at, registry, started_at FROM workers WHERE beat_at >= $1 ORDER BY id COLLATE "C"

-- name: traffic
-- Many workers tell of the same few: added up here, an API process reads as much of fifty as of one.
SELECT told.model, told.backend, sum(told.requests)::bigint AS requests, sum(told.errors)::bigint AS errors,
       sum(told.seconds) AS seconds, sum(told.pending)::bigint AS pending
FROM workers, jsonb_to_recordset(workers.traffic) AS told
    (model text, backend text, requests bigint, errors bigint, seconds float8, pending bigint)
WHERE workers.beat_at >= $1
GROUP BY told.model, told.backend
ORDER BY told.model COLLATE "C", told.backend COLLATE "C"
