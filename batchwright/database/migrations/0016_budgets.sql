-- Budgets of tokens a day, of tenants and of API keys. Null: none of its own; 0: no limit.

ALTER TABLE quotas ADD COLUMN tokens_per_day bigint CHECK (tokens_per_day >= 0);
ALTER TABLE api_keys ADD COLUMN tokens_per_day bigint CHECK (tokens_per_day >= 0);

-- What backends reported of lines that were answered, on days in UTC. Each worker process keeps its own numbers,
-- absolute ones, until the day after.
CREATE TABLE spent_tokens (
    tenant text   NOT NULL,
    key_id text   NOT NULL, -- that created the batch; empty: none
    day    date   NOT NULL,
    worker text   NOT NULL,
    tokens bigint NOT NULL CHECK (tokens >= 0),
    PRIMARY KEY (tenant, key_id, day, worker)
) WITH (fillfactor = 70);
CREATE INDEX spent_tokens_by_day ON spent_tokens (day);
