-- name: insert
-- If the row exists already, nothing changes.
INSERT INTO tenants (name, created_at) VALUES ($1, $2)
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: get
SELECT name, created_at, disabled_at FROM tenants WHERE name = $1

-- name: all
SELECT name, created_at, disabled_at FROM tenants ORDER BY name COLLATE "C"

-- name: disable
-- If the tenant was disabled before, the earlier time stays.
UPDATE tenants SET disabled_at = coalesce(disabled_at, $2) WHERE name = $1
RETURNING name, created_at, disabled_at

-- name: enable
UPDATE tenants SET disabled_at = NULL WHERE name = $1
RETURNING name, created_at, disabled_at
