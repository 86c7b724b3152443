-- name: beat
-- A second run changes nothing. Workers have a new id at every start: the silent ones are forgotten here.
WITH silent AS (
    DELETE FROM workers WHERE beat_at < $3::timestamptz - interval '1 day' AND id <> $1
)
INSERT INTO workers (id, stats, beat_at, registry) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE SET
    stats = excluded.stats, registry = excluded.registry, beat_at = greatest(workers.beat_at, excluded.beat_at)

-- name: alive
SELECT count(*) FROM workers WHERE beat_at >= $1

-- name: beats
SELECT id, stats, beat_at, registry FROM workers WHERE beat_at >= $1 ORDER BY id COLLATE "C"
