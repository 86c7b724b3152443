-- name: insert
-- If the file has a row already, that row is returned unchanged: without an update, it would not be returned.
INSERT INTO files (tenant, id, purpose, filename, bytes, created_at, expires_at, storage_key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant, id) DO UPDATE SET storage_key = files.storage_key
RETURNING *

-- name: get
SELECT * FROM known_files WHERE tenant = $1 AND id = $2

-- name: get_all
SELECT * FROM known_files WHERE tenant = $1 AND id = ANY ($2::text[])

-- name: position
-- Expired files are included, so that a list continues after them.
SELECT created_at FROM files WHERE tenant = $1 AND id = $2

-- name: page_up
-- Files with the purpose `calls` (inputs of rolling batches) are in no list, because there are very many of
-- them.
SELECT * FROM known_files
WHERE tenant = $1 AND (created_at, id) > ($2, $3) AND purpose <> 'calls'
ORDER BY created_at, id
LIMIT $4

-- name: page_down
SELECT * FROM known_files
WHERE tenant = $1 AND (created_at, id) < ($2, $3) AND purpose <> 'calls'
ORDER BY created_at DESC, id DESC
LIMIT $4

-- name: purpose_up
SELECT * FROM known_files
WHERE tenant = $1 AND (created_at, id) > ($2, $3) AND purpose = $5
ORDER BY created_at, id
LIMIT $4

-- name: purpose_down
SELECT * FROM known_files
WHERE tenant = $1 AND (created_at, id) < ($2, $3) AND purpose = $5
ORDER BY created_at DESC, id DESC
LIMIT $4

-- name: lock
-- Runs before `reader`, so that no batch is created for the file between `reader` and `delete`.
SELECT id FROM files WHERE tenant = $1 AND id = $2 FOR UPDATE

-- name: reader
SELECT id FROM batches
WHERE tenant = $1 AND input_file_id = $2
  AND (status IN ('validating', 'in_progress', 'finalizing') OR files_pending_until > now())
LIMIT 1

-- name: input
SELECT id FROM batches WHERE tenant = $1 AND input_file_id = $2 LIMIT 1

-- name: delete
-- If the statement is repeated, it deletes nothing. A file that a schedule needs can be deleted even after it
-- has expired.
DELETE FROM files f
WHERE f.tenant = $1 AND f.id = $2 AND (f.expires_at IS NULL OR f.expires_at > now()
   OR EXISTS (SELECT FROM schedules s WHERE s.tenant = $1 AND s.input_file_id = f.id))
RETURNING *
