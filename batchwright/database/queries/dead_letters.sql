-- Dead letters (lines that failed after their last attempt), and the batches that retry them.

-- name: insert
-- Runs in the transaction that ends the batch. A batch ends only once.
INSERT INTO dead_letters (tenant, batch_id, id, line_offset, custom_id, model, attempts, failed_at, status, code,
                          message)
SELECT $1, $2, l.id, l."offset", l.custom_id, l.model, l.attempts, l.failed_at, l.status, l.code, l.message
FROM json_to_recordset($3::json) AS l (
    id text, "offset" bigint, custom_id text, model text, attempts integer, failed_at timestamptz,
    status integer, code text, message text)
ON CONFLICT (tenant, id) DO NOTHING

-- name: get
SELECT l.*, r.batch_id AS retried_as, r.made FROM dead_letters l
LEFT JOIN dead_letter_retries r ON r.tenant = l.tenant AND r.batch_id = l.retry_id
WHERE l.id = $1

-- name: position
SELECT failed_at FROM dead_letters WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)

-- name: page
SELECT l.*, r.batch_id AS retried_as, r.made FROM dead_letters l
LEFT JOIN dead_letter_retries r ON r.tenant = l.tenant AND r.batch_id = l.retry_id
WHERE (l.failed_at, l.id) < ($1, $2) AND ($3::text IS NULL OR l.tenant = $3)
  AND ($4::text IS NULL OR l.batch_id = $4)
ORDER BY l.failed_at DESC, l.id DESC
LIMIT $5

-- name: retryable_batches
-- Batches that have dead letters without a retry, or a retry that was created but never started. The query
-- steps through the index from one batch to the next. It does not read all dead letters of each batch.
WITH RECURSIVE free (batch_id, tenant, number) AS (
    (SELECT l.batch_id, l.tenant, 1 FROM dead_letters l
     WHERE l.retry_id IS NULL AND l.batch_id > $1
     ORDER BY l.batch_id, l.tenant LIMIT 1)
    UNION ALL
    SELECT next.batch_id, next.tenant, free.number + 1 FROM free CROSS JOIN LATERAL (
        SELECT l.batch_id, l.tenant FROM dead_letters l
        WHERE l.retry_id IS NULL AND (l.batch_id, l.tenant) > (free.batch_id, free.tenant)
        ORDER BY l.batch_id, l.tenant LIMIT 1) next
    WHERE free.number < $2
)
SELECT tenant, batch_id FROM free
UNION
SELECT r.tenant, r.origin_id FROM dead_letter_retries r
WHERE NOT r.started AND r.origin_id > $1
  AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = r.tenant AND b.id = r.batch_id)
ORDER BY batch_id, tenant
LIMIT $2

-- name: retryable_batches_of_tenant
-- `retryable_batches` for the tenant $1 only.
WITH RECURSIVE free (batch_id, number) AS (
    (SELECT l.batch_id, 1 FROM dead_letters l
     WHERE l.retry_id IS NULL AND l.tenant = $1 AND l.batch_id > $2
     ORDER BY l.batch_id LIMIT 1)
    UNION ALL
    SELECT next.batch_id, free.number + 1 FROM free CROSS JOIN LATERAL (
        SELECT l.batch_id FROM dead_letters l
        WHERE l.retry_id IS NULL AND l.tenant = $1 AND l.batch_id > free.batch_id
        ORDER BY l.batch_id LIMIT 1) next
    WHERE free.number < $3
)
SELECT $1 AS tenant, batch_id FROM free
UNION
SELECT r.tenant, r.origin_id FROM dead_letter_retries r
WHERE NOT r.started AND r.tenant = $1 AND r.origin_id > $2
  AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = r.tenant AND b.id = r.batch_id)
ORDER BY batch_id
LIMIT $3

-- name: retryable_batch
-- Return the batch $1 if `retryable_batches` would return it. If $2 is not null, it must belong to the tenant
-- $2.
SELECT l.tenant, l.batch_id FROM dead_letters l
WHERE l.retry_id IS NULL AND l.batch_id = $1 AND ($2::text IS NULL OR l.tenant = $2)
UNION
SELECT r.tenant, r.origin_id FROM dead_letter_retries r
WHERE NOT r.started AND r.origin_id = $1 AND ($2::text IS NULL OR r.tenant = $2)
  AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = r.tenant AND b.id = r.batch_id)
ORDER BY tenant

-- name: unretried_ids
SELECT l.id FROM dead_letters l
WHERE l.tenant = $1 AND l.batch_id = $2 AND l.retry_id IS NULL
ORDER BY l.line_offset

-- name: unstarted_retries
SELECT r.made FROM dead_letter_retries r
WHERE r.tenant = $1 AND r.origin_id = $2 AND NOT r.started
  AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = r.tenant AND b.id = r.batch_id)

-- name: lock_origin
-- Lock the batch, so that retries of its dead letters are created one after the other.
SELECT id FROM batches WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE

-- name: claim
UPDATE dead_letters l SET retry_id = $3
WHERE l.tenant = $1 AND l.batch_id = $2 AND l.id = ANY($4::text[]) AND l.retry_id IS NULL
RETURNING l.id

-- name: insert_retry
INSERT INTO dead_letter_retries (tenant, batch_id, origin_id, made) VALUES ($1, $2, $3, $4)

-- name: delete
DELETE FROM dead_letters WHERE id = $1 RETURNING id
