-- name: find
SELECT * FROM idempotency_keys WHERE tenant = $1 AND operation = $2 AND key = $3 AND created_at > $4

-- name: claim
-- A repeat, or another request at the same time, waits for the first and then changes nothing, unless the row is
-- older than $7.
INSERT INTO idempotency_keys (tenant, operation, key, fingerprint, made, created_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, operation, key) DO UPDATE SET
    fingerprint = excluded.fingerprint, made = excluded.made, created_at = excluded.created_at
WHERE idempotency_keys.created_at <= $7
RETURNING *
