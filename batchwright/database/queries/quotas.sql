-- name: get
SELECT * FROM quotas WHERE tenant = $1

-- name: all
SELECT * FROM quotas ORDER BY tenant COLLATE "C"

-- name: make
-- Insert an empty row for a tenant that has none. Runs before `lock_row`, which needs a row to lock.
INSERT INTO quotas (tenant, changed_at) VALUES ($1, $2) ON CONFLICT (tenant) DO NOTHING

-- name: lock_row
SELECT * FROM quotas WHERE tenant = $1 FOR UPDATE

-- name: put
-- A repeated statement writes the same values.
UPDATE quotas SET
    live_batches = $2, stored_bytes = $3, enqueued_lines = $4, enqueued_tokens = $5, requests_per_minute = $6,
    models = $7, changed_at = $8, tokens_per_day = $9, weight = $10, max_in_flight = $11,
    max_priority = $12, over_quota = $13, backend_requests_per_minute = $14, backend_tokens_per_minute = $15,
    window_too_short = $16, webhooks = $17, cost_per_day = $18::text::numeric
WHERE tenant = $1

-- name: clear
-- If the statement is repeated, it deletes nothing.
DELETE FROM quotas WHERE tenant = $1

-- name: shares
-- Return the weights and limits of tenants, each with the workers that run slices (parts) of its batches. In
-- its heartbeat, a worker reports each running slice as `runs BATCH_ID MODEL`. The heartbeats are parsed only
-- once, for all tenants together.
WITH running AS MATERIALIZED (
    SELECT DISTINCT w.id AS worker, split_part(stat, ' ', 2) AS batch_id
    FROM workers w CROSS JOIN jsonb_object_keys(w.stats) AS stat
    WHERE w.beat_at >= now() - $1::interval AND stat LIKE 'runs %'
), capped AS (
    SELECT q.tenant, array_agg(DISTINCT r.worker COLLATE "C" ORDER BY r.worker COLLATE "C") AS workers
    FROM quotas q
    JOIN batches b ON b.tenant = q.tenant AND b.status IN ('validating', 'in_progress', 'finalizing')
    JOIN running r ON r.batch_id = b.id
    WHERE num_nonnulls(q.max_in_flight, q.backend_requests_per_minute, q.backend_tokens_per_minute) > 0
    GROUP BY q.tenant
)
SELECT q.tenant, q.weight, q.max_in_flight, coalesce(c.workers, '{}') AS workers,
       q.backend_requests_per_minute AS requests_per_minute, q.backend_tokens_per_minute AS tokens_per_minute,
       (SELECT count(*) FROM workers w WHERE w.beat_at >= now() - $1::interval)::int AS live_workers
FROM quotas q
LEFT JOIN capped c ON c.tenant = q.tenant
WHERE num_nonnulls(q.weight, q.max_in_flight, q.backend_requests_per_minute, q.backend_tokens_per_minute) > 0
ORDER BY q.tenant COLLATE "C"

-- name: key_caps
-- Return the API keys with a cap on requests in flight, each with the workers that run slices of its batches.
-- The workers are found as in `shares`.
WITH running AS MATERIALIZED (
    SELECT DISTINCT w.id AS worker, split_part(stat, ' ', 2) AS batch_id
    FROM workers w CROSS JOIN jsonb_object_keys(w.stats) AS stat
    WHERE w.beat_at >= now() - $1::interval AND stat LIKE 'runs %'
), capped AS (
    SELECT k.id, array_agg(DISTINCT r.worker COLLATE "C" ORDER BY r.worker COLLATE "C") AS workers
    FROM api_keys k
    JOIN batches b ON b.tenant = k.tenant AND b.policy->'caller'->>'key_id' = k.id
        AND b.status IN ('validating', 'in_progress', 'finalizing')
    JOIN running r ON r.batch_id = b.id
    WHERE k.max_in_flight IS NOT NULL AND k.revoked_at IS NULL
    GROUP BY k.id
)
SELECT k.id AS key_id, k.max_in_flight, coalesce(c.workers, '{}') AS workers
FROM api_keys k
LEFT JOIN capped c ON c.id = k.id
WHERE k.max_in_flight IS NOT NULL AND k.revoked_at IS NULL
ORDER BY k.id COLLATE "C"

-- name: enqueued
-- Return the lines and tokens that are enqueued in all live batches of the tenant except the batch $2. Lines
-- that have a result no longer count. The tokens of a batch are reduced in the same proportion as its lines.
SELECT coalesce(sum(e.lines_left), 0)::bigint AS lines,
       coalesce(sum(ceil(e.tokens * e.lines_left / e.lines)), 0)::bigint AS tokens
FROM (
    SELECT b.enqueued_lines::numeric AS lines, b.enqueued_tokens::numeric AS tokens,
           greatest(b.enqueued_lines - coalesce((
               SELECT sum(p.completed + p.failed) FROM slice_progress p
               WHERE p.tenant = b.tenant AND p.batch_id = b.id), 0), 0)::numeric AS lines_left
    FROM batches b
    WHERE b.tenant = $1 AND b.id <> $2 AND b.status IN ('validating', 'in_progress', 'finalizing')
      AND b.enqueued_lines > 0
) e

-- name: enqueue
-- Reserve lines and tokens for a batch in validation. For any other batch, nothing changes. A repeated
-- statement writes the same values.
UPDATE batches SET enqueued_lines = $3, enqueued_tokens = $4
WHERE tenant = $1 AND id = $2 AND status = 'validating'

