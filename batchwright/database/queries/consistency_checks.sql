-- name: record
INSERT INTO consistency_checks (kind, found, unrepaired, checked_at)
SELECT kind, found, unrepaired, $4::timestamptz
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS reported (kind, found, unrepaired)
ON CONFLICT (kind) DO UPDATE
SET found = excluded.found, unrepaired = excluded.unrepaired, checked_at = excluded.checked_at
WHERE consistency_checks.checked_at <= excluded.checked_at

-- name: latest
SELECT kind, found, unrepaired, checked_at FROM consistency_checks
