-- name: all
SELECT kind, name, held_at FROM holds ORDER BY kind, name COLLATE "C"

-- name: put
-- If the tenant or model is held already, the time of the first hold stays.
INSERT INTO holds (kind, name, held_at) VALUES ($1, $2, $3) ON CONFLICT (kind, name) DO NOTHING

-- name: remove
-- If the statement is repeated, it deletes nothing.
DELETE FROM holds WHERE kind = $1 AND name = $2
