-- name: accept
-- If the id is stored already, or if $4 has passed, store nothing and return no row. The clock of the
-- database is read when this statement runs, so the time to receive the body and to wait for a connection
-- counts.
INSERT INTO callbacks (id, size, body, expires_at)
SELECT $1, $2, $3, $4 WHERE clock_timestamp() < $4
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: is_received
SELECT id FROM callbacks WHERE id = $1

-- name: get
-- Return callbacks whose bodies have at most $2 bytes together, but at least one callback. Other bodies are
-- not read from disk. `received` is the number of all callbacks, so that the caller knows if some were left
-- out.
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
-- Two attempts of a slice (part of a batch) may clear the same bodies. To avoid a deadlock, the rows are
-- locked in the order of their ids.
UPDATE callbacks SET body = NULL, emptied = true
WHERE id IN (SELECT id FROM callbacks WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)

-- name: delete_expired
-- Rows that another transaction is changing are skipped. A later call deletes them.
DELETE FROM callbacks WHERE id IN (SELECT id FROM callbacks WHERE expires_at < $1 FOR UPDATE SKIP LOCKED)
