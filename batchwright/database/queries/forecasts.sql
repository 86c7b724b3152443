-- Work and forecasts of the live batches of all tenants.

-- name: work
-- Lines that workers have left, by batch and model. Batches that cannot send them are left out: those that are
-- cancelled, those that users have paused, and those after their deadline.
SELECT b.tenant, b.id, m.model, b.created_at, b.deadline, b.in_progress_at, b.priority,
       coalesce(q.weight, b.weight) AS weight, coalesce(p.settled, 0)::bigint AS settled,
       (m.lines - coalesce(m.duplicates, 0) - m.completed - m.failed - coalesce(p.settled, 0))::bigint AS lines_left
FROM batches b
CROSS JOIN LATERAL jsonb_to_recordset(b.models) AS m(
    model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
LEFT JOIN quotas q ON q.tenant = b.tenant
LEFT JOIN (
    SELECT tenant, batch_id, model, sum(completed + failed) AS settled
    FROM slice_progress GROUP BY tenant, batch_id, model
) p ON p.tenant = b.tenant AND p.batch_id = b.id AND p.model = m.model
WHERE b.status = 'in_progress' AND b.cancel_requested_at IS NULL AND b.deadline > $1
  AND m.lines - coalesce(m.duplicates, 0) > m.completed + m.failed + coalesce(p.settled, 0)
  AND NOT EXISTS (
    SELECT FROM waiting_reasons w
    WHERE w.tenant = b.tenant AND w.batch_id = b.id AND w.model = '' AND w.source = $2 AND w.until > $1
)

-- name: publish
-- Only one of several control workers publishes: the others find a forecast that is not old enough.
INSERT INTO forecasts AS f (tenant, batch_id, made_at, forecast)
SELECT t.tenant, t.batch_id, $3, t.forecast
FROM unnest($1::text[], $2::text[], $4::jsonb[]) AS t (tenant, batch_id, forecast)
JOIN batches b ON b.tenant = t.tenant AND b.id = t.batch_id AND b.status = 'in_progress'
ORDER BY t.tenant, t.batch_id
ON CONFLICT (tenant, batch_id) DO UPDATE SET made_at = excluded.made_at, forecast = excluded.forecast
WHERE f.made_at <= excluded.made_at - interval '10 seconds'
RETURNING batch_id
