-- Pages of a tenant's batches, without rolling batches (of single calls). The errors that workers reported
-- are left out, because there may be many. Each query reads its rows in the order of an index, and stops
-- after one page.

-- name: position
SELECT created_at FROM batches WHERE tenant = $1 AND id = $2

-- name: all
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND NOT b.rolling AND (b.created_at, b.id) < ($2, $3) AND b.created_at >= $5
ORDER BY b.created_at DESC, b.id DESC
LIMIT $4

-- name: of_status
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND NOT b.rolling AND b.visible_status = $6 AND (b.created_at, b.id) < ($2, $3) AND b.created_at >= $5
ORDER BY b.created_at DESC, b.id DESC
LIMIT $4

-- name: of_tags
-- Batches with the tag $7 and all tags in $8. PostgreSQL plans this query for each call. It starts with the
-- condition for which it expects fewer rows: the tag or the statuses.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM (
    SELECT b.*
    FROM batch_tags t
    JOIN batches b ON b.tenant = t.tenant AND b.id = t.batch_id
    WHERE t.tenant = $1 AND NOT b.rolling AND (t.created_at, t.batch_id) < ($2, $3) AND t.created_at >= $5
      AND b.visible_status = ANY ($6) AND t.tag = $7
      AND (SELECT count(*) FROM batch_tags o
           WHERE o.tenant = t.tenant AND o.batch_id = t.batch_id AND o.tag = ANY ($8)) = cardinality($8::bytea[])
    ORDER BY t.created_at DESC, t.batch_id DESC
    LIMIT $4
) b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
ORDER BY b.created_at DESC, b.id DESC

-- name: before
-- Batches with the tag $5 that are newer than a position, oldest first.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM (
    SELECT b.*
    FROM batch_tags t
    JOIN batches b ON b.tenant = t.tenant AND b.id = t.batch_id
    WHERE t.tenant = $1 AND NOT b.rolling AND (t.created_at, t.batch_id) > ($2, $3) AND t.tag = $5
    ORDER BY t.created_at, t.batch_id
    LIMIT $4
) b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
ORDER BY b.created_at, b.id

-- name: count_live
SELECT count(*) FROM batches
WHERE tenant = $1 AND status IN ('validating', 'in_progress', 'finalizing') AND NOT rolling

-- name: fairness
-- Return two values for the fairness key of a new batch: the key of the tenant's newest running batch
-- (`beside`), and the id of its newest batch that was cancelled, is being cancelled or has expired
-- (`stopped`).
SELECT (SELECT coalesce(policy->>'fairness_key', '') FROM batches
        WHERE tenant = $1 AND status IN ('validating', 'in_progress') AND cancel_requested_at IS NULL
          AND deadline > $2
        ORDER BY created_at DESC, id DESC LIMIT 1) AS beside,
       (SELECT id FROM batches
        WHERE tenant = $1 AND (status IN ('cancelled', 'expired') OR cancel_requested_at IS NOT NULL)
        ORDER BY created_at DESC, id DESC LIMIT 1) AS stopped

-- name: output_history
SELECT used->>'model' AS model, sum((used->>'requests')::bigint)::bigint AS requests,
       sum((used->>'output_tokens')::bigint)::bigint AS output_tokens
FROM (SELECT model_usage FROM batches
      WHERE tenant = $1 AND NOT rolling AND endpoint = $2 AND model_usage <> '[]'
      ORDER BY created_at DESC, id DESC LIMIT 100) latest, jsonb_array_elements(latest.model_usage) used
WHERE used->>'model' = ANY($3::text[])
GROUP BY 1
HAVING sum((used->>'requests')::bigint) > 0
