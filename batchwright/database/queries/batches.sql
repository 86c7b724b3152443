-- Statements about one batch. A change of the status requires a certain earlier status, so a repeated
-- statement changes nothing.

-- name: pin_input
-- Lock the input file, so that it is not deleted before the row of the batch is inserted.
SELECT id FROM files WHERE tenant = $1 AND id = $2 FOR KEY SHARE

-- name: insert
-- If the batch retries dead letters of another batch, record that this retry has started.
WITH started AS (UPDATE dead_letter_retries SET started = true WHERE tenant = $1 AND batch_id = $2 AND NOT started),
inserted AS (
    INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, metadata,
                         output_expires_after_seconds, weight, priority, max_cost, policy, created_at, deadline,
                         status, origin, start_at, input_location, output_location)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::numeric, $11, $12, $13, 'validating', $14, $16, $17, $18
    WHERE NOT EXISTS (SELECT FROM deleted_batches WHERE tenant = $1 AND id = $2)
    ON CONFLICT (tenant, id) DO NOTHING
    RETURNING tenant, id, created_at
)
INSERT INTO batch_tags (tenant, batch_id, tag, created_at)
SELECT tenant, id, unnest($15::bytea[]), created_at FROM inserted

-- name: get
SELECT b.*, reported_models, reported_usage, reported_errors
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND b.id = $2

-- name: get_with_reasons
-- `get`, and also the reasons why the batch waits and its forecast, because a client that polls a batch needs
-- all of them.
SELECT b.*, reported_models, reported_usage, reported_errors, (
    SELECT jsonb_agg(w ORDER BY w.model COLLATE "C", w.source COLLATE "C") FROM waiting_reasons w
    WHERE w.tenant = b.tenant AND w.batch_id = b.id AND w.until > $3) AS waiting, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND b.id = $2

-- name: request_cancel
UPDATE batches SET cancel_requested_at = not_before($3, batches)
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')
  AND cancel_requested_at IS NULL

-- name: set_max_cost
UPDATE batches SET max_cost = $3::text::numeric
WHERE tenant = $1 AND id = $2 AND status = 'in_progress' AND cancel_requested_at IS NULL AND cap_reached_at IS NULL
RETURNING id

-- name: claim_pause_or_resume
UPDATE batches SET pause_changes = pause_changes + 1
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')
  AND pause_changes - failed_pause_changes < $3
RETURNING pause_changes

-- name: release_pause_or_resume
UPDATE batches SET failed_pause_changes = failed_pause_changes + 1
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')

-- name: record_output_copy
-- `pending` can become `written` or `failed`. `failed` can become `written`, because an attempt may still
-- succeed after the workflow has stopped waiting for it.
UPDATE batches SET output_copy = $3
WHERE tenant = $1 AND id = $2 AND status IN ('completed', 'failed', 'expired', 'cancelled')
  AND output_location IS NOT NULL
  AND (coalesce(output_copy->>'state', 'pending') = 'pending'
       OR (output_copy->>'state' = 'failed' AND $3::json->>'state' = 'written'))

-- name: start
WITH started AS (
    UPDATE batches SET
        status = 'in_progress', in_progress_at = not_before($3, batches), total = $4, models = $5,
        failed = $6, completed = $7, ingestion_began_at = $8, ingestion_errors = $9, prices = $11
    WHERE tenant = $1 AND id = $2 AND status = 'validating'
    RETURNING tenant, id, created_at, in_progress_at, completed, failed
), of_models AS (
    INSERT INTO batch_tags (tenant, batch_id, tag, created_at)
    SELECT tenant, id, unnest($10::bytea[]), created_at FROM started
), sampled AS (
    INSERT INTO throughput (tenant, batch_id, sampled_at, settled)
    SELECT tenant, id, ARRAY[in_progress_at], ARRAY[completed + failed] FROM started
)
SELECT id FROM started

-- name: start_finalizing
WITH moved AS (
    UPDATE batches SET status = 'finalizing', finalizing_at = not_before($3, batches)
    WHERE tenant = $1 AND id = $2 AND status = 'in_progress'
    RETURNING id, finalizing_at, completed + failed AS ingested
), sampled AS (
    UPDATE throughput t SET
        sampled_at = t.sampled_at || m.finalizing_at,
        settled = t.settled || m.ingested + (
            SELECT coalesce(sum(p.completed + p.failed), 0)::bigint FROM slice_progress p
            WHERE p.tenant = $1 AND p.batch_id = $2)
    FROM moved m WHERE t.tenant = $1 AND t.batch_id = $2
)
SELECT id FROM moved

-- name: add_attempt
INSERT INTO ingest_attempts (tenant, batch_id, prefix, bytes)
SELECT tenant, id, $3, $4 FROM batches
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing')
ON CONFLICT (tenant, batch_id, prefix) DO NOTHING

-- name: remove_attempt
DELETE FROM ingest_attempts WHERE tenant = $1 AND batch_id = $2 AND prefix = $3
