-- Deletion of ended batches at the request of their tenants.

-- name: lock
-- Lock the batch, so that no other batch can begin to resume it until the transaction ends.
SELECT id FROM batches WHERE tenant = $1 AND id = $2 FOR UPDATE

-- name: reader
-- Return the batch that resumes this batch and still reads its results.
SELECT b.id FROM reruns r JOIN batches b ON b.tenant = r.tenant AND b.id = r.batch_id
WHERE r.tenant = $1 AND r.origin_id = $2 AND r.kind = 'resume' AND b.status = 'validating'

-- name: release_results
-- Record that the results of the batch are no longer kept, so that no other batch can begin to resume it.
-- The column is set even if it was null because the results are in the output and error files.
UPDATE batches SET results_kept_until = least(results_kept_until, now()) WHERE tenant = $1 AND id = $2

-- name: hide_files
DELETE FROM files f USING batches b
WHERE b.tenant = $1 AND b.id = $2 AND f.tenant = $1 AND f.id IN (b.output_file_id, b.error_file_id)

-- name: remove
-- Delete an ended batch, its waiting reasons, the record that it was a rerun or retried dead letters, and its
-- admission, which would count again without the row of the batch.
-- Dead letters, tags, forecasts and progress are deleted with the row of the batch. The id is stored in
-- `deleted_batches`, so that no process inserts the row again.
WITH gone AS (
    DELETE FROM batches
    WHERE tenant = $1 AND id = $2 AND status IN ('completed', 'failed', 'expired', 'cancelled')
      AND files_pending_until IS NULL
    RETURNING tenant, id
), recorded AS (
    INSERT INTO deleted_batches (tenant, id, deleted_at) SELECT tenant, id, $3 FROM gone ON CONFLICT DO NOTHING
), forgotten AS (
    DELETE FROM reruns c USING gone WHERE c.tenant = gone.tenant AND c.batch_id = gone.id
), unlinked AS (
    DELETE FROM dead_letter_retries r USING gone WHERE r.tenant = gone.tenant AND r.batch_id = gone.id
), counted AS (
    DELETE FROM admissions a USING gone WHERE a.tenant = gone.tenant AND a.id = gone.id
), answered AS (
    DELETE FROM waiting_reasons w USING gone WHERE w.tenant = gone.tenant AND w.batch_id = gone.id)
SELECT id FROM gone

-- name: is_deleted
SELECT id FROM deleted_batches WHERE tenant = $1 AND id = $2

-- name: forget
DELETE FROM deleted_batches WHERE deleted_at <= $1
