-- Single calls, and the rolling batches that collect them. The row of an open rolling batch is locked while a call is
-- stored for it, and deleted before the calls are collected: so a batch has all calls that were stored for it.

-- name: insert
-- Return no row if no batch of the group is open. A repeat returns the batch of the stored call. Another request may
-- acknowledge a repeated call, so the request that inserted it can no longer withdraw it.
-- `made` is null if the batch of the call was started and no longer takes calls.
WITH open AS (
    SELECT batch_id, made FROM rolling_batches
    WHERE tenant = $1 AND group_id = $2 AND opened_at > now() - $3::interval
    FOR SHARE
)
INSERT INTO calls AS c (tenant, id, batch_id, endpoint, model, request, notifies, echoed)
SELECT $1, $4, open.batch_id, $5, $6, $7, $8, $9 FROM open
ON CONFLICT (tenant, id) DO UPDATE SET repeated = true
RETURNING c.batch_id, c.created_at, (
    SELECT open.made FROM open WHERE open.batch_id = c.batch_id OR NOT (
        c.collected OR c.ended_at IS NOT NULL
        OR EXISTS (SELECT FROM batches b WHERE b.tenant = $1 AND b.id = c.batch_id))) AS made

-- name: move
-- From a batch that was perhaps never started. The lock is that of `insert`.
WITH open AS (
    SELECT batch_id FROM rolling_batches WHERE tenant = $1 AND group_id = $2 AND batch_id = $4 FOR SHARE
)
UPDATE calls c SET batch_id = open.batch_id FROM open
WHERE c.tenant = $1 AND c.id = $3 AND NOT c.collected AND c.ended_at IS NULL
RETURNING c.id

-- name: open
-- A batch that is open for too long was not started, or no worker runs. Another one takes the calls that follow.
INSERT INTO rolling_batches AS r (tenant, group_id, batch_id, made, opened_at)
VALUES ($1, $2, $3, $4, now())
ON CONFLICT (tenant, group_id) DO UPDATE
SET batch_id = excluded.batch_id, made = excluded.made, opened_at = excluded.opened_at
WHERE r.opened_at <= now() - $5::interval

-- name: withdraw
-- The time tells the row from one that a repeat has inserted after it was deleted.
DELETE FROM calls
WHERE tenant = $1 AND id = $2 AND created_at = $3 AND NOT repeated AND NOT collected AND ended_at IS NULL

-- name: is_collected
SELECT id FROM calls WHERE tenant = $1 AND id = $2 AND (collected OR ended_at IS NOT NULL)

-- name: close
DELETE FROM rolling_batches WHERE tenant = $1 AND group_id = $2 AND batch_id = $3

-- name: collect
-- The rows are locked in the order of their ids, as in `answer`.
WITH queued AS (
    SELECT id FROM calls WHERE tenant = $1 AND batch_id = $2 AND NOT collected AND ended_at IS NULL
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE calls c SET collected = true FROM queued q
WHERE c.tenant = $1 AND c.id = q.id AND c.batch_id = $2 AND NOT c.collected AND c.ended_at IS NULL

-- name: collected
SELECT id, request FROM calls
WHERE tenant = $1 AND batch_id = $2 AND collected AND ended_at IS NULL AND id > $3 ORDER BY id LIMIT $4

-- name: get
SELECT c.*, b.status AS batch_status, b.errors AS batch_errors FROM calls c
LEFT JOIN batches b ON b.tenant = c.tenant AND b.id = c.batch_id
WHERE c.tenant = $1 AND c.id = $2 AND (c.ended_at IS NULL OR c.ended_at > now() - $3::interval)

-- name: count_open
SELECT count(*) FROM calls WHERE tenant = $1 AND ended_at IS NULL

-- name: count_batches
SELECT count(*) FROM (
    SELECT batch_id FROM rolling_batches WHERE tenant = $1 AND opened_at > now() - $2::interval
    UNION
    SELECT id FROM batches
    WHERE tenant = $1 AND rolling AND status IN ('validating', 'in_progress', 'finalizing')
) AS own

-- name: unanswered
SELECT id FROM calls WHERE tenant = $1 AND batch_id = $2 AND ended_at IS NULL

-- name: cancelled
SELECT id FROM calls WHERE tenant = $1 AND batch_id = $2 AND status = 'cancelled'

-- name: answer
-- The rows are locked in the order of their ids, because two writers may answer the same calls.
WITH queued AS (
    SELECT id FROM calls WHERE tenant = $1 AND id = ANY ($2::text[]) AND ended_at IS NULL ORDER BY id FOR UPDATE
)
UPDATE calls c SET status = a.status, answer = a.line, ended_at = now(), request = ''
FROM unnest($2::text[], $3::text[], $4::bytea[]) AS a (id, status, line), queued q
WHERE c.tenant = $1 AND c.id = a.id AND c.id = q.id AND c.ended_at IS NULL

-- name: cancel
UPDATE calls SET status = 'cancelled', ended_at = now(), request = ''
WHERE tenant = $1 AND id = $2 AND ended_at IS NULL

-- name: ended
-- Calls of several tenants, each with its tenant, for which connections are held.
SELECT w.tenant, w.id FROM unnest($1::text[], $2::text[]) AS w (tenant, id)
LEFT JOIN calls c ON c.tenant = w.tenant AND c.id = w.id
WHERE c.id IS NULL OR c.ended_at IS NOT NULL

-- name: count_old
SELECT (SELECT count(*) FROM calls WHERE ended_at <= $1)
     + (SELECT count(*) FROM calls c WHERE NOT c.collected AND c.ended_at IS NULL AND c.created_at <= $1
        AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = c.tenant AND b.id = c.batch_id)) AS count

-- name: remove_old
-- Also calls that were never acknowledged, because their batch was not started. A callback with its deliveries is
-- deleted, too, unless one is pending. That one stays as long as other deliveries. The row of a rolling batch is left
-- over if the batch was never started and its group gets no more calls.
WITH never_started AS (
    DELETE FROM rolling_batches WHERE opened_at <= $1
), old AS (
    (SELECT tenant, id FROM calls WHERE ended_at <= $1 ORDER BY ended_at LIMIT $2)
    UNION ALL
    (SELECT c.tenant, c.id FROM calls c WHERE NOT c.collected AND c.ended_at IS NULL AND c.created_at <= $1
       AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = c.tenant AND b.id = c.batch_id) LIMIT $2)
), gone AS (
    DELETE FROM calls c USING old WHERE c.tenant = old.tenant AND c.id = old.id RETURNING c.tenant, c.id
), callbacks AS (
    DELETE FROM webhook_endpoints e USING gone WHERE e.tenant = gone.tenant AND e.batch_id = gone.id
      AND NOT EXISTS (SELECT FROM webhook_deliveries d
                      WHERE d.tenant = e.tenant AND d.endpoint_id = e.id AND d.status = 'pending')
)
SELECT count(*) FROM gone
