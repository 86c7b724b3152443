-- name: note
INSERT INTO audits (kind, found, still_there, audited_at)
SELECT kind, found, still_there, $4::timestamptz
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS told (kind, found, still_there)
ON CONFLICT (kind) DO UPDATE
SET found = excluded.found, still_there = excluded.still_there, audited_at = excluded.audited_at
WHERE audits.audited_at <= excluded.audited_at

-- name: latest
SELECT kind, found, still_there, audited_at FROM audits
