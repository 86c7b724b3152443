-- name: accept
-- A repeat changes nothing, returns nothing and tells nobody.
WITH accepted AS (
    INSERT INTO callbacks (id, size, body, expires_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT id, pg_notify($5, id) FROM accepted

-- name: told
SELECT id, size, body FROM callbacks WHERE id = ANY($1) AND NOT emptied

-- name: ring
SELECT pg_notify($1, $2)

-- name: empty
UPDATE callbacks SET body = NULL, emptied = true WHERE id = ANY($1)

-- name: forget
DELETE FROM callbacks WHERE expires_at < $1
