-- name: insert
-- If the row exists already, nothing changes.
INSERT INTO uploads (tenant, id, purpose, filename, mime_type, bytes, expires_after_seconds, status,
                     created_at, expires_at, file_id, completion)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (tenant, id) DO NOTHING

-- name: get
SELECT * FROM uploads WHERE tenant = $1 AND id = $2

-- name: lock
-- Other requests cannot add a part, complete or cancel until the transaction ends.
SELECT * FROM uploads WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE

-- name: insert_part
-- The row of the upload has the number and the bytes of its parts, so that they need not be counted for each
-- new part. Quotas of stored bytes count `part_bytes` if it is greater than the announced size. If the part
-- is stored already, nothing is added.
WITH added AS (
    INSERT INTO upload_parts (tenant, upload_id, id, bytes, storage_key, created_at)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (tenant, upload_id, id) DO NOTHING
    RETURNING bytes
)
UPDATE uploads u SET part_bytes = u.part_bytes + added.bytes, parts = u.parts + 1 FROM added
WHERE u.tenant = $1 AND u.id = $2

-- name: parts
SELECT * FROM upload_parts WHERE tenant = $1 AND upload_id = $2 AND id = ANY($3::text[])

-- name: complete
UPDATE uploads SET status = 'completed', file_id = $3, completion = $4
WHERE tenant = $1 AND id = $2 AND status = 'pending'
RETURNING *

-- name: cancel
-- An upload that has expired is not cancelled. Its status stays `pending` until `record_sweep` changes it to
-- `expired`.
UPDATE uploads SET status = 'cancelled'
WHERE tenant = $1 AND id = $2 AND status = 'pending' AND expires_at > $3

-- name: clear_parts
DELETE FROM upload_parts WHERE tenant = $1 AND upload_id = $2

-- name: unswept
SELECT * FROM uploads
WHERE swept_at IS NULL AND expires_at <= $1 AND (expires_at, tenant, id) > ($2, $3, $4)
ORDER BY expires_at, tenant, id
LIMIT $5

-- name: record_sweep
UPDATE uploads SET status = CASE WHEN status = 'pending' THEN 'expired' ELSE status END, swept_at = $3
WHERE tenant = $1 AND id = $2
