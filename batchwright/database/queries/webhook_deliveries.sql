-- Deliveries of events to endpoints. The triggers of `batches`, `waiting_reasons` and `forecasts` insert them.

-- name: insert_test
INSERT INTO webhook_deliveries (tenant, id, endpoint_id, batch_id, event_id, type, occurred_at)
SELECT tenant, $3, id, $4, $5, $6, $7 FROM webhook_endpoints WHERE tenant = $1 AND id = $2
FOR KEY SHARE
ON CONFLICT (tenant, id) DO NOTHING

-- name: unstarted
-- Deliveries of all tenants whose workflow must be started. Events of a batch with pending files are left out
-- until the files are written.
SELECT d.tenant, d.id, d.endpoint_id, d.batch_id, d.replays, d.created_at, e.batch_id <> '' AS is_of_one
FROM webhook_deliveries d JOIN webhook_endpoints e ON e.tenant = d.tenant AND e.id = d.endpoint_id
WHERE NOT d.started AND NOT EXISTS (
    SELECT FROM batches b WHERE b.tenant = d.tenant AND b.id = d.batch_id AND b.files_pending_until > now())
ORDER BY d.created_at, d.id
LIMIT $1

-- name: record_start
UPDATE webhook_deliveries SET started = true, started_at = now()
WHERE tenant = $1 AND id = $2 AND replays = $3

-- name: get
SELECT * FROM webhook_deliveries WHERE tenant = $1 AND id = $2

-- name: keep_body
UPDATE webhook_deliveries SET body = coalesce(body, $3) WHERE tenant = $1 AND id = $2 RETURNING body

-- name: lock_endpoint
-- Must be the first statement of its transaction. The deletion of an endpoint also locks the endpoint before
-- its deliveries, so that no deadlock can occur.
SELECT id FROM webhook_endpoints WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE

-- name: record_attempt
-- If the delivery is about a job (its `batch_id` begins with `job_`), the body contains the result of the
-- job. It is deleted when the delivery ends. A replay creates the body again if the job is still stored.
WITH delivery AS (
    UPDATE webhook_deliveries SET attempts = attempts + 1, status = $3,
        body = CASE WHEN $3 = 'pending' OR NOT starts_with(batch_id, 'job_') THEN body END
    WHERE tenant = $1 AND id = $2
    RETURNING tenant, id, attempts
)
INSERT INTO webhook_attempts (tenant, delivery_id, number, at, seconds, http_status, reason)
SELECT tenant, id, attempts, $4, $5, $6, $7 FROM delivery

-- name: record_success
UPDATE webhook_endpoints SET failing_since = NULL WHERE tenant = $1 AND id = $2 AND failing_since IS NOT NULL

-- name: record_failure
-- Return a row only if this failure disables the endpoint.
WITH failing AS (
    UPDATE webhook_endpoints SET failing_since = $3 WHERE tenant = $1 AND id = $2 AND failing_since IS NULL
)
UPDATE webhook_endpoints SET disabled_at = $3, disabled_reason = $5
WHERE tenant = $1 AND id = $2 AND disabled_at IS NULL AND failing_since <= $4
RETURNING id

-- name: give_up
UPDATE webhook_deliveries
SET status = 'failed', reason = $3, body = CASE WHEN NOT starts_with(batch_id, 'job_') THEN body END
WHERE tenant = $1 AND id = $2 AND status = 'pending'

-- name: replay
-- A pending delivery is replayed only if its workflow was started at $3 or earlier. Its workflow is then
-- lost.
UPDATE webhook_deliveries SET status = 'pending', reason = '', replays = replays + 1, started = false
WHERE tenant = $1 AND id = $2 AND (status <> 'pending' OR (started AND started_at <= $3))
RETURNING id

-- name: position
SELECT created_at FROM webhook_deliveries WHERE tenant = $1 AND id = $2

-- name: page
SELECT d.*, (
    SELECT jsonb_agg(to_jsonb(a) ORDER BY a.number) FROM webhook_attempts a
    WHERE a.tenant = d.tenant AND a.delivery_id = d.id AND a.number > d.attempts - $6) AS attempt_list
FROM webhook_deliveries d
WHERE d.tenant = $1 AND (d.created_at, d.id) < ($2, $3) AND d.endpoint_id = $5
  AND ($7::text IS NULL OR d.status = $7)
ORDER BY d.created_at DESC, d.id DESC
LIMIT $4

-- name: one
SELECT d.*, (
    SELECT jsonb_agg(to_jsonb(a) ORDER BY a.number) FROM webhook_attempts a
    WHERE a.tenant = d.tenant AND a.delivery_id = d.id AND a.number > d.attempts - $4) AS attempt_list
FROM webhook_deliveries d
WHERE d.tenant = $1 AND d.endpoint_id = $2 AND d.id = $3

-- name: count_old
SELECT (SELECT count(*) FROM webhook_deliveries
        WHERE created_at <= $1 AND (status <> 'pending' OR coalesce(started_at, created_at) <= $1))
     + (SELECT count(*) FROM webhook_endpoints e WHERE e.batch_id <> '' AND e.created_at <= $1
        AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = e.tenant AND b.id = e.batch_id)) AS count

-- name: remove_old
-- Rows that another transaction is changing or deleting now are skipped.
WITH old AS (
    SELECT tenant, id FROM webhook_deliveries
    WHERE created_at <= $1 AND (status <> 'pending' OR coalesce(started_at, created_at) <= $1)
    ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM webhook_deliveries d USING old WHERE d.tenant = old.tenant AND d.id = old.id RETURNING d.id
)
SELECT count(*) FROM gone

-- name: remove_endpoints
-- Delete endpoints of single batches that have no row, because retention has deleted it or the batch was
-- never created. Rows that another transaction is changing or deleting now are skipped.
WITH old AS (
    SELECT e.tenant, e.id FROM webhook_endpoints e WHERE e.batch_id <> '' AND e.created_at <= $1
      AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = e.tenant AND b.id = e.batch_id)
    LIMIT $2 FOR UPDATE OF e SKIP LOCKED
), gone AS (
    DELETE FROM webhook_endpoints e USING old WHERE e.tenant = old.tenant AND e.id = old.id RETURNING e.id
)
SELECT count(*) FROM gone
