-- name: all
SELECT kind, name, held_at FROM holds ORDER BY kind, name COLLATE "C"

-- name: put
-- A repeat keeps the time of the first hold.
INSERT INTO holds (kind, name, held_at) VALUES ($1, $2, $3) ON CONFLICT (kind, name) DO NOTHING

-- name: remove
-- A repeat finds nothing.
DELETE FROM holds WHERE kind = $1 AND name = $2
