-- name: lock_tenant
-- Until the transaction ends, no other schedule of the tenant is inserted. So the caller can count them and
-- then insert one.
SELECT pg_advisory_xact_lock(hashtextextended('schedules/' || $1, 0))

-- name: count
SELECT count(*) FROM schedules WHERE tenant = $1

-- name: insert
INSERT INTO schedules (tenant, id, description, cron, time_zone, overlap, input_file_id, template, version, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (tenant, id) DO NOTHING

-- name: get
SELECT * FROM schedules WHERE tenant = $1 AND id = $2

-- name: position
SELECT created_at FROM schedules WHERE tenant = $1 AND id = $2

-- name: page
SELECT * FROM schedules
WHERE tenant = $1 AND (created_at, id) < ($2, $3)
ORDER BY created_at DESC, id DESC
LIMIT $4

-- name: keep_input
-- Runs before a schedule is changed or deleted. The file then expires a day from now at the earliest, so that
-- batches that the schedule is creating now still find it.
UPDATE files f SET expires_at = now() + interval '1 day'
FROM schedules s
WHERE s.tenant = $1 AND s.id = $2 AND f.tenant = s.tenant AND f.id = s.input_file_id
  AND f.expires_at < now() + interval '1 day'

-- name: update
UPDATE schedules SET description = $3, cron = $4, time_zone = $5, overlap = $6, input_file_id = $7, template = $8,
                     version = version + 1, pending = $10
WHERE tenant = $1 AND id = $2 AND version = $9
RETURNING *

-- name: delete
DELETE FROM schedules WHERE tenant = $1 AND id = $2 RETURNING id

-- name: record_run
-- The result of a later attempt replaces that of an earlier attempt. If the schedule was deleted, no row is
-- inserted.
INSERT INTO schedule_runs AS r (tenant, schedule_id, id, scheduled_at, batch_id, code, message)
SELECT $1, $2, $3, $4, $5, $6, $7 WHERE EXISTS (
    SELECT FROM schedules WHERE tenant = $1 AND id = $2 FOR KEY SHARE)
ON CONFLICT (tenant, schedule_id, id) DO UPDATE SET
    batch_id = excluded.batch_id, code = excluded.code, message = excluded.message

-- name: forget_runs
-- Delete all runs of the schedule except the latest $3.
DELETE FROM schedule_runs
WHERE tenant = $1 AND schedule_id = $2 AND (scheduled_at, id) < (
    SELECT scheduled_at, id FROM schedule_runs WHERE tenant = $1 AND schedule_id = $2
    ORDER BY scheduled_at DESC, id DESC LIMIT 1 OFFSET $3 - 1)

-- name: runs
SELECT r.scheduled_at, r.id, r.batch_id, r.code, r.message, b.visible_status AS status
FROM schedule_runs r LEFT JOIN batches b ON b.tenant = r.tenant AND b.id = r.batch_id
WHERE r.tenant = $1 AND r.schedule_id = $2
ORDER BY r.scheduled_at DESC, r.id DESC
LIMIT $3
