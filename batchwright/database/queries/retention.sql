-- Queries that find and delete expired data. They are over all tenants, except queries with a parameter for
-- the tenant. A page begins after the last row of the previous page.

-- name: expired_files
-- Files that expired at $1 or earlier and that no schedule and no batch needs. A file of a batch that ended
-- after $1 is left out. A request that found the file before it expired has created its batch by now.
SELECT f.* FROM files f
WHERE f.expires_at <= $1 AND (f.expires_at, f.tenant, f.id) > ($2, $3, $4) AND NOT EXISTS (
    SELECT FROM batches b
    WHERE b.tenant = f.tenant AND b.input_file_id = f.id
      AND (coalesce(coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at) > $1, true)
           OR b.files_pending_until > now()))
  AND NOT EXISTS (SELECT FROM schedules s WHERE s.tenant = f.tenant AND s.input_file_id = f.id)
ORDER BY f.expires_at, f.tenant, f.id
LIMIT $5

-- name: remove_file
-- A file that a batch or a schedule still needs is not deleted, because its object in storage is deleted
-- together with the row. If the statement is repeated, it deletes nothing.
DELETE FROM files f
WHERE f.tenant = $1 AND f.id = $2 AND f.storage_key = $3 AND NOT EXISTS (
    SELECT FROM batches b
    WHERE b.tenant = f.tenant AND b.input_file_id = f.id
      AND (b.status IN ('validating', 'in_progress', 'finalizing') OR b.files_pending_until > now()))
  AND NOT EXISTS (SELECT FROM schedules s WHERE s.tenant = f.tenant AND s.input_file_id = f.id)
RETURNING f.id

-- name: ended_batches
SELECT tenant, id, coalesce(completed_at, failed_at, expired_at, cancelled_at) AS ended_at FROM batches
WHERE swept_at IS NULL AND (results_kept_until IS NULL OR results_kept_until <= now())
  AND (files_pending_until IS NULL OR files_pending_until <= now())
  AND coalesce(completed_at, failed_at, expired_at, cancelled_at) <= $1
  AND (coalesce(completed_at, failed_at, expired_at, cancelled_at), tenant, id) > ($2, $3, $4)
ORDER BY 3, tenant, id
LIMIT $5

-- name: record_sweep
UPDATE batches SET swept_at = $3, files_pending_until = NULL WHERE tenant = $1 AND id = $2 AND swept_at IS NULL RETURNING id

-- name: clear_progress
-- The rows are locked in the order in which workers write them, so that no deadlock can occur.
DELETE FROM slice_progress WHERE tenant = $1 AND batch_id = $2 AND (model, number) IN (
    SELECT model, number FROM slice_progress WHERE tenant = $1 AND batch_id = $2
    ORDER BY model, number FOR UPDATE)

-- name: old_batches
-- Batches whose row can be deleted: their output and error files no longer exist. Rolling batches can be
-- deleted two days after their end, because there are many of them. Each of the two parts reads its rows in
-- the order of an index, and reads no younger rows.
SELECT tenant, id, ended_at FROM (
    (SELECT b.tenant, b.id, coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at) AS ended_at
     FROM batches b
     WHERE b.swept_at IS NOT NULL AND coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at) <= $1
       AND (coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at), b.tenant, b.id) > ($2, $3, $4)
       AND NOT EXISTS (
         SELECT FROM files f WHERE f.tenant = b.tenant AND f.id IN (b.output_file_id, b.error_file_id))
     ORDER BY 3, b.tenant, b.id
     LIMIT $5)
    UNION ALL
    (SELECT b.tenant, b.id, coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at) AS ended_at
     FROM batches b
     WHERE b.swept_at IS NOT NULL AND b.rolling
       AND coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at) > $1
       AND coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at) <= now() - interval '2 days'
       AND (coalesce(b.completed_at, b.failed_at, b.expired_at, b.cancelled_at), b.tenant, b.id) > ($2, $3, $4)
       AND NOT EXISTS (
         SELECT FROM files f WHERE f.tenant = b.tenant AND f.id IN (b.output_file_id, b.error_file_id))
     ORDER BY 3, b.tenant, b.id
     LIMIT $5)
) old
ORDER BY ended_at, tenant, id
LIMIT $5

