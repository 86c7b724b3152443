-- name: all
SELECT model, config, changed_at FROM model_changes ORDER BY model COLLATE "C"

-- name: lock
-- Whether a change fits is judged by all models together: one at a time. Readers do not wait.
LOCK TABLE model_changes IN SHARE ROW EXCLUSIVE MODE

-- name: put
INSERT INTO model_changes (model, config, changed_at) VALUES ($1, $2::jsonb, $3)
ON CONFLICT (model) DO UPDATE SET config = excluded.config, changed_at = excluded.changed_at

-- name: revert
-- A second run finds nothing.
DELETE FROM model_changes WHERE model = $1