-- name: request
-- Make a batch wait for a reservation. An earlier reservation of this batch is deleted. Otherwise an older
-- batch that needs these lines might never start.
UPDATE batches SET requested_lines = $3, requested_tokens = $4, enqueued_lines = NULL, enqueued_tokens = NULL
WHERE tenant = $1 AND id = $2 AND status = 'validating'

-- name: requested
SELECT requested_lines AS lines, requested_tokens AS tokens FROM batches
WHERE tenant = $1 AND id = $2 AND status = 'validating' AND requested_lines IS NOT NULL

-- name: waiting_before
-- Return the number of batches of the tenant that also wait for a reservation and should start before this
-- batch. If this batch has a reservation from an earlier attempt, the number is 0.
SELECT count(*) AS batches FROM batches b
JOIN batches own ON own.tenant = b.tenant AND own.id = $2 AND own.enqueued_lines IS NULL
WHERE b.tenant = $1 AND b.status = 'validating' AND b.requested_lines IS NOT NULL AND b.enqueued_lines IS NULL
  AND b.cancel_requested_at IS NULL AND b.deadline > now()
  AND (coalesce(b.start_at, b.created_at), b.id) < (coalesce(own.start_at, own.created_at), own.id)

-- name: is_validating
SELECT id FROM batches WHERE tenant = $1 AND id = $2 AND status = 'validating' FOR NO KEY UPDATE

-- name: stored
-- Return the sum of these bytes: known files, pending uploads (the announced or the sent bytes, whichever are
-- more), objects that ingestion wrote for live batches, and rows of single calls.
SELECT ((SELECT coalesce(sum(bytes), 0) FROM known_files WHERE tenant = $1)
      + (SELECT coalesce(sum(greatest(bytes, part_bytes)), 0) FROM uploads
         WHERE tenant = $1 AND status = 'pending' AND expires_at > now())
      + (SELECT coalesce(sum(bytes), 0) FROM ingest_attempts WHERE tenant = $1)
      + (SELECT coalesce(sum(bytes), 0) FROM calls WHERE tenant = $1))::bigint AS bytes

-- name: requests
SELECT requests FROM request_counts WHERE tenant = $1 AND began_at > now() - interval '1 minute'

-- name: count_request
-- A new minute begins with the first request of the tenant after the previous minute has ended.
INSERT INTO request_counts AS c (tenant, began_at, requests) VALUES ($1, now(), 1)
ON CONFLICT (tenant) DO UPDATE SET
    requests = CASE WHEN c.began_at > now() - interval '1 minute' THEN c.requests + 1 ELSE 1 END,
    began_at = CASE WHEN c.began_at > now() - interval '1 minute' THEN c.began_at ELSE now() END
RETURNING requests, extract(epoch FROM began_at + interval '1 minute' - now())::float8 AS seconds_left

-- name: delete_request_counts
-- Delete ended minutes of all tenants, but at most $1 rows, so that the calling request does not wait long.
DELETE FROM request_counts WHERE tenant IN (
    SELECT tenant FROM request_counts WHERE began_at <= now() - interval '1 minute'
    ORDER BY began_at LIMIT $1 FOR UPDATE SKIP LOCKED)

-- name: key_budgets
-- Revoked keys are included, because their batches continue.
SELECT tenant, id, tokens_per_day, cost_per_day FROM api_keys
WHERE num_nonnulls(tokens_per_day, cost_per_day) > 0

-- name: key_budget
SELECT k.tokens_per_day, k.cost_per_day, used.tokens, used.cost
FROM api_keys k CROSS JOIN LATERAL (
    SELECT coalesce(sum(u.tokens), 0)::bigint AS tokens, coalesce(sum(u.cost), 0) AS cost FROM daily_usage u
    WHERE u.tenant = k.tenant AND u.key_id = k.id AND u.day = (now() AT TIME ZONE 'utc')::date
) used
WHERE k.tenant = $1 AND k.id = $2

-- name: withdrawn_keys
-- Return the keys that were revoked or have expired since $1, which is the earliest creation time of a
-- running batch. Without this limit, the list would grow forever.
SELECT id FROM api_keys WHERE revoked_at >= $1 OR expires_at BETWEEN $1 AND now()

-- name: webhooks
SELECT count(*) FROM webhook_endpoints WHERE tenant = $1 AND batch_id = ''

-- name: used_today
SELECT coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(cost), 0) AS cost FROM daily_usage
WHERE tenant = $1 AND day = (now() AT TIME ZONE 'utc')::date

-- name: publish_usage
-- The numbers are totals of one worker and one day, so a repeated statement changes nothing.
INSERT INTO daily_usage AS s (tenant, key_id, day, worker, tokens, cost)
SELECT reported.tenant, reported.key_id, $2, $1, reported.tokens, reported.cost::numeric
FROM unnest($3::text[], $4::text[], $5::bigint[], $6::text[]) AS reported (tenant, key_id, tokens, cost)
ORDER BY reported.tenant, reported.key_id
ON CONFLICT (tenant, key_id, day, worker) DO UPDATE SET
    tokens = greatest(s.tokens, excluded.tokens), cost = greatest(s.cost, excluded.cost)

-- name: delete_usage
-- If the statement is repeated, it deletes nothing.
DELETE FROM daily_usage WHERE day < $1

-- name: daily_usage
SELECT tenant, key_id, sum(tokens)::bigint AS tokens, sum(cost) AS cost FROM daily_usage
WHERE day = $2 AND worker <> $1
GROUP BY tenant, key_id
