-- name: create
-- A second run finds the row and inserts nothing.
INSERT INTO users (tenant, name, tokens_per_day, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, name) DO NOTHING
RETURNING name

-- name: limit
UPDATE users SET tokens_per_day = $3 WHERE tenant = $1 AND name = $2
RETURNING name

-- name: all
-- Of all tenants where $1 is null.
SELECT u.tenant, u.name, u.created_at, u.tokens_per_day,
       array_remove(array_agg(k.id ORDER BY k.created_at, k.id), NULL) AS keys
FROM users u LEFT JOIN api_keys k ON k.tenant = u.tenant AND k.user_name = u.name
WHERE $1::text IS NULL OR u.tenant = $1
GROUP BY u.tenant, u.name ORDER BY u.tenant COLLATE "C", u.name COLLATE "C"

-- name: lock
-- Nobody gives it another key before the transaction ends.
SELECT name FROM users WHERE tenant = $1 AND name = $2 FOR UPDATE

-- name: hold
-- It stays until the transaction ends; others give it keys meanwhile.
SELECT name FROM users WHERE tenant = $1 AND name = $2 FOR NO KEY UPDATE

-- name: lock_keys
-- After `hold`. In one order for all, so that two who take keys from each other do not wait for each other.
SELECT id FROM api_keys WHERE tenant = $1 AND (user_name = $2 OR id = ANY($3::text[])) ORDER BY id FOR UPDATE

-- name: free_keys
-- After `lock` or `lock_keys`. All of its keys but those of these ids.
UPDATE api_keys SET user_name = NULL WHERE tenant = $1 AND user_name = $2 AND NOT id = ANY($3::text[])

-- name: take_keys
-- After `lock_keys`. Whosever they are.
UPDATE api_keys SET user_name = $2 WHERE tenant = $1 AND id = ANY($3::text[])

-- name: delete
-- After `free_keys`.
DELETE FROM users WHERE tenant = $1 AND name = $2
