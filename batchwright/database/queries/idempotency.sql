-- name: find
SELECT * FROM idempotency_keys WHERE tenant = $1 AND operation = $2 AND key = $3 AND created_at > $4

-- name: claim
-- If the key is stored already, change nothing and return no row. If another request is storing the key now,
-- wait for it first. A key that was created at the time $7 or earlier has expired and is replaced.
INSERT INTO idempotency_keys (tenant, operation, key, fingerprint, made, created_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, operation, key) DO UPDATE SET
    fingerprint = excluded.fingerprint, made = excluded.made, created_at = excluded.created_at
WHERE idempotency_keys.created_at <= $7
RETURNING *
