-- name: report
-- If the same reason is stored and still valid, only `until` changes, and `since` stays.
INSERT INTO waiting_reasons AS w (tenant, batch_id, model, source, reason, since, until)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, batch_id, model, source) DO UPDATE SET
    reason = excluded.reason,
    until = excluded.until,
    since = CASE WHEN w.reason = excluded.reason AND w.until > excluded.since THEN w.since ELSE excluded.since END
RETURNING since

-- name: clear
DELETE FROM waiting_reasons WHERE tenant = $1 AND batch_id = $2 AND model = $3 AND source = $4 RETURNING reason

-- name: show_change
-- Store $3 as the number of the latest pause or resume that the waiting reasons show. Return no row if the
-- batch has ended, or if this number or a later one is stored already. The lock on the row makes concurrent
-- changes wait for each other.
UPDATE batches SET shown_pause_change = $3
WHERE tenant = $1 AND id = $2 AND status IN ('validating', 'in_progress', 'finalizing') AND shown_pause_change < $3
RETURNING id

-- name: get
SELECT tenant, batch_id, model, source, reason, since, until FROM waiting_reasons
WHERE source = $1 AND until > $2

-- name: of_batches
-- $1 has the tenant of each batch, and $2 has its id.
SELECT w.tenant, w.batch_id, w.model, w.source, w.reason, w.since, w.until
FROM unnest($1::text[], $2::text[]) AS wanted (tenant, id)
JOIN waiting_reasons w ON w.tenant = wanted.tenant AND w.batch_id = wanted.id
WHERE w.until > $3
ORDER BY w.batch_id COLLATE "C", w.model COLLATE "C", w.source COLLATE "C"

-- name: delete_expired
-- Rows that another transaction is changing are skipped. A later call deletes them.
DELETE FROM waiting_reasons WHERE (tenant, batch_id, model, source) IN (
    SELECT tenant, batch_id, model, source FROM waiting_reasons WHERE until < $1 FOR UPDATE SKIP LOCKED)
