-- Organizations: tenants whose lines share one budget of tokens a day. Null: none. Of tenants only names are kept,
-- as there are tenants without a row of their own.

CREATE TABLE organizations (
    name           text        PRIMARY KEY,
    tokens_per_day bigint      CHECK (tokens_per_day > 0),
    created_at     timestamptz NOT NULL
);

CREATE TABLE organization_tenants (
    tenant       text PRIMARY KEY, -- is in one organization at most
    organization text NOT NULL REFERENCES organizations (name) ON DELETE CASCADE
);
CREATE INDEX organization_tenants_by_organization ON organization_tenants (organization);
