-- name: tenant_exists
SELECT name FROM tenants WHERE name = $1

-- name: create
-- If the group exists already, nothing is inserted.
INSERT INTO budget_groups (kind, tenant, name, tokens_per_day, created_at, cost_per_day)
VALUES ($1, $2, $3, $4, $5, $6::text::numeric)
ON CONFLICT (kind, tenant, name) DO NOTHING
RETURNING name

-- name: all
-- Groups of the kind $1 (all kinds if null) and of the tenant $2 (all tenants if null), with their members.
SELECT g.kind, g.tenant, g.name, g.created_at, g.tokens_per_day, g.cost_per_day,
       array_remove(array_agg(m.member ORDER BY m.member COLLATE "C"), NULL) AS members
FROM budget_groups g
LEFT JOIN budget_group_members m ON m.kind = g.kind AND m.tenant = g.tenant AND m.name = g.name
WHERE ($1::text IS NULL OR g.kind = $1) AND ($2::text IS NULL OR g.tenant = $2)
GROUP BY g.kind, g.tenant, g.name
ORDER BY g.kind COLLATE "C", g.tenant COLLATE "C", g.name COLLATE "C"

-- name: limited
SELECT g.kind, g.tenant, g.name, g.created_at, g.tokens_per_day, g.cost_per_day,
       array_remove(array_agg(m.member ORDER BY m.member COLLATE "C"), NULL) AS members
FROM budget_groups g
LEFT JOIN budget_group_members m ON m.kind = g.kind AND m.tenant = g.tenant AND m.name = g.name
WHERE num_nonnulls(g.tokens_per_day, g.cost_per_day) > 0
GROUP BY g.kind, g.tenant, g.name

-- name: budgets_of
-- The usage of a group is the sum over its current members: tenants of an organization, keys of a team or user.
SELECT g.kind, g.tenant, g.name, g.tokens_per_day, g.cost_per_day, used.tokens, used.cost
FROM budget_group_members o
JOIN budget_groups g ON g.kind = o.kind AND g.tenant = o.tenant AND g.name = o.name
CROSS JOIN LATERAL (
    SELECT coalesce(sum(found.tokens), 0)::bigint AS tokens, coalesce(sum(found.cost), 0) AS cost
    FROM (
        SELECT u.tokens, u.cost FROM budget_group_members m JOIN daily_usage u ON u.tenant = m.member
        WHERE g.kind = 'organization' AND m.kind = g.kind AND m.tenant = g.tenant AND m.name = g.name
          AND u.day = (now() AT TIME ZONE 'utc')::date
        UNION ALL
        SELECT u.tokens, u.cost FROM budget_group_members m JOIN daily_usage u ON u.key_id = m.member
        WHERE g.kind <> 'organization' AND m.kind = g.kind AND m.tenant = g.tenant AND m.name = g.name
          AND u.tenant = g.tenant AND u.day = (now() AT TIME ZONE 'utc')::date
    ) found
) used
WHERE (o.kind = 'organization' AND o.member = $1) OR (o.kind <> 'organization' AND o.tenant = $1 AND o.member = $2)
ORDER BY g.kind COLLATE "C"

-- name: limit
-- For each budget, null means no change, and 0 removes the budget.
UPDATE budget_groups SET
    tokens_per_day = nullif(coalesce($4::bigint, tokens_per_day), 0),
    cost_per_day = nullif(coalesce($5::text::numeric, cost_per_day), 0)
WHERE kind = $1 AND tenant = $2 AND name = $3
RETURNING name

-- name: lock
-- Lock the members of all groups of this kind and tenant until the transaction ends. So changes of members
-- are made one after the other and cannot deadlock.
SELECT pg_advisory_xact_lock(hashtextextended('budget groups ' || $1::text || ' ' || $2::text, 0))

-- name: find
SELECT name FROM budget_groups WHERE kind = $1 AND tenant = $2 AND name = $3

-- name: remove_others
-- Remove all members that are not in $4. Runs after `lock`.
DELETE FROM budget_group_members WHERE kind = $1 AND tenant = $2 AND name = $3 AND NOT member = ANY($4::text[])

-- name: add_tenants
-- Runs after `lock`. A tenant that belongs to another organization stays there. The result names the
-- organization of each tenant.
INSERT INTO budget_group_members AS m (kind, tenant, name, member)
SELECT DISTINCT $1, $2, $3, added FROM unnest($4::text[]) AS added
ON CONFLICT (kind, member) DO UPDATE SET name = m.name
RETURNING member, name

-- name: add_keys
-- Runs after `lock`. A key is removed from the team or user to which it belonged before.
INSERT INTO budget_group_members AS m (kind, tenant, name, member)
SELECT $1, k.tenant, $3, k.id FROM api_keys k WHERE k.tenant = $2 AND k.id = ANY($4::text[])
ON CONFLICT (kind, member) DO UPDATE SET name = excluded.name
RETURNING member, name

-- name: remove
-- Runs after `lock`.
DELETE FROM budget_group_members WHERE kind = $1 AND tenant = $2 AND name = $3 AND member = ANY($4::text[])
RETURNING member

-- name: delete
-- Runs after `lock`. The rows in `budget_group_members` are deleted with the row of the group.
DELETE FROM budget_groups WHERE kind = $1 AND tenant = $2 AND name = $3
RETURNING name
