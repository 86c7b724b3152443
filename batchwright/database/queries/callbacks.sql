-- name: accept
-- A repeat changes nothing and returns nothing.
INSERT INTO callbacks (id, size, body, expires_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: get
SELECT id, size, body FROM callbacks WHERE id = ANY($1) AND NOT emptied

-- name: clear_bodies
UPDATE callbacks SET body = NULL, emptied = true WHERE id = ANY($1)

-- name: delete_expired
DELETE FROM callbacks WHERE expires_at < $1
