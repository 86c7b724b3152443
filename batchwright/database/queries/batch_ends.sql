-- Ends of batches. Only a live batch gets a final status, and files are added only to a batch with pending
-- files.

-- name: lock
SELECT id FROM batches WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE

-- name: fail_validation
-- Runs in one transaction with `clear_progress`.
UPDATE batches SET status = 'failed', failed_at = not_before($3, batches), total = $4, errors = $5
WHERE tenant = $1 AND id = $2 AND status = 'validating'
RETURNING id

-- name: close
-- Runs in one transaction with `lock`, `clear_progress` and the statements that insert the rows of the files.
UPDATE batches SET
    status = $3,
    completed_at = CASE WHEN $3 = 'completed' THEN not_before($4, batches) END,
    failed_at = CASE WHEN $3 = 'failed' THEN not_before($4, batches) END,
    expired_at = CASE WHEN $3 = 'expired' THEN not_before($4, batches) END,
    cancelled_at = CASE WHEN $3 = 'cancelled' THEN not_before($4, batches) END,
    cancel_requested_at = CASE WHEN $3 = 'cancelled' AND cancel_requested_at IS NULL
        THEN not_before($4, batches) ELSE cancel_requested_at END,
    errors = $5,
    output_file_id = $6,
    error_file_id = $7,
    models = $8,
    total = greatest(total, $9::bigint + $10::bigint),
    completed = $9,
    failed = $10,
    input_tokens = $11,
    cached_tokens = $12,
    output_tokens = $13,
    reasoning_tokens = $14,
    errors_summary = $15,
    model_usage = $16
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')
RETURNING id

-- name: keep_results
UPDATE batches SET results_kept_until = $3, files_pending_until = $4
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')

-- name: add_files
-- The status and its time do not change. Runs in one transaction with `lock` and the statements that insert
-- the rows of the files.
UPDATE batches SET
    files_pending_until = NULL,
    output_file_id = $3,
    error_file_id = $4,
    models = $5,
    total = greatest(total, $6::bigint + $7::bigint),
    completed = $6,
    failed = $7,
    input_tokens = $8,
    cached_tokens = $9,
    output_tokens = $10,
    reasoning_tokens = $11,
    errors_summary = $12,
    model_usage = $13
WHERE tenant = $1 AND id = $2 AND status IN ('expired', 'cancelled', 'failed') AND files_pending_until IS NOT NULL
RETURNING id

-- name: abandon_files
UPDATE batches SET
    files_pending_until = NULL, errors = $3, total = greatest(total, $4::bigint), results_kept_until = $5
WHERE tenant = $1 AND id = $2 AND status IN ('expired', 'cancelled', 'failed') AND files_pending_until IS NOT NULL
RETURNING id

-- name: clear_progress
-- Delete what only a live batch needs. The rows of `slice_progress` are locked in the order in which workers
-- write them, so that no deadlock can occur.
WITH answered AS (DELETE FROM waiting_reasons WHERE tenant = $1 AND batch_id = $2),
     attempts AS (DELETE FROM ingest_attempts WHERE tenant = $1 AND batch_id = $2),
     forecast AS (DELETE FROM forecasts WHERE tenant = $1 AND batch_id = $2)
DELETE FROM slice_progress WHERE tenant = $1 AND batch_id = $2 AND (model, number) IN (
    SELECT model, number FROM slice_progress WHERE tenant = $1 AND batch_id = $2
    ORDER BY model, number FOR UPDATE)
