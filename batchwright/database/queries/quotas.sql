-- name: get
SELECT * FROM quotas WHERE tenant = $1

-- name: all
SELECT * FROM quotas ORDER BY tenant COLLATE "C"

-- name: make
-- Before `lock_row`, so that there is a row to lock.
INSERT INTO quotas (tenant, changed_at) VALUES ($1, $2) ON CONFLICT (tenant) DO NOTHING

-- name: lock_row
SELECT * FROM quotas WHERE tenant = $1 FOR UPDATE

-- name: put
-- A second run writes the same.
UPDATE quotas SET
    live_batches = $2, stored_bytes = $3, enqueued_lines = $4, enqueued_tokens = $5, requests_per_minute = $6,
    models = $7, changed_at = $8, tokens_per_day = $9
WHERE tenant = $1

-- name: clear
-- A second run finds nothing.
DELETE FROM quotas WHERE tenant = $1

-- name: lock_tenant
-- One reservation of a tenant after the other: each sees those before it.
SELECT pg_advisory_xact_lock(hashtextextended('quotas ' || $1::text, 0))

-- name: enqueued
-- Of all live batches but $2. What workers told of slices is cleared with the batch's end, as its share is.
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
-- Only before the batch runs: a second run writes the same, one that comes later changes nothing.
UPDATE batches SET enqueued_lines = $3, enqueued_tokens = $4
WHERE tenant = $1 AND id = $2 AND status = 'validating'

-- name: is_validating
SELECT id FROM batches WHERE tenant = $1 AND id = $2 AND status = 'validating' FOR NO KEY UPDATE

-- name: stored
-- Known files, and what pending uploads were announced with.
SELECT ((SELECT coalesce(sum(bytes), 0) FROM known_files WHERE tenant = $1)
      + (SELECT coalesce(sum(bytes), 0) FROM uploads
         WHERE tenant = $1 AND status = 'pending' AND expires_at > now()))::bigint AS bytes

-- name: requests
SELECT requests FROM request_counts WHERE tenant = $1 AND began_at > now() - interval '1 minute'

-- name: count_request
-- A minute begins with the first request after the last one's end.
INSERT INTO request_counts AS c (tenant, began_at, requests) VALUES ($1, now(), 1)
ON CONFLICT (tenant) DO UPDATE SET
    requests = CASE WHEN c.began_at > now() - interval '1 minute' THEN c.requests + 1 ELSE 1 END,
    began_at = CASE WHEN c.began_at > now() - interval '1 minute' THEN c.began_at ELSE now() END
RETURNING requests, extract(epoch FROM began_at + interval '1 minute' - now())::float8 AS seconds_left

-- name: forget_admissions
-- Whatever was to come of them has.
DELETE FROM admissions WHERE tenant = $1 AND admitted_at <= now() - interval '1 minute'

-- name: admit_batch
-- After `lock_tenant`, in one transaction. A second run renews it.
INSERT INTO admissions (tenant, id, quota, amount, admitted_at)
SELECT $1, $2, 'live_batches', $3::bigint, clock_timestamp()
WHERE (SELECT count(*) FROM batches
       WHERE tenant = $1 AND status IN ('validating', 'in_progress', 'finalizing') AND id <> $2)
    + (SELECT coalesce(sum(a.amount), 0) FROM admissions a
       WHERE a.tenant = $1 AND a.quota = 'live_batches' AND a.id <> $2
         AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = a.tenant AND b.id = a.id))
    + $3::bigint <= $4::bigint
ON CONFLICT (tenant, id) DO UPDATE SET admitted_at = excluded.admitted_at
RETURNING id

-- name: admit_bytes
-- The same of what is stored, as `stored` counts it.
INSERT INTO admissions (tenant, id, quota, amount, admitted_at)
SELECT $1, $2, 'stored_bytes', $3::bigint, clock_timestamp()
WHERE (SELECT coalesce(sum(bytes), 0) FROM known_files WHERE tenant = $1 AND id <> $2)
    + (SELECT coalesce(sum(bytes), 0) FROM uploads
       WHERE tenant = $1 AND status = 'pending' AND expires_at > now() AND id <> $2)
    + (SELECT coalesce(sum(a.amount), 0) FROM admissions a
       WHERE a.tenant = $1 AND a.quota = 'stored_bytes' AND a.id <> $2
         AND NOT EXISTS (SELECT FROM files f WHERE f.tenant = a.tenant AND f.id = a.id)
         AND NOT EXISTS (SELECT FROM uploads u WHERE u.tenant = a.tenant AND u.id = a.id))
    + $3::bigint <= $4::bigint
