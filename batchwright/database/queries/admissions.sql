-- Admissions: new batches, files and uploads that count towards a tenant's quotas before they have a row.

-- name: lock_tenant
-- Lock the quotas of a tenant until the transaction ends, so that decisions about them are made one after the
-- other.
SELECT pg_advisory_xact_lock(hashtextextended('quotas ' || $1::text, 0))

-- name: forget_admissions
-- Delete admissions older than a minute. By then, the batch or file has its row, or will never get one.
DELETE FROM admissions WHERE tenant = $1 AND admitted_at <= now() - interval '1 minute'

-- name: admit_batch
-- Return no row if the tenant would have more than $4 live batches. Runs after `lock_tenant`, in one
-- transaction. If the statement is repeated, the minute of the admission begins again.
INSERT INTO admissions (tenant, id, quota, amount, admitted_at)
SELECT $1, $2, 'live_batches', $3::bigint, clock_timestamp()
WHERE (SELECT count(*) FROM batches
       WHERE tenant = $1 AND status IN ('validating', 'in_progress', 'finalizing') AND NOT rolling AND id <> $2)
    + (SELECT coalesce(sum(a.amount), 0) FROM admissions a
       WHERE a.tenant = $1 AND a.quota = 'live_batches' AND a.id <> $2
         AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = a.tenant AND b.id = a.id))
    + $3::bigint <= $4::bigint
ON CONFLICT (tenant, id) DO UPDATE SET admitted_at = excluded.admitted_at
RETURNING id

-- name: admit_bytes
-- `admit_batch` for $3 bytes of a file or upload. Stored bytes are counted as in the query `stored` in
-- `quotas.sql`.
INSERT INTO admissions (tenant, id, quota, amount, admitted_at)
SELECT $1, $2, 'stored_bytes', $3::bigint, clock_timestamp()
WHERE (SELECT coalesce(sum(bytes), 0) FROM known_files WHERE tenant = $1 AND id <> $2)
    + (SELECT coalesce(sum(greatest(bytes, part_bytes)), 0) FROM uploads
       WHERE tenant = $1 AND status = 'pending' AND expires_at > now() AND id <> $2)
    + (SELECT coalesce(sum(bytes), 0) FROM ingest_attempts WHERE tenant = $1)
    + (SELECT coalesce(sum(bytes), 0) FROM calls WHERE tenant = $1)
    + (SELECT coalesce(sum(a.amount), 0) FROM admissions a
       WHERE a.tenant = $1 AND a.quota = 'stored_bytes' AND a.id <> $2
         AND NOT EXISTS (SELECT FROM files f WHERE f.tenant = a.tenant AND f.id = a.id)
         AND NOT EXISTS (SELECT FROM uploads u WHERE u.tenant = a.tenant AND u.id = a.id))
    + $3::bigint <= $4::bigint
ON CONFLICT (tenant, id) DO UPDATE SET admitted_at = excluded.admitted_at
RETURNING id

-- name: release
-- End an admission. If the statement is repeated, it deletes nothing.
DELETE FROM admissions WHERE tenant = $1 AND id = $2
