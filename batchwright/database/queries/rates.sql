-- name: all
SELECT model, requests_per_second, changed_at FROM rates ORDER BY model COLLATE "C"

-- name: lock
-- Each change is checked together with all other rates. Therefore changes are made one after the other.
-- Readers do not wait.
LOCK TABLE rates IN SHARE ROW EXCLUSIVE MODE

-- name: put
INSERT INTO rates (model, requests_per_second, changed_at) VALUES ($1, $2, $3)
ON CONFLICT (model) DO UPDATE SET
    requests_per_second = excluded.requests_per_second, changed_at = excluded.changed_at

-- name: remove
-- If the statement is repeated, it deletes nothing.
DELETE FROM rates WHERE model = $1
