-- Files, batches, what workers tell of slices, served models, workers.
--
-- Documents that clients wrote (metadata, validation errors) are json, not jsonb: they are never looked into,
-- and jsonb refuses \u0000. Every primary key of a tenant's table begins with the tenant.

CREATE TABLE files (
    tenant      text        NOT NULL,
    id          text        NOT NULL,
    purpose     text        NOT NULL,
    filename    text        NOT NULL,
    bytes       bigint      NOT NULL CHECK (bytes >= 0),
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    storage_key text        NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX files_by_creation ON files (tenant, created_at, id);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE batches (
    tenant                       text             NOT NULL,
    id                           text             NOT NULL,
    input_file_id                text             NOT NULL,
    endpoint                     text             NOT NULL,
    completion_window            text             NOT NULL,
    metadata                     json,
    output_expires_after_seconds integer,
    weight                       double precision NOT NULL,
    priority                     smallint         NOT NULL,
    policy                       jsonb            NOT NULL,

    status                       text             NOT NULL CHECK (status IN
        ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelled')),
    created_at                   timestamptz      NOT NULL,
    expires_at                   timestamptz      NOT NULL,
    in_progress_at               timestamptz,
    finalizing_at                timestamptz,
    completed_at                 timestamptz,
    failed_at                    timestamptz,
    expired_at                   timestamptz,
    cancel_requested_at          timestamptz,
    cancelled_at                 timestamptz,

    output_file_id               text,
    error_file_id                text,
    errors                       json             NOT NULL DEFAULT '[]',
    models                       jsonb            NOT NULL DEFAULT '[]',
    total                        bigint           NOT NULL DEFAULT 0,
    completed                    bigint           NOT NULL DEFAULT 0,
    failed                       bigint           NOT NULL DEFAULT 0,
    input_tokens                 bigint           NOT NULL DEFAULT 0,
    cached_tokens                bigint           NOT NULL DEFAULT 0,
    output_tokens                bigint           NOT NULL DEFAULT 0,
    reasoning_tokens             bigint           NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX batches_by_creation ON batches (tenant, created_at, id);
-- Time never runs backwards in a row, whatever the clocks of its writers say. greatest() passes over nulls.
CREATE FUNCTION not_before(at timestamptz, b batches) RETURNS timestamptz LANGUAGE sql IMMUTABLE
    RETURN greatest(at, b.created_at, b.in_progress_at, b.finalizing_at, b.cancel_requested_at);

-- Few rows are live: counting a tenant's, and finding who reads a file, touches only those.
CREATE INDEX batches_live ON batches (tenant, input_file_id)
    WHERE status IN ('validating', 'in_progress', 'finalizing');

-- An expired file is unknown, unless a live batch reads it (R14).
CREATE VIEW known_files AS
    SELECT f.* FROM files f
    WHERE f.expires_at IS NULL OR f.expires_at > now() OR EXISTS (
        SELECT FROM batches b
        WHERE b.tenant = f.tenant AND b.input_file_id = f.id
          AND b.status IN ('validating', 'in_progress', 'finalizing'));

-- Rewritten every 2 s while a slice runs: room on the page keeps these updates out of the index.
CREATE TABLE slice_progress (
    tenant           text    NOT NULL,
    batch_id         text    NOT NULL,
    model            text    NOT NULL,
    number           integer NOT NULL,
    generation       integer NOT NULL,
    attempt          integer NOT NULL,
    completed        bigint  NOT NULL,
    failed           bigint  NOT NULL,
    input_tokens     bigint  NOT NULL,
    cached_tokens    bigint  NOT NULL,
    output_tokens    bigint  NOT NULL,
    reasoning_tokens bigint  NOT NULL,
    PRIMARY KEY (tenant, batch_id, model, number),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
) WITH (fillfactor = 50);

-- The sum over a batch's slices: counts per model as [{model, lines, completed, failed}], and its usage.
CREATE FUNCTION told(of_tenant text, of_batch text, OUT told_models jsonb, OUT told_usage jsonb)
RETURNS SETOF record LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT jsonb_agg(jsonb_build_object(
               'model', m.model, 'lines', 0, 'completed', m.completed, 'failed', m.failed) ORDER BY m.model),
           jsonb_build_object(
               'input_tokens', sum(m.input_tokens), 'cached_tokens', sum(m.cached_tokens),
               'output_tokens', sum(m.output_tokens), 'reasoning_tokens', sum(m.reasoning_tokens))
    FROM (
        SELECT p.model, sum(p.completed) AS completed, sum(p.failed) AS failed,
               sum(p.input_tokens) AS input_tokens, sum(p.cached_tokens) AS cached_tokens,
               sum(p.output_tokens) AS output_tokens, sum(p.reasoning_tokens) AS reasoning_tokens
        FROM slice_progress p
        WHERE p.tenant = of_tenant AND p.batch_id = of_batch
        GROUP BY p.model
    ) m
    HAVING count(*) > 0
$$;

CREATE TABLE served_models (
    backend_url text        NOT NULL,
    name        text        NOT NULL,
    seen_at     timestamptz NOT NULL,
    PRIMARY KEY (backend_url, name)
);

CREATE TABLE workers (
    id      text        PRIMARY KEY,
    stats   jsonb       NOT NULL,
    beat_at timestamptz NOT NULL
) WITH (fillfactor = 50);
