-- name: delete_unlisted
-- Runs before `replace_models`, in one transaction.
DELETE FROM served_models WHERE backend_url = $1 AND name <> ALL ($2::text[])

-- name: replace_models
-- Rows are written in the order of their names, so that two workers cannot deadlock. If a model is stored
-- already, only its `seen_at` changes.
INSERT INTO served_models (backend_url, name, seen_at)
SELECT DISTINCT $1, name, $3::timestamptz FROM unnest($2::text[]) AS name ORDER BY name
ON CONFLICT (backend_url, name) DO UPDATE SET seen_at = greatest(served_models.seen_at, excluded.seen_at)

-- name: served
SELECT name, backend_url, seen_at FROM served_models
WHERE backend_url = ANY ($1::text[])
ORDER BY name COLLATE "C", backend_url COLLATE "C"
