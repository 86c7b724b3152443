-- Over all tenants, for metrics: nothing of it is shown to a tenant.

-- name: live
-- `completed` and `failed` of a live row are the lines that ingestion settled.
SELECT b.tenant, b.id, b.created_at, b.expires_at, b.in_progress_at,
       CASE WHEN b.cancel_requested_at IS NULL THEN b.status ELSE 'cancelling' END AS shown,
       coalesce(b.cancel_requested_at, b.finalizing_at, b.in_progress_at, b.created_at) AS entered_at,
       b.total - b.completed - b.failed - (
           SELECT coalesce(sum(m.duplicates), 0) FROM jsonb_to_recordset(b.models) AS m(duplicates bigint)
       )::bigint AS lines, coalesce(p.settled, 0)::bigint AS settled
FROM batches b
LEFT JOIN (
    SELECT tenant, batch_id, sum(completed + failed) AS settled FROM slice_progress GROUP BY tenant, batch_id
) p ON p.tenant = b.tenant AND p.batch_id = b.id
WHERE b.status IN ('validating', 'in_progress', 'finalizing')

-- name: unsettled
-- Of the batches that dispatch, by model: what the workers have left.
SELECT b.tenant, b.id, m.model, (m.lines - coalesce(m.duplicates, 0) - m.failed - coalesce(p.settled, 0))::bigint AS lines_left, b.expires_at
FROM batches b
CROSS JOIN LATERAL jsonb_to_recordset(b.models) AS m(model text, lines bigint, failed bigint, duplicates bigint)
LEFT JOIN (
    SELECT tenant, batch_id, model, sum(completed + failed) AS settled
    FROM slice_progress GROUP BY tenant, batch_id, model
) p ON p.tenant = b.tenant AND p.batch_id = b.id AND p.model = m.model
WHERE b.status = 'in_progress' AND b.cancel_requested_at IS NULL
  AND m.lines - coalesce(m.duplicates, 0) > m.failed + coalesce(p.settled, 0)

-- name: lines_left
-- A model that nobody served at ingestion has none left; slice_progress holds live batches only.
WITH planned AS (
    SELECT m.model, sum(m.lines - coalesce(m.duplicates, 0) - m.completed - m.failed) AS lines
    FROM batches b, jsonb_to_recordset(b.models) AS m(
        model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
    WHERE b.status IN ('validating', 'in_progress', 'finalizing')
    GROUP BY m.model
), told AS (
    SELECT model, sum(completed + failed) AS settled FROM slice_progress GROUP BY model
)
SELECT model, (planned.lines - coalesce(told.settled, 0))::bigint AS lines_left
FROM planned LEFT JOIN told USING (model)
WHERE planned.lines > coalesce(told.settled, 0)
