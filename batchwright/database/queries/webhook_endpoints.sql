-- name: lock_tenant
-- Until the transaction ends, no other endpoint of the tenant is inserted. So the caller can count them and
-- then insert one.
SELECT pg_advisory_xact_lock(hashtextextended('webhooks/' || $1, 0))

-- name: count
SELECT count(*) FROM webhook_endpoints WHERE tenant = $1 AND batch_id = ''

-- name: insert
INSERT INTO webhook_endpoints (tenant, id, batch_id, url, events, description, details, secret, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (tenant, id) DO NOTHING

-- name: get
SELECT * FROM webhook_endpoints WHERE tenant = $1 AND id = $2

-- name: position
SELECT created_at FROM webhook_endpoints WHERE tenant = $1 AND id = $2

-- name: page
SELECT * FROM webhook_endpoints
WHERE tenant = $1 AND (created_at, id) < ($2, $3) AND batch_id = $5
ORDER BY created_at DESC, id DESC
LIMIT $4

-- name: change
-- If a parameter is null, its column does not change. So a concurrent change of another column is not lost.
-- If a disabled endpoint is enabled again, its earlier failures no longer count.
UPDATE webhook_endpoints SET
    url = coalesce($3, url), events = coalesce($4, events), description = coalesce($5, description),
    details = coalesce($6, details),
    disabled_at = CASE $7::boolean WHEN true THEN NULL WHEN false THEN coalesce(disabled_at, $8) ELSE disabled_at END,
    disabled_reason = CASE WHEN $7::boolean THEN ''
                           WHEN NOT $7::boolean AND disabled_at IS NULL THEN $9 ELSE disabled_reason END,
    failing_since = CASE WHEN $7::boolean AND disabled_at IS NOT NULL THEN NULL ELSE failing_since END
WHERE tenant = $1 AND id = $2
RETURNING *

-- name: rotate
UPDATE webhook_endpoints SET previous_secret = secret, previous_until = $4, secret = $3
WHERE tenant = $1 AND id = $2
RETURNING *

-- name: delete
DELETE FROM webhook_endpoints WHERE tenant = $1 AND id = $2 RETURNING id
