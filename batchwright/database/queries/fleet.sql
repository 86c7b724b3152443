-- Queries over the live batches of all tenants, for metrics and for workers. No tenant sees the results. If a
-- batch has a `start_at`, this time is returned as `created_at`.

-- name: live
-- In the row of a live batch, `completed` and `failed` count only lines that got their result in ingestion
-- (when the input was read). Results from workers are counted in `slice_progress`.
SELECT b.tenant, b.id, coalesce(b.start_at, b.created_at) AS created_at, b.deadline,
       b.in_progress_at,
       CASE WHEN b.cancel_requested_at IS NULL THEN b.status ELSE 'cancelling' END AS shown,
       coalesce(b.cancel_requested_at, b.finalizing_at, b.in_progress_at, b.start_at, b.created_at) AS entered_at,
       b.total - b.completed - b.failed - (
           SELECT coalesce(sum(m.duplicates), 0) FROM jsonb_to_recordset(b.models) AS m(duplicates bigint)
       )::bigint AS lines, coalesce(p.settled, 0)::bigint AS settled
FROM batches b
LEFT JOIN (
    SELECT tenant, batch_id, sum(completed + failed) AS settled FROM slice_progress GROUP BY tenant, batch_id
) p ON p.tenant = b.tenant AND p.batch_id = b.id
WHERE b.status IN ('validating', 'in_progress', 'finalizing')

-- name: backlogs
-- Lines that still need a result from workers, for each batch in progress and each of its models.
SELECT b.tenant, b.id, m.model, b.deadline, b.priority, coalesce(b.start_at, b.created_at) AS created_at,
       w.tenant IS NOT NULL AS is_paused,
       (SELECT max(h.kind) FROM holds h
        WHERE (h.kind = 'tenant' AND h.name = b.tenant) OR (h.kind = 'model' AND h.name = m.model)) AS held,
       (m.lines - coalesce(m.duplicates, 0) - m.completed - m.failed - coalesce(p.settled, 0))::bigint AS lines_left
FROM batches b
CROSS JOIN LATERAL jsonb_to_recordset(b.models) AS m(
    model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
LEFT JOIN (
    SELECT tenant, batch_id, model, sum(completed + failed) AS settled
    FROM slice_progress GROUP BY tenant, batch_id, model
) p ON p.tenant = b.tenant AND p.batch_id = b.id AND p.model = m.model
LEFT JOIN waiting_reasons w
    ON w.tenant = b.tenant AND w.batch_id = b.id AND w.model = '' AND w.source = $2 AND w.until > $1
WHERE b.status = 'in_progress' AND b.cancel_requested_at IS NULL
  AND m.lines - coalesce(m.duplicates, 0) > m.completed + m.failed + coalesce(p.settled, 0)

-- name: awaited_models
-- Every worker runs this query twice a second, so it reads only the rows of live batches. The models are in
-- the order in which workers poll their queues: the first model of each tenant, then the second model of each
-- tenant, and so on. Models without lines left come last. `batches` has the number of batches for each tenant
-- in `tenants`. A batch counts if it has lines left and may send them now. It does not count if it is being
-- cancelled, paused by a user, held by an operator or past its deadline.
WITH wanted AS (
    SELECT b.tenant, m.model, min(coalesce(b.start_at, b.created_at)) AS since,
           count(*) FILTER (
               WHERE b.cancel_requested_at IS NULL AND b.deadline > $1 AND w.tenant IS NULL
                 AND m.lines - coalesce(m.duplicates, 0) > m.completed + m.failed + coalesce(p.settled, 0)
                 AND NOT EXISTS (
                     SELECT FROM holds h
                     WHERE (h.kind = 'tenant' AND h.name = b.tenant) OR (h.kind = 'model' AND h.name = m.model))
           ) AS unsettled
    FROM batches b
    CROSS JOIN LATERAL jsonb_to_recordset(b.models) AS m(
        model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
    LEFT JOIN (
        SELECT tenant, batch_id, model, sum(completed + failed) AS settled
        FROM slice_progress GROUP BY tenant, batch_id, model
    ) p ON p.tenant = b.tenant AND p.batch_id = b.id AND p.model = m.model
    LEFT JOIN waiting_reasons w
        ON w.tenant = b.tenant AND w.batch_id = b.id AND w.model = '' AND w.source = $2 AND w.until > $1
    WHERE b.status = 'in_progress' AND m.lines - coalesce(m.duplicates, 0) > m.completed + m.failed
    GROUP BY b.tenant, m.model
), placed AS (
    SELECT tenant, model, unsettled, since,
           row_number() OVER (PARTITION BY tenant, unsettled = 0 ORDER BY since, model COLLATE "C") AS place
    FROM wanted
)
SELECT model, coalesce(array_agg(tenant) FILTER (WHERE unsettled > 0), '{}') AS tenants,
       coalesce(array_agg(unsettled) FILTER (WHERE unsettled > 0), '{}') AS batches
FROM placed GROUP BY model
ORDER BY sum(unsettled) = 0,
         (array_agg(place ORDER BY unsettled = 0, place, since))[1],
         (array_agg(since ORDER BY unsettled = 0, place, since))[1],
         model COLLATE "C"

-- name: lines_left
-- Lines of all live batches that still need a result, by model. A model that no backend served at ingestion
-- has none. Rows of ended batches in `slice_progress` are ignored: they may have been written while the
-- batches ended.
WITH planned AS (
    SELECT m.model, sum(m.lines - coalesce(m.duplicates, 0) - m.completed - m.failed) AS lines
    FROM batches b, jsonb_to_recordset(b.models) AS m(
        model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
    WHERE b.status IN ('validating', 'in_progress', 'finalizing')
    GROUP BY m.model
), reported AS (
    SELECT p.model, sum(p.completed + p.failed) AS settled
    FROM slice_progress p JOIN batches b ON b.tenant = p.tenant AND b.id = p.batch_id
    WHERE b.status IN ('validating', 'in_progress', 'finalizing')
    GROUP BY p.model
)
SELECT model, (planned.lines - coalesce(reported.settled, 0))::bigint AS lines_left
FROM planned LEFT JOIN reported USING (model)
WHERE planned.lines > coalesce(reported.settled, 0)

-- name: lines_due
-- Lines that still need a result from workers, by model and deadline. Batches that may not send lines now are
-- left out: batches that are being cancelled, paused by a user, held by an operator or past their deadline.
SELECT m.model, b.deadline,
       sum(m.lines - coalesce(m.duplicates, 0) - m.completed - m.failed - coalesce(p.settled, 0))::bigint AS lines
FROM batches b
CROSS JOIN LATERAL jsonb_to_recordset(b.models) AS m(
    model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
LEFT JOIN (
    SELECT tenant, batch_id, model, sum(completed + failed) AS settled
    FROM slice_progress GROUP BY tenant, batch_id, model
) p ON p.tenant = b.tenant AND p.batch_id = b.id AND p.model = m.model
WHERE b.status = 'in_progress' AND b.cancel_requested_at IS NULL AND b.deadline > $1
  AND m.lines - coalesce(m.duplicates, 0) > m.completed + m.failed + coalesce(p.settled, 0)
  AND NOT EXISTS (
    SELECT FROM waiting_reasons w
    WHERE w.tenant = b.tenant AND w.batch_id = b.id AND w.model = '' AND w.source = $2 AND w.until > $1
) AND NOT EXISTS (
    SELECT FROM holds h
    WHERE (h.kind = 'tenant' AND h.name = b.tenant) OR (h.kind = 'model' AND h.name = m.model))
GROUP BY m.model, b.deadline
