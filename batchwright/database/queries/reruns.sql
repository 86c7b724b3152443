-- Batches that retry or resume an ended batch.

-- name: find
SELECT made FROM reruns WHERE tenant = $1 AND origin_id = $2 AND kind = $3

-- name: claim
-- Return no row if the rerun exists already, if there is no such batch, or if a resumption needs results that
-- are no longer kept. If another transaction is deleting the batch, this statement waits for it and then
-- reads the changed row. It compares with `clock_timestamp()`, because `now()` would be the time before the
-- wait.
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
-- Keep the results of the ended batch at least until $3, the deadline of the rerun.
UPDATE batches SET results_kept_until = greatest(results_kept_until, $3)
WHERE tenant = $1 AND id = $2 AND results_kept_until IS NOT NULL

-- name: keep_if_kept
-- Keep the results of the ended batch at least until $3. Return no row if they are no longer kept. If
-- `results_kept_until` is null, the results are in the files of the batch, and nothing changes.
UPDATE batches SET results_kept_until = CASE WHEN results_kept_until IS NOT NULL THEN greatest(results_kept_until, $3) END
WHERE tenant = $1 AND id = $2 AND (results_kept_until IS NULL OR results_kept_until > clock_timestamp())
RETURNING id
