-- name: all
SELECT model, requests_per_second, changed_at FROM rates ORDER BY model COLLATE "C"

-- name: lock
-- Changes are judged by what all rates are together: one at a time. Readers do not wait.
LOCK TABLE rates IN SHARE ROW EXCLUSIVE MODE

-- name: put
INSERT INTO rates (model, requests_per_second, changed_at) VALUES ($1, $2, $3)
ON CONFLICT (model) DO UPDATE SET
    requests_per_second = excluded.requests_per_second, changed_at = excluded.changed_at

-- name: remove
-- A second run finds nothing.
DELETE FROM rates WHERE model = $1
