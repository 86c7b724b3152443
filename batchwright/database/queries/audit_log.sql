-- The audit log. Rows are inserted and never updated. Only retention deletes them.

-- name: begin
INSERT INTO audit_log (created_at, source, actor_tenant, actor_key, actor_user, address, request_id, action,
                       target_type, target_id, target_tenant, before)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING id

-- name: finish
INSERT INTO audit_log_outcomes (id, outcome, code, after) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO NOTHING

-- name: extent
-- `ended_below` is the smallest id of an action that may still be running; if there is none, the next new id.
-- An action may be running if it has no outcome and began after $1; a repair of all batches also if it began
-- up to a day earlier.
SELECT e.position AS latest, (SELECT min(id) FROM audit_log) AS oldest,
       coalesce((SELECT min(l.id) FROM audit_log l
                 WHERE l.created_at > $1::timestamptz - interval '1 day'
                 AND (l.created_at > $1 OR l.action = 'consistency.repair')
                 AND NOT EXISTS (SELECT FROM audit_log_outcomes o WHERE o.id = l.id)),
                'act_' || lpad(to_hex(e.position + 1), 16, '0')) AS ended_below
FROM audit_log_position e

-- name: id_at
SELECT id FROM audit_log WHERE id > $1 AND id < $2 LIMIT 1

-- name: page_down
SELECT l.*, o.outcome, o.code, o.after FROM audit_log l LEFT JOIN audit_log_outcomes o ON o.id = l.id
WHERE l.id > $1 AND l.id < $2
  AND ($4::text IS NULL OR l.action = $4) AND ($5::text IS NULL OR $5 IN (l.actor_tenant, l.actor_key, l.actor_user))
  AND ($6::text IS NULL OR l.target_id = $6) AND ($7::text IS NULL OR l.target_tenant = $7)
  AND ($8::text IS NULL OR coalesce(o.outcome, 'unknown') = $8)
  AND ($9::timestamptz IS NULL OR l.created_at >= $9) AND ($10::timestamptz IS NULL OR l.created_at < $10)
ORDER BY l.id DESC
LIMIT $3

-- name: page_up
SELECT l.*, o.outcome, o.code, o.after FROM audit_log l LEFT JOIN audit_log_outcomes o ON o.id = l.id
WHERE l.id > $1 AND l.id < $2
  AND ($4::text IS NULL OR l.action = $4) AND ($5::text IS NULL OR $5 IN (l.actor_tenant, l.actor_key, l.actor_user))
  AND ($6::text IS NULL OR l.target_id = $6) AND ($7::text IS NULL OR l.target_tenant = $7)
  AND ($8::text IS NULL OR coalesce(o.outcome, 'unknown') = $8)
  AND ($9::timestamptz IS NULL OR l.created_at >= $9) AND ($10::timestamptz IS NULL OR l.created_at < $10)
ORDER BY l.id
LIMIT $3

-- name: count_old
SELECT count(*) FROM audit_log WHERE created_at <= $1

-- name: allow_removal
-- The triggers of the tables refuse deletions in all transactions without this setting.
SELECT set_config('batchwright.audit_log_retention', 'on', true)

-- name: remove_old
-- Delete at most $2 old actions, with their outcomes. Rows that another retention run is deleting now are
-- skipped.
WITH gone AS (
    DELETE FROM audit_log WHERE id IN (
        SELECT id FROM audit_log WHERE created_at <= $1 ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING 1)
SELECT count(*) FROM gone
