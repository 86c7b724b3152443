-- name: report
-- A repeat renews `until`. `since` is kept while the same reason holds.
INSERT INTO waiting_reasons AS w (tenant, batch_id, model, source, reason, since, until)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, batch_id, model, source) DO UPDATE SET
    reason = excluded.reason,
    until = excluded.until,
    since = CASE WHEN w.reason = excluded.reason AND w.until > excluded.since THEN w.since ELSE excluded.since END
RETURNING since

-- name: clear
DELETE FROM waiting_reasons WHERE tenant = $1 AND batch_id = $2 AND model = $3 AND source = $4 RETURNING reason

-- name: get
SELECT tenant, batch_id, model, source, reason, since, until FROM waiting_reasons
WHERE source = $1 AND until > $2

-- name: delete_expired
DELETE FROM waiting_reasons WHERE until < $1
