-- name: all
SELECT model, config, is_partial, version, changed_at FROM model_changes ORDER BY model COLLATE "C"

-- name: lock
-- Each change is checked together with the changes of all models. Therefore changes are made one after the
-- other. Readers do not wait.
LOCK TABLE model_changes IN SHARE ROW EXCLUSIVE MODE

-- name: put
-- Return no row, and change nothing, if the current version of the model is not in $5. If $5 is null, any
-- version is accepted. A model without a change has version 0.
INSERT INTO model_changes (model, config, is_partial, changed_at)
SELECT $1, $2::jsonb, $3, $4
WHERE $5::bigint[] IS NULL
   OR coalesce((SELECT version FROM model_changes WHERE model = $1), 0) = ANY ($5::bigint[])
ON CONFLICT (model) DO UPDATE
SET config = excluded.config, is_partial = excluded.is_partial, changed_at = excluded.changed_at, version = DEFAULT
RETURNING version

-- name: revert
-- If the statement is repeated, it deletes nothing.
DELETE FROM model_changes WHERE model = $1 AND ($2::bigint[] IS NULL OR version = ANY ($2::bigint[]))
RETURNING version

-- name: version
SELECT version FROM model_changes WHERE model = $1
