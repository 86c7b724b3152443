-- Work and forecasts of the live batches of all tenants, and the speeds of models.

-- name: work
-- Lines that still need a result from workers, by batch and model. Batches that may not send lines now are
-- left out: batches that are being cancelled, paused by a user, held by an operator or past their deadline.
-- $3 has the models to return; null for all.
SELECT b.tenant, b.id, m.model, coalesce(b.start_at, b.created_at) AS created_at, b.deadline, b.in_progress_at, b.priority,
       coalesce(q.weight, b.weight) AS weight, coalesce(p.settled, 0)::bigint AS settled,
       (m.lines - coalesce(m.duplicates, 0) - m.completed - m.failed - coalesce(p.settled, 0))::bigint AS lines_left,
       num_nonnulls(q.max_in_flight, q.backend_requests_per_minute, q.backend_tokens_per_minute,
                    k.max_in_flight) > 0 AS limited
FROM batches b
CROSS JOIN LATERAL jsonb_to_recordset(b.models) AS m(
    model text, lines bigint, completed bigint, failed bigint, duplicates bigint)
LEFT JOIN quotas q ON q.tenant = b.tenant
LEFT JOIN api_keys k ON k.tenant = b.tenant AND k.id = b.policy->'caller'->>'key_id'
LEFT JOIN (
    SELECT tenant, batch_id, model, sum(completed + failed) AS settled
    FROM slice_progress GROUP BY tenant, batch_id, model
) p ON p.tenant = b.tenant AND p.batch_id = b.id AND p.model = m.model
WHERE b.status = 'in_progress' AND b.cancel_requested_at IS NULL AND b.deadline > $1
  AND ($3::text[] IS NULL OR m.model = ANY ($3))
  AND m.lines - coalesce(m.duplicates, 0) > m.completed + m.failed + coalesce(p.settled, 0)
  AND NOT EXISTS (
    SELECT FROM waiting_reasons w
    WHERE w.tenant = b.tenant AND w.batch_id = b.id AND w.model = '' AND w.source = $2 AND w.until > $1
) AND NOT EXISTS (
    SELECT FROM holds h
    WHERE (h.kind = 'tenant' AND h.name = b.tenant) OR (h.kind = 'model' AND h.name = m.model))

-- name: publish
-- A forecast that is less than ten seconds old is not replaced, so only one of several control workers stores
-- its forecasts. The last condition is for a forecast from a worker whose clock was far ahead: without it, no
-- worker could replace this forecast for a long time.
INSERT INTO forecasts AS f (tenant, batch_id, made_at, forecast)
SELECT t.tenant, t.batch_id, $3, t.forecast
FROM unnest($1::text[], $2::text[], $4::jsonb[]) AS t (tenant, batch_id, forecast)
JOIN batches b ON b.tenant = t.tenant AND b.id = t.batch_id AND b.status = 'in_progress'
ORDER BY t.tenant, t.batch_id
ON CONFLICT (tenant, batch_id) DO UPDATE SET made_at = excluded.made_at, forecast = excluded.forecast
WHERE f.made_at <= excluded.made_at - interval '10 seconds' OR f.made_at > excluded.made_at + interval '1 minute'
RETURNING batch_id

-- name: publish_speeds
-- As in `publish`, only one of several control workers stores its speeds. Speeds of other models are deleted
-- if they are too old to be used, or if they came from a worker whose clock was ahead.
WITH outdated AS (
    DELETE FROM model_speeds WHERE model IN (
        SELECT model FROM model_speeds
        WHERE (measured_at <= $2::timestamptz - $4::interval OR measured_at > $2 + interval '1 minute')
          AND model <> ALL ($1::text[])
        FOR UPDATE SKIP LOCKED)
)
INSERT INTO model_speeds AS s (model, measured_at, speed)
SELECT t.model, $2, t.speed FROM unnest($1::text[], $3::jsonb[]) AS t (model, speed)
ORDER BY t.model
ON CONFLICT (model) DO UPDATE SET measured_at = excluded.measured_at, speed = excluded.speed
WHERE s.measured_at <= excluded.measured_at - interval '10 seconds'
   OR s.measured_at > excluded.measured_at + interval '1 minute'

-- name: speeds
SELECT model, speed FROM model_speeds WHERE model = ANY ($1) AND measured_at > $2

-- name: record_start
-- If a forecast is stored already, it stays. So all attempts to read the input of the batch make the same
-- decision.
UPDATE batches SET start_forecast = coalesce(start_forecast, $3)
WHERE tenant = $1 AND id = $2 AND status = 'validating'
RETURNING start_forecast
