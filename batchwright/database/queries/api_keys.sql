-- name: insert
-- A second run finds the row and changes nothing.
INSERT INTO api_keys (id, tenant, prefix, salt, hash, scopes, label, created_at, expires_at, tokens_per_day,
                      user_name)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO NOTHING

-- name: find
SELECT k.id, k.tenant, k.prefix, k.scopes, k.label, k.created_at, k.expires_at, k.revoked_at, k.last_used_at,
       k.tokens_per_day, k.user_name, k.salt, k.hash, t.disabled_at
FROM api_keys k JOIN tenants t ON t.name = k.tenant
WHERE k.prefix = $1

-- name: all
-- Of all tenants where $1 is null.
SELECT id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
    user_name
FROM api_keys
WHERE $1::text IS NULL OR tenant = $1
ORDER BY tenant COLLATE "C", created_at, id

-- name: revoke
-- Of a revoked key the first time stays.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 OR prefix = $1
RETURNING id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
    user_name

-- name: limit
UPDATE api_keys SET tokens_per_day = $2 WHERE id = $1 OR prefix = $1
RETURNING id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
    user_name

-- name: give
-- To a user of the key's own tenant.
UPDATE api_keys SET user_name = $2 WHERE id = $1 OR prefix = $1
RETURNING id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
    user_name

-- name: tenant_of
SELECT tenant FROM api_keys WHERE id = $1 OR prefix = $1

-- name: note_used
-- A second run finds the minute not over and changes nothing.
UPDATE api_keys SET last_used_at = used.at
FROM unnest($1::text[], $2::timestamptz[]) AS used (id, at)
WHERE api_keys.id = used.id
  AND (api_keys.last_used_at IS NULL OR api_keys.last_used_at <= used.at - interval '1 minute')
