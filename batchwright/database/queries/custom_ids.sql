-- Search for batches that have a line with a certain custom_id. A search examines up to $4 batches, newest
-- first. It returns the batches that have such a line, and the last examined batch, after which the next
-- search continues. The subquery with LIMIT 1 reads only the rows of one batch; with EXISTS, PostgreSQL might
-- read all rows of the tenant. A batch without `in_progress_at` is not examined: it may have rows from an
-- interrupted attempt to read its input, and its validation can still fail.

-- name: store
-- If the part is stored already, nothing changes. Each attempt to read the input makes the same parts.
INSERT INTO custom_ids (tenant, batch_id, number, salt, bucket_bytes, buckets)
SELECT tenant, id, $3, $4, $5, $6 FROM batches WHERE tenant = $1 AND id = $2
ON CONFLICT (tenant, batch_id, number) DO NOTHING

-- name: position
SELECT created_at FROM batches WHERE tenant = $1 AND id = $2

-- name: search
SELECT id, created_at, place, is_found FROM (
    SELECT c.id, c.created_at, row_number() OVER (ORDER BY c.created_at DESC, c.id DESC) AS place, coalesce((
        SELECT true FROM custom_ids i
        WHERE i.tenant = $1 AND i.batch_id = c.id
          AND contains_custom_id(i.salt, i.bucket_bytes, i.buckets, $6)
        LIMIT 1), false) AS is_found
    FROM (
        SELECT b.id, b.created_at
        FROM batches b
        WHERE b.tenant = $1 AND NOT b.rolling AND b.in_progress_at IS NOT NULL
          AND (b.created_at, b.id) < ($2, $3) AND b.created_at >= $5 AND b.visible_status = ANY ($7)
        ORDER BY b.created_at DESC, b.id DESC
        LIMIT $4
    ) c
) examined
WHERE is_found OR place = $4
ORDER BY created_at DESC, id DESC

-- name: search_tagged
-- `search` among the batches with the tag $8 and all tags in $9.
SELECT id, created_at, place, is_found FROM (
    SELECT c.id, c.created_at, row_number() OVER (ORDER BY c.created_at DESC, c.id DESC) AS place, coalesce((
        SELECT true FROM custom_ids i
        WHERE i.tenant = $1 AND i.batch_id = c.id
          AND contains_custom_id(i.salt, i.bucket_bytes, i.buckets, $6)
        LIMIT 1), false) AS is_found
    FROM (
        SELECT t.batch_id AS id, t.created_at
        FROM batch_tags t
        JOIN batches b ON b.tenant = t.tenant AND b.id = t.batch_id
        WHERE t.tenant = $1 AND NOT b.rolling AND b.in_progress_at IS NOT NULL
          AND (t.created_at, t.batch_id) < ($2, $3) AND t.created_at >= $5 AND b.visible_status = ANY ($7) AND t.tag = $8
          AND (SELECT count(*) FROM batch_tags o
               WHERE o.tenant = t.tenant AND o.batch_id = t.batch_id AND o.tag = ANY ($9)) = cardinality($9::bytea[])
        ORDER BY t.created_at DESC, t.batch_id DESC
        LIMIT $4
    ) c
) examined
WHERE is_found OR place = $4
ORDER BY created_at DESC, id DESC

-- name: rows
SELECT b.*, reported_models, reported_usage, NULL::jsonb AS reported_errors, (
    SELECT f.forecast FROM forecasts f
    WHERE f.tenant = b.tenant AND f.batch_id = b.id AND b.status = 'in_progress') AS forecast
FROM batches b
LEFT JOIN LATERAL reported_progress(b.tenant, b.id) ON b.status IN ('validating', 'in_progress', 'finalizing')
WHERE b.tenant = $1 AND b.id = ANY ($2)
ORDER BY b.created_at DESC, b.id DESC
