-- Every move names the states it may leave; a second run finds the row moved and changes nothing.

-- name: pin_input
-- Held against the file's deletion until the batch that reads it is there.
SELECT id FROM files WHERE tenant = $1 AND id = $2 FOR KEY SHARE

-- name: insert
-- A retry of dead letters is begun with it.
WITH begun AS (UPDATE dead_letter_retries SET begun = true WHERE tenant = $1 AND batch_id = $2 AND NOT begun)
INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, metadata,
                     output_expires_after_seconds, weight, priority, policy, created_at, expires_at, status, origin)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'validating', $13)
ON CONFLICT (tenant, id) DO NOTHING

-- name: get
SELECT b.*, told_models, told_usage
FROM batches b
LEFT JOIN LATERAL told(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND b.id = $2

-- name: get_waiting
-- The same, and what is told of its waiting: every poll of a live batch asks for both.
SELECT b.*, told_models, told_usage, (
    SELECT jsonb_agg(w ORDER BY w.model COLLATE "C", w.source COLLATE "C") FROM waiting w
    WHERE w.tenant = b.tenant AND w.batch_id = b.id AND w.until > $3) AS waiting
FROM batches b
LEFT JOIN LATERAL told(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND b.id = $2

-- name: lock
SELECT id FROM batches WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE

-- name: position
SELECT created_at FROM batches WHERE tenant = $1 AND id = $2

-- name: page
SELECT b.*, told_models, told_usage
FROM batches b
LEFT JOIN LATERAL told(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND (b.created_at, b.id) < ($2, $3)
ORDER BY b.created_at DESC, b.id DESC
LIMIT $4

-- name: count_live
SELECT count(*) FROM batches
WHERE tenant = $1 AND status IN ('validating', 'in_progress', 'finalizing')

-- name: note_cancel
UPDATE batches SET cancel_requested_at = not_before($3, batches)
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')
  AND cancel_requested_at IS NULL

-- name: begin
UPDATE batches SET
    status = 'in_progress', in_progress_at = not_before($3, batches), total = $4, models = $5,
    failed = $6, completed = $7
WHERE tenant = $1 AND id = $2 AND status = 'validating'
RETURNING id

-- name: fail_validation
UPDATE batches SET status = 'failed', failed_at = not_before($3, batches), total = $4, errors = $5
WHERE tenant = $1 AND id = $2 AND status = 'validating'
RETURNING id

-- name: start_finalizing
UPDATE batches SET status = 'finalizing', finalizing_at = not_before($3, batches)
WHERE tenant = $1 AND id = $2 AND status = 'in_progress'
RETURNING id

-- name: close
-- In one transaction with `lock`, the files' rows and `clear_progress`.
UPDATE batches SET
    status = $3,
    completed_at = CASE WHEN $3 = 'completed' THEN not_before($4, batches) END,
    failed_at = CASE WHEN $3 = 'failed' THEN not_before($4, batches) END,
    expired_at = CASE WHEN $3 = 'expired' THEN not_before($4, batches) END,
    cancelled_at = CASE WHEN $3 = 'cancelled' THEN not_before($4, batches) END,
    cancel_requested_at = CASE WHEN $3 = 'cancelled' AND cancel_requested_at IS NULL
        THEN not_before($4, batches) ELSE cancel_requested_at END,
    output_file_id = $5,
    error_file_id = $6,
    errors = $7,
    models = $8,
    total = greatest(total, $9::bigint + $10::bigint),
    completed = $9,
    failed = $10,
    input_tokens = $11,
    cached_tokens = $12,
    output_tokens = $13,
    reasoning_tokens = $14
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')
RETURNING id

-- name: keep_results
UPDATE batches SET results_kept_until = $3
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')

-- name: clear_progress
WITH answered AS (DELETE FROM waiting WHERE tenant = $1 AND batch_id = $2)
DELETE FROM slice_progress WHERE tenant = $1 AND batch_id = $2
