-- name: read
-- The query `get_with_reasons` in `batches.sql` for many batches at once. No row is returned for a batch that
-- does not exist.
SELECT b.*, reported_models, reported_usage, reported_errors, (
    SELECT jsonb_agg(w ORDER BY w.model COLLATE "C", w.source COLLATE "C") FROM waiting_reasons w
    WHERE w.tenant = b.tenant AND w.batch_id = b.id AND w.until > $3) AS waiting, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM unnest($1::text[], $2::text[]) AS wanted (tenant, id)
JOIN batches b ON b.tenant = wanted.tenant AND b.id = wanted.id
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
