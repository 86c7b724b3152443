-- Queries over the batches of all tenants, for operators. No tenant sees the results.

-- name: owner
SELECT tenant FROM batches WHERE id COLLATE "C" = $1

-- name: set_priority
UPDATE batches b SET priority = $3 FROM (
    SELECT priority FROM batches WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE) before
WHERE b.tenant = $1 AND b.id = $2 AND b.status IN ('validating', 'in_progress', 'finalizing')
  AND b.cancel_requested_at IS NULL
RETURNING before.priority

-- name: page_down
-- Ids sort by the time of creation. A forecast counts only if it was made after $6.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, f.forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $6
WHERE NOT b.rolling AND ($1::text IS NULL OR b.id COLLATE "C" < $1)
  AND ($2::text IS NULL OR b.tenant = $2)
  AND ($3::text[] IS NULL OR b.visible_status = ANY ($3))
  AND ($4::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $4)))
  AND ($5::text IS NULL OR f.forecast->>'window' = $5)
ORDER BY b.id COLLATE "C" DESC
LIMIT $7

-- name: page_up
-- `page_down` with the oldest first.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, f.forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $6
WHERE NOT b.rolling AND ($1::text IS NULL OR b.id COLLATE "C" > $1)
  AND ($2::text IS NULL OR b.tenant = $2)
  AND ($3::text[] IS NULL OR b.visible_status = ANY ($3))
  AND ($4::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $4)))
  AND ($5::text IS NULL OR f.forecast->>'window' = $5)
ORDER BY b.id COLLATE "C"
LIMIT $7

-- name: search_down
-- Examine the batches of `page_down` for lines with a custom_id, as in `custom_ids.sql`.
SELECT id, place, is_found FROM (
    SELECT c.id, row_number() OVER (ORDER BY c.id COLLATE "C" DESC) AS place, coalesce((
        SELECT true FROM custom_ids i
        WHERE i.tenant = c.tenant AND i.batch_id = c.id
          AND contains_custom_id(i.salt, i.bucket_bytes, i.buckets, $8)
        LIMIT 1), false) AS is_found
    FROM (
        SELECT b.tenant, b.id
        FROM batches b
        LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
            AND b.cancel_requested_at IS NULL AND f.made_at > $6
        WHERE NOT b.rolling AND b.in_progress_at IS NOT NULL AND ($1::text IS NULL OR b.id COLLATE "C" < $1)
          AND ($2::text IS NULL OR b.tenant = $2)
          AND ($3::text[] IS NULL OR b.visible_status = ANY ($3))
          AND ($4::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $4)))
          AND ($5::text IS NULL OR f.forecast->>'window' = $5)
        ORDER BY b.id COLLATE "C" DESC
        LIMIT $7
    ) c
) examined
WHERE is_found OR place = $7
ORDER BY place

-- name: search_up
-- `search_down` with the oldest first.
SELECT id, place, is_found FROM (
    SELECT c.id, row_number() OVER (ORDER BY c.id COLLATE "C") AS place, coalesce((
        SELECT true FROM custom_ids i
        WHERE i.tenant = c.tenant AND i.batch_id = c.id
          AND contains_custom_id(i.salt, i.bucket_bytes, i.buckets, $8)
        LIMIT 1), false) AS is_found
    FROM (
        SELECT b.tenant, b.id
        FROM batches b
        LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
            AND b.cancel_requested_at IS NULL AND f.made_at > $6
        WHERE NOT b.rolling AND b.in_progress_at IS NOT NULL AND ($1::text IS NULL OR b.id COLLATE "C" > $1)
          AND ($2::text IS NULL OR b.tenant = $2)
          AND ($3::text[] IS NULL OR b.visible_status = ANY ($3))
          AND ($4::text IS NULL OR b.models @> jsonb_build_array(jsonb_build_object('model', $4)))
          AND ($5::text IS NULL OR f.forecast->>'window' = $5)
        ORDER BY b.id COLLATE "C"
        LIMIT $7
    ) c
) examined
WHERE is_found OR place = $7
ORDER BY place

-- name: found
-- Batches of a search, by their ids and in the order of the ids. A forecast counts only if it was made after $2.
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, f.forecast
FROM unnest($1::text[]) WITH ORDINALITY AS wanted (id, place)
JOIN batches b ON b.id COLLATE "C" = wanted.id
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
LEFT JOIN forecasts f ON f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress'
    AND b.cancel_requested_at IS NULL AND f.made_at > $2
ORDER BY wanted.place

-- name: counts
-- Live batches, and those that ended after $2. The two indexes by the time of the end are of swept batches and of
-- the others.
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