ON CONFLICT (tenant, id) DO UPDATE SET admitted_at = excluded.admitted_at
RETURNING id

-- name: withdraw
-- A second run finds nothing.
DELETE FROM admissions WHERE tenant = $1 AND id = $2

-- name: key_budgets
-- Revoked keys too: their batches go on.
SELECT id, tokens_per_day FROM api_keys WHERE tokens_per_day IS NOT NULL

-- name: key_budget
SELECT k.tokens_per_day, coalesce((
    SELECT sum(s.tokens) FROM spent_tokens s
    WHERE s.tenant = k.tenant AND s.key_id = k.id AND s.day = (now() AT TIME ZONE 'utc')::date), 0)::bigint AS tokens
FROM api_keys k WHERE k.tenant = $1 AND k.id = $2

-- name: organizations
SELECT o.name, o.created_at, o.tokens_per_day,
       array_remove(array_agg(t.tenant ORDER BY t.tenant COLLATE "C"), NULL) AS tenants
FROM organizations o LEFT JOIN organization_tenants t ON t.organization = o.name
GROUP BY o.name ORDER BY o.name COLLATE "C"

-- name: organization_of
-- What all its tenants have used is one number.
SELECT o.name, o.tokens_per_day, coalesce((
    SELECT sum(s.tokens) FROM spent_tokens s JOIN organization_tenants t ON t.tenant = s.tenant
    WHERE t.organization = o.name AND s.day = (now() AT TIME ZONE 'utc')::date), 0)::bigint AS tokens
FROM organization_tenants m JOIN organizations o ON o.name = m.organization
WHERE m.tenant = $1

-- name: limited_users
SELECT u.tenant, u.name, u.created_at, u.tokens_per_day,
       array_remove(array_agg(k.id ORDER BY k.created_at, k.id), NULL) AS keys
FROM users u LEFT JOIN api_keys k ON k.tenant = u.tenant AND k.user_name = u.name
WHERE u.tokens_per_day IS NOT NULL
GROUP BY u.tenant, u.name

-- name: user_of
SELECT u.name, u.tokens_per_day, coalesce((
    SELECT sum(s.tokens) FROM spent_tokens s JOIN api_keys m ON m.tenant = s.tenant AND m.id = s.key_id
    WHERE s.tenant = u.tenant AND m.user_name = u.name AND s.day = (now() AT TIME ZONE 'utc')::date), 0)::bigint AS tokens
FROM api_keys k JOIN users u ON u.tenant = k.tenant AND u.name = k.user_name
WHERE k.tenant = $1 AND k.id = $2

-- name: withdrawn_keys
-- Only as far back as a batch that runs can have been created: the others are many in time.
SELECT id FROM api_keys WHERE revoked_at >= $1 OR expires_at BETWEEN $1 AND now()

-- name: spent_today
SELECT coalesce(sum(tokens), 0)::bigint AS tokens FROM spent_tokens
WHERE tenant = $1 AND day = (now() AT TIME ZONE 'utc')::date

-- name: tell_spent
-- Absolute numbers of one worker, in the order of their key: a second run changes nothing.
INSERT INTO spent_tokens AS s (tenant, key_id, day, worker, tokens)
SELECT told.tenant, told.key_id, $2, $1, told.tokens
FROM unnest($3::text[], $4::text[], $5::bigint[]) AS told (tenant, key_id, tokens)
ORDER BY told.tenant, told.key_id
ON CONFLICT (tenant, key_id, day, worker) DO UPDATE SET tokens = greatest(s.tokens, excluded.tokens)

-- name: forget_spent
-- A second run finds nothing.
DELETE FROM spent_tokens WHERE day < $1

-- name: spent_by_others
SELECT tenant, key_id, sum(tokens)::bigint AS tokens FROM spent_tokens
WHERE day = $2 AND worker <> $1
GROUP BY tenant, key_id
