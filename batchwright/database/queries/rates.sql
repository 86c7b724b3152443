-- name: all
SELECT model, requests_per_second, changed_at FROM rates ORDER BY model COLLATE "C"

-- name: lock
-- A change is checked against all rates, so changes exclude each other. Readers do not wait.
LOCK TABLE rates IN SHARE ROW EXCLUSIVE MODE

-- name: put
INSERT INTO rates (model, requests_per_second, changed_at) VALUES ($1, $2, $3)
ON CONFLICT (model) DO UPDATE SET
    requests_per_second = excluded.requests_per_second, changed_at = excluded.changed_at

-- name: remove
-- A repeat finds nothing.
DELETE FROM rates WHERE model = $1
