-- Users: keys of a tenant whose batches share one budget of tokens a day. Null: none. A key is of one user at most.

CREATE TABLE users (
    tenant         text        NOT NULL REFERENCES tenants (name),
    name           text        NOT NULL,
    tokens_per_day bigint      CHECK (tokens_per_day > 0),
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

ALTER TABLE api_keys ADD COLUMN user_name text; -- null: nobody's
ALTER TABLE api_keys ADD CONSTRAINT api_keys_user FOREIGN KEY (tenant, user_name) REFERENCES users (tenant, name);
CREATE INDEX api_keys_by_user ON api_keys (tenant, user_name) WHERE user_name IS NOT NULL;
