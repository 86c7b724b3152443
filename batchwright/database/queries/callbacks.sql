-- name: accept
-- A repeat, or a callback that comes too late, changes nothing and returns nothing. The clock is read after the body has
-- been received and a connection was free.
INSERT INTO callbacks (id, size, body, expires_at)
SELECT $1, $2, $3, $4 WHERE clock_timestamp() < $4
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: is_received
SELECT id FROM callbacks WHERE id = $1

-- name: get
-- As many bodies as fit $2 bytes together, but at least one callback. The others are not read from disk.
-- `received` counts all, so that the caller knows if some were left out.
SELECT id, size, body, received
FROM (
    SELECT
        id, size, body,
        row_number() OVER (ORDER BY expires_at, id) AS place,
        sum(coalesce(octet_length(body), 0)) OVER (ORDER BY expires_at, id) AS total,
        count(*) OVER () AS received
    FROM callbacks
    WHERE id = ANY($1) AND NOT emptied
) AS received
WHERE total <= $2 OR place = 1

-- name: clear_bodies
-- Two attempts of a slice may clear the same bodies, so the rows are locked in the order of their ids.
UPDATE callbacks SET body = NULL, emptied = true
WHERE id IN (SELECT id FROM callbacks WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)

-- name: delete_expired
-- Rows that others are changing are deleted the next time.
DELETE FROM callbacks WHERE id IN (SELECT id FROM callbacks WHERE expires_at < $1 FOR UPDATE SKIP LOCKED)