-- name: remove_batch
-- Delete a batch, and the record that it was a rerun or retried dead letters. A later request to rerun the
-- same ended batch creates a new batch.
WITH gone AS (
    DELETE FROM batches WHERE tenant = $1 AND id = $2 AND swept_at IS NOT NULL RETURNING tenant, id
), forgotten AS (
    DELETE FROM reruns c USING gone WHERE c.tenant = gone.tenant AND c.batch_id = gone.id
), unlinked AS (
    DELETE FROM dead_letter_retries r USING gone WHERE r.tenant = gone.tenant AND r.batch_id = gone.id)
SELECT id FROM gone

-- name: old_uploads
SELECT tenant, id, expires_at AS ended_at FROM uploads
WHERE swept_at IS NOT NULL AND expires_at <= $1 AND (expires_at, tenant, id) > ($2, $3, $4)
ORDER BY expires_at, tenant, id
LIMIT $5

-- name: remove_upload
DELETE FROM uploads WHERE tenant = $1 AND id = $2 AND swept_at IS NOT NULL RETURNING id

-- name: count_idempotency_keys
SELECT count(*) FROM idempotency_keys WHERE created_at <= $1

-- name: remove_idempotency_keys
-- Delete at most $2 keys. Rows that another retention run is deleting now are skipped.
WITH gone AS (
    DELETE FROM idempotency_keys WHERE (tenant, operation, key) IN (
        SELECT tenant, operation, key FROM idempotency_keys WHERE created_at <= $1
        ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)
      AND created_at <= $1
    RETURNING 1)
SELECT count(*) FROM gone

-- name: tenants
-- The query steps through the indexes from one tenant to the next. It does not read all rows of each tenant.
WITH RECURSIVE found (tenant, number) AS (
    SELECT least((SELECT min(f.tenant) FROM files f WHERE f.tenant > $1),
                 (SELECT min(b.tenant) FROM batches b WHERE b.tenant > $1),
                 (SELECT min(u.tenant) FROM uploads u WHERE u.tenant > $1)), 1
    UNION ALL
    SELECT least((SELECT min(f.tenant) FROM files f WHERE f.tenant > found.tenant),
                 (SELECT min(b.tenant) FROM batches b WHERE b.tenant > found.tenant),
                 (SELECT min(u.tenant) FROM uploads u WHERE u.tenant > found.tenant)), number + 1
    FROM found
    WHERE found.tenant IS NOT NULL AND number < $2
)
SELECT tenant FROM found WHERE tenant IS NOT NULL ORDER BY tenant

-- name: storage_keys
SELECT id, storage_key FROM files WHERE tenant = $1 AND id = ANY($2::text[])

-- name: open_uploads
SELECT id FROM uploads WHERE tenant = $1 AND id = ANY($2::text[]) AND swept_at IS NULL

-- name: live_batches
-- Batches whose objects must stay in storage: live batches, batches whose results are kept, and batches with
-- pending files.
SELECT id FROM batches WHERE tenant = $1 AND status IN ('validating', 'in_progress', 'finalizing')
UNION
SELECT id FROM batches WHERE tenant = $1 AND results_kept_until > now()
UNION
SELECT id FROM batches WHERE tenant = $1 AND files_pending_until > now()

-- name: miscounted
-- Ended batches with files whose completed and failed lines do not add up to the total. Every line must be in
-- one of the files.
SELECT b.*, NULL::jsonb AS reported_models, NULL::jsonb AS reported_usage, NULL::jsonb AS reported_errors FROM batches b
WHERE b.status IN ('completed', 'failed', 'expired', 'cancelled')
  AND coalesce(b.output_file_id, b.error_file_id) IS NOT NULL AND b.completed + b.failed <> b.total
ORDER BY b.tenant, b.id
LIMIT 1000

-- name: settled_files
-- Files that have not expired at $4 and were created at $3 or earlier. Newer files may be incomplete.
SELECT * FROM files
WHERE tenant = $1 AND id > $2 AND created_at <= $3 AND (expires_at IS NULL OR expires_at > $4)
ORDER BY id
LIMIT $5

-- name: record_success
INSERT INTO retention (kind, succeeded_at) VALUES ($1, $2)
ON CONFLICT (kind) DO UPDATE SET succeeded_at = greatest(retention.succeeded_at, excluded.succeeded_at)

-- name: successes
SELECT kind, succeeded_at FROM retention

-- name: mark
SELECT id, marked_at FROM storage_mark

-- name: record_mark
UPDATE storage_mark SET marked_at = coalesce(marked_at, $1)
