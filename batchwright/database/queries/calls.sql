-- Single calls, and the rolling batches that collect them. A rolling batch is open while it has a row in
-- `rolling_batches`. This row is locked while a call is stored for the batch. It is deleted before the batch
-- collects its calls, so the batch gets all calls that were stored for it.

-- name: insert
-- Return no row if no batch of the group is open. If the call is stored already, return its batch, and set
-- `repeated`: the client may now have a response to the repeated request, so the first request can no longer
-- withdraw the call. `made` is the start argument of the batch to start; null if the batch of the call has
-- started and takes no more calls.
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
-- Move a call from a batch that was perhaps never started to the batch $4, if that batch is open. The row of
-- the open batch is locked as in `insert`.
WITH open AS (
    SELECT batch_id FROM rolling_batches WHERE tenant = $1 AND group_id = $2 AND batch_id = $4 FOR SHARE
)
UPDATE calls c SET batch_id = open.batch_id FROM open
WHERE c.tenant = $1 AND c.id = $3 AND NOT c.collected AND c.ended_at IS NULL
RETURNING c.id

-- name: open
-- Open a batch for the calls of a group. If another batch of the group has been open for longer than $5, it
-- was not started, or no worker runs. It is then replaced by the new batch.
INSERT INTO rolling_batches AS r (tenant, group_id, batch_id, made, opened_at)
VALUES ($1, $2, $3, $4, now())
ON CONFLICT (tenant, group_id) DO UPDATE
SET batch_id = excluded.batch_id, made = excluded.made, opened_at = excluded.opened_at
WHERE r.opened_at <= now() - $5::interval

-- name: withdraw
-- The row must have the creation time $3. If the call was deleted and a repeated request has inserted it
-- again, the new row has another time and stays.
DELETE FROM calls
WHERE tenant = $1 AND id = $2 AND created_at = $3 AND NOT repeated AND NOT collected AND ended_at IS NULL

-- name: is_collected
SELECT id FROM calls WHERE tenant = $1 AND id = $2 AND (collected OR ended_at IS NOT NULL)

-- name: close
DELETE FROM rolling_batches WHERE tenant = $1 AND group_id = $2 AND batch_id = $3

-- name: collect
-- Make the calls of a batch its lines. The rows are locked in the order of their ids, as in `answer`, so that
-- no deadlock can occur.
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
-- The rows are locked in the order of their ids. Otherwise two transactions that answer the same calls could
-- deadlock.
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
-- Return those of the calls ($1 tenants, $2 ids) that have ended or do not exist. Clients wait for these
-- calls.
SELECT w.tenant, w.id FROM unnest($1::text[], $2::text[]) AS w (tenant, id)
LEFT JOIN calls c ON c.tenant = w.tenant AND c.id = w.id
WHERE c.id IS NULL OR c.ended_at IS NOT NULL

-- name: count_old
SELECT (SELECT count(*) FROM calls WHERE ended_at <= $1)
     + (SELECT count(*) FROM calls c WHERE NOT c.collected AND c.ended_at IS NULL AND c.created_at <= $1
        AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = c.tenant AND b.id = c.batch_id)) AS count

-- name: remove_old
-- Delete calls that ended long ago, and calls whose batch was never started. The webhook endpoint of a
-- deleted call is deleted with its deliveries, unless one of these is pending. It is then deleted later by
-- `remove_endpoints` in `webhook_deliveries.sql`. Rows of rolling batches that were opened long ago and never
-- started are deleted, too. Rows that another transaction is changing or deleting now are skipped.
WITH never_started AS (
    DELETE FROM rolling_batches WHERE (tenant, group_id) IN (
        SELECT tenant, group_id FROM rolling_batches WHERE opened_at <= $1 FOR UPDATE SKIP LOCKED)
), ended AS (
    SELECT tenant, id FROM calls WHERE ended_at <= $1 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
), not_accepted AS (
    SELECT c.tenant, c.id FROM calls c WHERE NOT c.collected AND c.ended_at IS NULL AND c.created_at <= $1
      AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = c.tenant AND b.id = c.batch_id)
    LIMIT $2 FOR UPDATE OF c SKIP LOCKED
), gone AS (
    DELETE FROM calls c USING (TABLE ended UNION ALL TABLE not_accepted) AS old
    WHERE c.tenant = old.tenant AND c.id = old.id RETURNING c.tenant, c.id
), callbacks AS (
    DELETE FROM webhook_endpoints WHERE (tenant, id) IN (
        SELECT e.tenant, e.id FROM webhook_endpoints e
        JOIN gone ON e.tenant = gone.tenant AND e.batch_id = gone.id
        WHERE NOT EXISTS (SELECT FROM webhook_deliveries d
                          WHERE d.tenant = e.tenant AND d.endpoint_id = e.id AND d.status = 'pending')
        FOR UPDATE OF e SKIP LOCKED)
)
SELECT count(*) FROM gone
