-- Queries over the batches of all tenants, for operators. No tenant sees the results.

-- name: owner
SELECT tenant FROM batches WHERE id COLLATE "C" = $1

-- name: position
SELECT created_at FROM batches WHERE id COLLATE "C" = $1

-- name: set_priority
UPDATE batches b SET priority = $3 FROM (
    SELECT priority FROM batches WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE) before
WHERE b.tenant = $1 AND b.id = $2 AND b.status IN ('validating', 'in_progress', 'finalizing')
  AND b.cancel_requested_at IS NULL
RETURNING before.priority

-- name: page_down
-- A page after the position ($1, $2). A forecast counts only if it was made after $7.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, f.forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $7
WHERE NOT b.rolling AND (b.created_at, b.id COLLATE "C") < ($1, $2)
  AND ($3::text IS NULL OR b.tenant = $3)
  AND ($4::text[] IS NULL OR b.visible_status = ANY ($4))
  AND ($5::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $5)))
  AND ($6::text IS NULL OR f.forecast->>'window' = $6)
ORDER BY b.created_at DESC, b.id COLLATE "C" DESC
LIMIT $8

-- name: page_up
-- `page_down`, but sorted with the oldest batch first.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, f.forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $7
WHERE NOT b.rolling AND (b.created_at, b.id COLLATE "C") > ($1, $2)
  AND ($3::text IS NULL OR b.tenant = $3)
  AND ($4::text[] IS NULL OR b.visible_status = ANY ($4))
  AND ($5::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $5)))
  AND ($6::text IS NULL OR f.forecast->>'window' = $6)
ORDER BY b.created_at, b.id COLLATE "C"
LIMIT $8

-- name: search_down
-- Examine the batches that `page_down` would return, and return those that have a line with a certain
-- custom_id, and the last examined batch. See `custom_ids.sql`.
SELECT id, created_at, place, is_found FROM (
    SELECT c.id, c.created_at, row_number() OVER (ORDER BY c.created_at DESC, c.id COLLATE "C" DESC) AS place, coalesce((
        SELECT true FROM custom_ids i
        WHERE i.tenant = c.tenant AND i.batch_id = c.id
          AND contains_custom_id(i.salt, i.bucket_bytes, i.buckets, $9)
        LIMIT 1), false) AS is_found
    FROM (
        SELECT b.tenant, b.id, b.created_at
        FROM batches b
        LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
            AND b.cancel_requested_at IS NULL AND f.made_at > $7
        WHERE NOT b.rolling AND b.in_progress_at IS NOT NULL AND (b.created_at, b.id COLLATE "C") < ($1, $2)
          AND ($3::text IS NULL OR b.tenant = $3)
          AND ($4::text[] IS NULL OR b.visible_status = ANY ($4))
          AND ($5::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $5)))
          AND ($6::text IS NULL OR f.forecast->>'window' = $6)
        ORDER BY b.created_at DESC, b.id COLLATE "C" DESC
        LIMIT $8
    ) c
) examined
WHERE is_found OR place = $8
ORDER BY place

-- name: search_up
-- `search_down`, but sorted with the oldest batch first.
SELECT id, created_at, place, is_found FROM (
    SELECT c.id, c.created_at, row_number() OVER (ORDER BY c.created_at, c.id COLLATE "C") AS place, coalesce((
        SELECT true FROM custom_ids i
        WHERE i.tenant = c.tenant AND i.batch_id = c.id
          AND contains_custom_id(i.salt, i.bucket_bytes, i.buckets, $9)
        LIMIT 1), false) AS is_found
    FROM (
        SELECT b.tenant, b.id, b.created_at
        FROM batches b
        LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
            AND b.cancel_requested_at IS NULL AND f.made_at > $7
        WHERE NOT b.rolling AND b.in_progress_at IS NOT NULL AND (b.created_at, b.id COLLATE "C") > ($1, $2)
          AND ($3::text IS NULL OR b.tenant = $3)
          AND ($4::text[] IS NULL OR b.visible_status = ANY ($4))
          AND ($5::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $5)))
          AND ($6::text IS NULL OR f.forecast->>'window' = $6)
        ORDER BY b.created_at, b.id COLLATE "C"
        LIMIT $8
    ) c
) examined
WHERE is_found OR place = $8
ORDER BY place

-- name: found
-- Return the batches with the ids $1 (found by a search), in the order of $1. A forecast counts only if it
-- was made after $2.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, f.forecast
FROM unnest($1::text[]) WITH ORDINALITY AS wanted (id, place)
JOIN batches b ON b.id COLLATE "C" = wanted.id
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $2
ORDER BY wanted.place

-- name: counts
-- Number of live batches, and of batches that ended after $2, by tenant and status. Ended batches are read in
-- two parts, because there is one index for batches with `swept_at` and one for batches without it.
SELECT b.tenant, CASE WHEN b.cancel_requested_at IS NULL THEN b.status ELSE 'cancelling' END AS status,
       count(*) AS batches, min(b.created_at) AS oldest,
       count(*) FILTER (WHERE f.forecast->>'window' = 'at_risk') AS at_risk,
       count(*) FILTER (WHERE f.forecast->>'window' = 'late') AS late
FROM batches b
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $1
WHERE b.status IN ('validating', 'in_progress', 'finalizing') AND NOT b.rolling
GROUP BY 1, 2
UNION ALL
SELECT tenant, status, count(*), NULL, 0, 0
FROM (
    SELECT tenant, status FROM batches
    WHERE NOT rolling AND swept_at IS NULL AND coalesce(completed_at, failed_at, expired_at, cancelled_at) > $2
    UNION ALL
    SELECT tenant, status FROM batches
    WHERE NOT rolling AND swept_at IS NOT NULL AND coalesce(completed_at, failed_at, expired_at, cancelled_at) > $2
) ended
GROUP BY 1, 2
