-- name: tell
-- A repeat renews `until`; `since` stays while the reason does and has not run out.
INSERT INTO waiting AS w (tenant, batch_id, model, source, reason, since, until)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, batch_id, model, source) DO UPDATE SET
    reason = excluded.reason,
    until = excluded.until,
    since = CASE WHEN w.reason = excluded.reason AND w.until > excluded.since THEN w.since ELSE excluded.since END
RETURNING since

-- name: take_back
DELETE FROM waiting WHERE tenant = $1 AND batch_id = $2 AND model = $3 AND source = $4 RETURNING reason

-- name: of_source
SELECT tenant, batch_id, model, source, reason, since, until FROM waiting
WHERE source = $1 AND until > $2

-- name: forget
DELETE FROM waiting WHERE until < $1
