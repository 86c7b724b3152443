-- Batches that retry or resume an ended batch.

-- name: find
SELECT made FROM reruns WHERE tenant = $1 AND origin_id = $2 AND kind = $3

-- name: claim
-- The lock waits for a deletion that has begun, and then reads what it has changed. `now()` would be the time
-- before the wait.
INSERT INTO reruns (tenant, origin_id, kind, batch_id, made)
SELECT tenant, id, $3, $4, $5 FROM batches
WHERE tenant = $1 AND id = $2
  AND ($3 <> 'resume' OR results_kept_until IS NULL OR results_kept_until > clock_timestamp())
FOR NO KEY UPDATE
ON CONFLICT (tenant, origin_id, kind) DO NOTHING
RETURNING batch_id

-- name: exists
SELECT id FROM batches WHERE tenant = $1 AND id = $2

-- name: keep_longer
-- The results that the new batch reuses are kept until its deadline.
UPDATE batches SET results_kept_until = greatest(results_kept_until, $3)
WHERE tenant = $1 AND id = $2 AND results_kept_until IS NOT NULL

-- name: keep_if_kept
-- A batch without `results_kept_until` keeps its results in its files.
UPDATE batches SET results_kept_until = CASE WHEN results_kept_until IS NOT NULL THEN greatest(results_kept_until, $3) END
WHERE tenant = $1 AND id = $2 AND (results_kept_until IS NULL OR results_kept_until > clock_timestamp())
RETURNING id
