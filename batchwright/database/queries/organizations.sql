-- name: create
-- A second run finds the row and inserts nothing.
INSERT INTO organizations (name, tokens_per_day, created_at) VALUES ($1, $2, $3)
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: limit
UPDATE organizations SET tokens_per_day = $2 WHERE name = $1
RETURNING name

-- name: delete
-- What says who belongs to it goes with it.
DELETE FROM organizations WHERE name = $1
RETURNING name

-- name: add
-- A tenant that is in one stays there; says in which one it is now. Nothing: there is no such organization.
INSERT INTO organization_tenants AS o (tenant, organization)
SELECT $2, name FROM organizations WHERE name = $1
ON CONFLICT (tenant) DO UPDATE SET organization = o.organization
RETURNING organization

-- name: remove
DELETE FROM organization_tenants AS t WHERE t.organization = $1 AND t.tenant = $2
RETURNING t.tenant
