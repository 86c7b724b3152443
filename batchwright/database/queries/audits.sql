-- name: record
INSERT INTO audits (kind, found, unrepaired, audited_at)
SELECT kind, found, unrepaired, $4::timestamptz
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS reported (kind, found, unrepaired)
ON CONFLICT (kind) DO UPDATE
SET found = excluded.found, unrepaired = excluded.unrepaired, audited_at = excluded.audited_at
WHERE audits.audited_at <= excluded.audited_at

-- name: latest
SELECT kind, found, unrepaired, audited_at FROM audits
