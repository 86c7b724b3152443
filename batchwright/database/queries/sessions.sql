-- name: insert
INSERT INTO sessions (token_hash, key_id, created_at, expires_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (token_hash) DO NOTHING

-- name: delete_expired
-- Delete at most $2 expired sessions, so that the caller does not wait long.
DELETE FROM sessions WHERE token_hash IN (
    SELECT token_hash FROM sessions WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)

-- name: find
SELECT k.id, k.tenant, k.prefix, k.scopes, k.label, k.created_at, k.expires_at, k.revoked_at, k.last_used_at,
       k.tokens_per_day, k.cost_per_day, k.max_in_flight, k.salt, k.hash, t.disabled_at
FROM sessions s
JOIN api_keys k ON k.id = s.key_id
JOIN tenants t ON t.name = k.tenant
WHERE s.token_hash = $1 AND s.expires_at > $2

-- name: delete
-- If the statement is repeated, it deletes nothing.
DELETE FROM sessions WHERE token_hash = $1
