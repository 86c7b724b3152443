-- Tenants, and the keys they come with. What a tenant made does not refer to its row: without keys there are tenants too.

CREATE TABLE tenants (
    name        text        PRIMARY KEY,
    created_at  timestamptz NOT NULL,
    disabled_at timestamptz
);

CREATE TABLE api_keys (
    id           text        PRIMARY KEY,
    tenant       text        NOT NULL REFERENCES tenants (name),
    prefix       text        NOT NULL UNIQUE, -- the part of the key that may be seen
    salt         bytea       NOT NULL,
    hash         bytea       NOT NULL,        -- of the salt and the secret part
    scopes       text[]      NOT NULL CHECK (scopes <@ ARRAY['read', 'write', 'admin'] AND cardinality(scopes) > 0),
    label        text        NOT NULL,        -- what it is for, in its maker's words
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, created_at);
