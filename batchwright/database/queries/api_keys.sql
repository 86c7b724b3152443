-- name: insert
-- If the row exists already, nothing changes.
INSERT INTO api_keys (id, tenant, prefix, salt, hash, scopes, label, created_at, expires_at, tokens_per_day,
                      max_in_flight, cost_per_day)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::numeric)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: find
SELECT k.id, k.tenant, k.prefix, k.scopes, k.label, k.created_at, k.expires_at, k.revoked_at, k.last_used_at,
       k.tokens_per_day, k.cost_per_day, k.max_in_flight, k.salt, k.hash, t.disabled_at
FROM api_keys k JOIN tenants t ON t.name = k.tenant
WHERE k.prefix = $1

-- name: all
-- Keys of the tenant $1; keys of all tenants if $1 is null.
SELECT id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
       cost_per_day, max_in_flight
FROM api_keys
WHERE $1::text IS NULL OR tenant = $1
ORDER BY tenant COLLATE "C", created_at, id

-- name: revoke
-- If the key was revoked before, the time of the first revocation stays.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 OR prefix = $1
RETURNING id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
          cost_per_day, max_in_flight

-- name: limit
-- For each limit, null means no change, and 0 removes the limit.
UPDATE api_keys SET
    tokens_per_day = nullif(coalesce($2::bigint, tokens_per_day), 0),
    max_in_flight = nullif(coalesce($3::bigint, max_in_flight), 0),
    cost_per_day = nullif(coalesce($4::text::numeric, cost_per_day), 0)
WHERE id = $1 OR prefix = $1
RETURNING id, tenant, prefix, scopes, label, created_at, expires_at, revoked_at, last_used_at, tokens_per_day,
          cost_per_day, max_in_flight

-- name: record_uses
-- A time is ignored if it is less than a minute later than the stored time. Several processes report uses of
-- the same keys, so the rows are locked in the order of their ids. Otherwise the processes could deadlock.
WITH used AS (
    SELECT k.id, u.at FROM unnest($1::text[], $2::timestamptz[]) AS u (id, at) JOIN api_keys k ON k.id = u.id
    WHERE k.last_used_at IS NULL OR k.last_used_at <= u.at - interval '1 minute'
    ORDER BY k.id FOR NO KEY UPDATE OF k
)
UPDATE api_keys SET last_used_at = used.at FROM used
WHERE api_keys.id = used.id
  AND (api_keys.last_used_at IS NULL OR api_keys.last_used_at <= used.at - interval '1 minute')
