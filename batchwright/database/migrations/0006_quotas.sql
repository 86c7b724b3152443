-- What a tenant may have, and how much of it is taken.

-- A tenant without a row, and a null, has what the settings say; 0 is no limit.
CREATE TABLE quotas (
    tenant              text        PRIMARY KEY,
    live_batches        bigint      CHECK (live_batches >= 0),
    stored_bytes        bigint      CHECK (stored_bytes >= 0),
    enqueued_lines      bigint      CHECK (enqueued_lines >= 0),
    enqueued_tokens     bigint      CHECK (enqueued_tokens >= 0),
    requests_per_minute bigint      CHECK (requests_per_minute >= 0),
    models              text[],     -- those it may use; null: every one
    changed_at          timestamptz NOT NULL
);

-- What a batch was planned with. How much of it is still enqueued follows from what has settled, so nothing
-- has to be given back. Null: not counted yet.
ALTER TABLE batches ADD COLUMN enqueued_lines bigint, ADD COLUMN enqueued_tokens bigint;
UPDATE batches SET enqueued_lines = total - failed, enqueued_tokens = 0
WHERE status IN ('in_progress', 'finalizing');

-- One row a tenant that has a limit of requests. What a crash of the server loses is at most a minute's count.
CREATE UNLOGGED TABLE request_counts (
    tenant   text        PRIMARY KEY,
    began_at timestamptz NOT NULL,
    requests bigint      NOT NULL
) WITH (fillfactor = 50);
