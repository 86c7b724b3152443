-- All tables of Batchwright, in this order: tenants, files and uploads, schedules, batches, results and reruns,
-- webhooks, single calls, models and workers, maintenance.
--
-- - `tenant` is the tenant that owns a row, and the first column of the primary key of each table with such rows.
--   Only API keys, teams and users refer to the table `tenants`: without API keys, tenants have no row there.
-- - Documents that clients wrote (metadata, validation errors, orders) are json, not jsonb: no query reads their
--   fields, and jsonb does not allow \u0000.
-- - A fillfactor below 100 leaves room on a page, so that frequent updates of a row change no index.


-- ---------------------------------------------------------------------------------------------------------- tenants

-- A tenant that has API keys. A disabled tenant keeps its rows, and its keys are rejected.
CREATE TABLE tenants (
    name        text        PRIMARY KEY,
    created_at  timestamptz NOT NULL,
    disabled_at timestamptz
);

-- An API key: `bw_<prefix>_<secret>`. Rows are never deleted, because batches refer to the keys that created them.
CREATE TABLE api_keys (
    id             text        PRIMARY KEY,
    tenant         text        NOT NULL REFERENCES tenants (name),
    prefix         text        NOT NULL UNIQUE, -- the visible part of the key
    salt           bytea       NOT NULL,
    hash           bytea       NOT NULL,        -- of the salt and the secret part
    scopes         text[]      NOT NULL CHECK (cardinality(scopes) > 0
        AND scopes <@ ARRAY['read', 'write', 'viewer', 'operator', 'admin']),
    label          text        NOT NULL,        -- its purpose, in the words of its creator
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz,
    revoked_at     timestamptz,
    last_used_at   timestamptz,
    tokens_per_day bigint      CHECK (tokens_per_day >= 0), -- its own budgets; null: none
    cost_per_day   numeric     CHECK (cost_per_day >= 0),   -- in the currency of the prices
    max_in_flight  bigint      CHECK (max_in_flight > 0)    -- requests in flight in the whole fleet; null: no cap
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, created_at);

-- A person who has signed in to the pages with an API key. The browser has a token in a cookie, the row its SHA-256.
CREATE TABLE sessions (
    token_hash bytea       PRIMARY KEY,
    key_id     text        NOT NULL REFERENCES api_keys (id),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- A group whose members share budgets of tokens and of cost per day: an organization of tenants, or a team or a user
-- with API keys of one tenant.
CREATE TABLE budget_groups (
    kind           text        NOT NULL CHECK (kind IN ('organization', 'team', 'user')),
    tenant         text        NOT NULL, -- of a team or user; empty for an organization
    name           text        NOT NULL,
    tokens_per_day bigint      CHECK (tokens_per_day > 0), -- null: no budget
    cost_per_day   numeric     CHECK (cost_per_day > 0),   -- in the currency of the prices; null: no budget
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (kind, tenant, name),
    CHECK ((kind = 'organization') = (tenant = ''))
);

-- A member of a budget group: the name of a tenant in an organization, the id of an API key in a team or user. A
-- member is in at most one group of each kind.
CREATE TABLE budget_group_members (
    kind   text NOT NULL,
    tenant text NOT NULL,
    name   text NOT NULL,
    member text NOT NULL,
    PRIMARY KEY (kind, member),
    FOREIGN KEY (kind, tenant, name) REFERENCES budget_groups (kind, tenant, name) ON DELETE CASCADE
);
CREATE INDEX budget_group_members_by_group ON budget_group_members (kind, tenant, name);

-- The limits and the share of a tenant. Null, or no row, is the limit of the settings; 0 is no limit.
CREATE TABLE quotas (
    tenant              text        PRIMARY KEY,
    live_batches        bigint      CHECK (live_batches >= 0),
    stored_bytes        bigint      CHECK (stored_bytes >= 0),
    enqueued_lines      bigint      CHECK (enqueued_lines >= 0),
    enqueued_tokens     bigint      CHECK (enqueued_tokens >= 0),
    requests_per_minute bigint      CHECK (requests_per_minute >= 0),
    tokens_per_day      bigint      CHECK (tokens_per_day >= 0),
    cost_per_day        numeric     CHECK (cost_per_day >= 0), -- in the currency of the prices
    webhooks            bigint      CHECK (webhooks >= 0),
    models              text[],     -- the models that the tenant may use; null: all
    weight              double precision CHECK (weight BETWEEN 0.001 AND 1000), -- its share; null: as in the settings
    max_in_flight       bigint      CHECK (max_in_flight > 0), -- requests in flight in the whole fleet; null: no cap
    backend_requests_per_minute bigint CHECK (backend_requests_per_minute > 0), -- sent to backends; null: no limit
    backend_tokens_per_minute   bigint CHECK (backend_tokens_per_minute > 0),
    max_priority        smallint    CHECK (max_priority BETWEEN 1 AND 5), -- highest of its batches; null: all
    over_quota          text        CHECK (over_quota IN ('fail', 'wait')), -- of a batch with too many lines or tokens
    window_too_short    text        CHECK (window_too_short IN ('accept', 'refuse')), -- rule for a batch that cannot be done in it
    changed_at          timestamptz NOT NULL
);

-- Requests of a tenant in the current minute, for tenants with a limit of requests. Unlogged: a crash of the server
-- loses at most one minute's count.
CREATE UNLOGGED TABLE request_counts (
    tenant   text        PRIMARY KEY,
    began_at timestamptz NOT NULL,
    requests bigint      NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX request_counts_by_age ON request_counts (began_at);

-- Batches and bytes that a quota has admitted and that have no row of their own yet. Unlogged: an admission counts
-- for a minute at most.
CREATE UNLOGGED TABLE admissions (
    tenant      text        NOT NULL,
    id          text        NOT NULL, -- of the batch, file or upload
    quota       text        NOT NULL,
    amount      bigint      NOT NULL,
    admitted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- Tokens that backends reported for successful lines, and the cost of these lines, by UTC day and worker process. Each
-- process writes its own totals, until the day after.
CREATE TABLE daily_usage (
    tenant text    NOT NULL,
    key_id text    NOT NULL, -- the API key that created the batch; empty: none
    day    date    NOT NULL,
    worker text    NOT NULL,
    tokens bigint  NOT NULL CHECK (tokens >= 0),
    cost   numeric NOT NULL CHECK (cost >= 0), -- in the currency of the prices
    PRIMARY KEY (tenant, key_id, day, worker)
) WITH (fillfactor = 70);
CREATE INDEX daily_usage_by_day ON daily_usage (day);


-- ------------------------------------------------------------------------------------------------ files and uploads

-- A file of the API. Its content is in object storage.
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
CREATE INDEX files_by_creation ON files (tenant, created_at, id) WHERE purpose <> 'calls';
CREATE INDEX files_of_purpose ON files (tenant, purpose, created_at, id);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
-- The sum of a tenant's bytes is read from this index alone.
CREATE INDEX files_stored ON files (tenant) INCLUDE (id, expires_at, bytes);

-- A file that is uploaded in parts.
CREATE TABLE uploads (
    tenant                text        NOT NULL,
    id                    text        NOT NULL,
    purpose               text        NOT NULL,
    filename              text        NOT NULL,
    mime_type             text        NOT NULL,
    bytes                 bigint      NOT NULL CHECK (bytes > 0), -- as announced
    part_bytes            bigint      NOT NULL DEFAULT 0,         -- of all parts that were sent
    parts                 integer     NOT NULL DEFAULT 0,         -- number of parts that were sent
    expires_after_seconds integer,                                -- lifetime of the file
    status                text        NOT NULL CHECK (status IN ('pending', 'completed', 'cancelled', 'expired')),
    created_at            timestamptz NOT NULL,
    expires_at            timestamptz NOT NULL,
    file_id               text,
    completion            text,        -- digest of the parts that it was completed with
    swept_at              timestamptz, -- when the objects of its parts were deleted
    PRIMARY KEY (tenant, id)
);
CREATE INDEX uploads_unswept ON uploads (expires_at) WHERE swept_at IS NULL;

-- A part of an upload.
CREATE TABLE upload_parts (
    tenant      text        NOT NULL,
    upload_id   text        NOT NULL,
    id          text        NOT NULL,
    bytes       bigint      NOT NULL CHECK (bytes >= 0),
    storage_key text        NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, upload_id, id),
    FOREIGN KEY (tenant, upload_id) REFERENCES uploads (tenant, id) ON DELETE CASCADE
);

-- An Idempotency-Key, and what the first request with it created.
CREATE TABLE idempotency_keys (
    tenant      text        NOT NULL,
    operation   text        NOT NULL,
    key         text        NOT NULL,
    fingerprint text        NOT NULL, -- of the request
    made        text        NOT NULL, -- the created object as JSON
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, operation, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);


-- -------------------------------------------------------------------------------------------------------- schedules

-- A schedule that creates batches. Temporal starts its runs, by a schedule with the same id.
CREATE TABLE schedules (
    tenant        text        NOT NULL,
    id            text        NOT NULL,
    description   text        NOT NULL,
    cron          text        NOT NULL,
    time_zone     text        NOT NULL,
    overlap       text        NOT NULL CHECK (overlap IN
        ('skip', 'buffer_one', 'buffer_all', 'cancel_other', 'allow_all')),
    input_file_id text        NOT NULL, -- the file is kept for as long as the schedule exists
    template      json        NOT NULL, -- what its batches are created from
    created_at    timestamptz NOT NULL,
    version       integer     NOT NULL, -- a change names the version that it has read
    pending       json,                 -- the row after a change that Temporal may not have got yet
    PRIMARY KEY (tenant, id)
);
CREATE INDEX schedules_by_creation ON schedules (tenant, created_at, id);
CREATE INDEX schedules_by_input ON schedules (tenant, input_file_id);

-- A time at which a schedule was due: the batch that was created, or the reason why none was. Only the latest are kept.
CREATE TABLE schedule_runs (
    tenant       text        NOT NULL,
    schedule_id  text        NOT NULL,
    id           text        NOT NULL, -- workflow id, and id of its first run
    scheduled_at timestamptz NOT NULL,
    batch_id     text,
    code         text,                 -- of the reason
    message      text,
    PRIMARY KEY (tenant, schedule_id, id),
    FOREIGN KEY (tenant, schedule_id) REFERENCES schedules (tenant, id) ON DELETE CASCADE,
    CHECK ((batch_id IS NULL) = (code IS NOT NULL AND message IS NOT NULL))
);


-- ---------------------------------------------------------------------------------------------------------- batches

-- A batch. It is live while its status is validating, in_progress or finalizing.
CREATE TABLE batches (
    tenant                       text             NOT NULL,
    id                           text             NOT NULL,
    -- The order, as the client created it.
    input_file_id                text             NOT NULL,
    endpoint                     text             NOT NULL,
    completion_window            text             NOT NULL,
    metadata                     json,
    output_expires_after_seconds integer,
    weight                       double precision NOT NULL,
    priority                     smallint         NOT NULL,
    max_cost                     numeric,          -- cap on its cost; null: none
    policy                       jsonb            NOT NULL,
    origin                       jsonb,            -- of a retry or resumption: {batch_id, kind}
    -- Status, and when it changed.
    status                       text             NOT NULL CHECK (status IN
        ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelled')),
    created_at                   timestamptz      NOT NULL,
    deadline                     timestamptz      NOT NULL,
    start_at                     timestamptz,      -- when it starts; null: when it is created
    input_location               text,             -- the object that ingestion copies to the input file; null: none
    output_location              text,             -- where its files are copied to; null: nowhere
    output_copy                  json,             -- of these copies: {state, error}; null: none was tried
    ingestion_began_at           timestamptz,
    in_progress_at               timestamptz,
    finalizing_at                timestamptz,
    completed_at                 timestamptz,
    failed_at                    timestamptz,
    expired_at                   timestamptz,
    cap_reached_at               timestamptz, -- it has cost as much as its cap and ends; the cap no longer changes
    cancel_requested_at          timestamptz,
    cancelled_at                 timestamptz,
    pause_changes                integer          NOT NULL DEFAULT 0, -- pauses and resumes, numbered in this order
    failed_pause_changes         integer          NOT NULL DEFAULT 0, -- of these, how many Temporal did not accept
    shown_pause_change           integer          NOT NULL DEFAULT 0, -- number of the last one that clients see
    -- Results.
    output_file_id               text,
    error_file_id                text,
    errors                       json             NOT NULL DEFAULT '[]',
    models                       jsonb            NOT NULL DEFAULT '[]', -- [{model, lines, completed, failed}]
    -- Failed lines by code and model, [{code, model, count, example}]: all of them, null while the batch is live; and
    -- those that failed in ingestion.
    errors_summary               json,
    ingestion_errors             json             NOT NULL DEFAULT '[]',
    total                        bigint           NOT NULL DEFAULT 0,
    completed                    bigint           NOT NULL DEFAULT 0,
    failed                       bigint           NOT NULL DEFAULT 0,
    input_tokens                 bigint           NOT NULL DEFAULT 0,
    cached_tokens                bigint           NOT NULL DEFAULT 0,
    output_tokens                bigint           NOT NULL DEFAULT 0,
    reasoning_tokens             bigint           NOT NULL DEFAULT 0,
    -- Its cost: requests and tokens by model, [{model, requests, input_tokens, ...}], set when the batch ends, and the
    -- prices by model, as they were when the input was validated.
    model_usage                  jsonb            NOT NULL DEFAULT '[]',
    prices                       jsonb            NOT NULL DEFAULT '{}',
    -- What ingestion planned, for quotas; null before it. What is still enqueued is derived from settled lines.
    enqueued_lines               bigint,
    enqueued_tokens              bigint,
    -- What it will enqueue; set while it waits for its tenant's quota.
    requested_lines              bigint,
    requested_tokens             bigint,
    start_forecast               jsonb, -- made when the input was validated; null if the speed of a model was not known
    -- Clean-up.
    results_kept_until           timestamptz,     -- of a batch that failed without files: its objects are kept
    files_pending_until          timestamptz,     -- of a batch that ended before its files were written: the limit
    swept_at                     timestamptz,     -- when its objects other than files were deleted
    -- True for a rolling batch, whose lines are single calls. It is in no list, and causes no events.
    rolling                      boolean          NOT NULL GENERATED ALWAYS AS (policy->>'rolling' IS NOT NULL) STORED,
    -- The status that clients see.
    visible_status               text             NOT NULL GENERATED ALWAYS AS (
        CASE WHEN status IN ('validating', 'in_progress', 'finalizing') AND cancel_requested_at IS NOT NULL
        THEN 'cancelling' ELSE status END) STORED,
    PRIMARY KEY (tenant, id)
);
-- Operators find a batch of any tenant by its id.
CREATE INDEX batches_by_id ON batches (id COLLATE "C");
-- Most rows may be of rolling batches, which are in no list. A list reads its rows in the order of one index.
CREATE INDEX batches_by_creation ON batches (tenant, created_at, id) WHERE NOT rolling; -- the list of a tenant,
CREATE INDEX batches_by_status ON batches (tenant, visible_status, created_at, id) WHERE NOT rolling; -- of one status,
CREATE INDEX batches_listed ON batches (created_at, id COLLATE "C") WHERE NOT rolling; -- the list of operators,
CREATE INDEX batches_listed_by_status ON batches (visible_status, created_at, id COLLATE "C") WHERE NOT rolling; -- of one status
-- The batches that read a file. Many may have read it: those that still do are in the two indexes after it.
CREATE INDEX batches_by_input ON batches (tenant, input_file_id);
-- Few rows are live: counting a tenant's live batches, and all queries of workers, read only these.
CREATE INDEX batches_live ON batches (tenant, input_file_id)
    WHERE status IN ('validating', 'in_progress', 'finalizing');
CREATE INDEX batches_files_pending ON batches (tenant, input_file_id) WHERE files_pending_until IS NOT NULL;
-- For retention: batches that keep their objects, those whose objects it deletes next, and those whose rows it deletes.
-- The last two also serve the counts of operators.
CREATE INDEX batches_kept ON batches (tenant) WHERE results_kept_until IS NOT NULL;
CREATE INDEX batches_unswept ON batches (coalesce(completed_at, failed_at, expired_at, cancelled_at))
    WHERE swept_at IS NULL;
CREATE INDEX batches_swept ON batches (coalesce(completed_at, failed_at, expired_at, cancelled_at))
    WHERE swept_at IS NOT NULL;
-- The rows of rolling batches are deleted long before those of other batches.
CREATE INDEX batches_swept_rolling ON batches (coalesce(completed_at, failed_at, expired_at, cancelled_at))
    WHERE swept_at IS NOT NULL AND rolling;
-- The fairness key of a tenant's next batch depends on its last cancelled or expired batch.
CREATE INDEX batches_stopped ON batches (tenant, created_at, id)
    WHERE status IN ('cancelled', 'expired') OR cancel_requested_at IS NOT NULL;
-- For the consistency check. This index is empty unless counts are wrong.
CREATE INDEX batches_miscounted ON batches (tenant, id)
    WHERE status IN ('completed', 'failed', 'expired', 'cancelled')
      AND coalesce(output_file_id, error_file_id) IS NOT NULL AND completed + failed <> total;

-- Return `at`, or the latest time in the row if that is later. So the times of a batch never run backwards, even if
-- the clocks of their writers differ. greatest() ignores nulls.
CREATE FUNCTION not_before(at timestamptz, b batches) RETURNS timestamptz LANGUAGE sql IMMUTABLE
    RETURN greatest(at, b.created_at, b.in_progress_at, b.finalizing_at, b.cancel_requested_at);

-- The files that have not expired. An expired file is still known to the schedules that read it, and to batches that
-- were created before it expired, until they have ended and their files are written.
CREATE VIEW known_files AS
    SELECT f.* FROM files f
    WHERE f.expires_at IS NULL OR f.expires_at > now() OR EXISTS (
        SELECT FROM batches b
        WHERE b.tenant = f.tenant AND b.input_file_id = f.id AND b.created_at < f.expires_at
          AND (b.status IN ('validating', 'in_progress', 'finalizing') OR b.files_pending_until > now()))
        OR EXISTS (SELECT FROM schedules s WHERE s.tenant = f.tenant AND s.input_file_id = f.id);

-- A model of a batch, or a pair of its metadata, as a digest: clients list batches by them. The time is that of the
-- batch, so that a page of the list is read in the order of one index.
CREATE TABLE batch_tags (
    tenant     text        NOT NULL,
    batch_id   text        NOT NULL,
    tag        bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, batch_id, tag),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX batch_tags_by_creation ON batch_tags (tenant, tag, created_at, batch_id);

-- Fingerprints of the custom_ids of a batch's lines, by which clients list the batches of a line: up to 262,144 lines
-- in a row. They are in buckets of equal size, and a search reads one bucket of each row.
CREATE TABLE custom_ids (
    tenant       text    NOT NULL,
    batch_id     text    NOT NULL,
    number       integer NOT NULL,
    salt         bytea   NOT NULL,
    bucket_bytes integer NOT NULL CHECK (bucket_bytes > 0),
    buckets      bytea   NOT NULL,
    PRIMARY KEY (tenant, batch_id, number),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
ALTER TABLE custom_ids ALTER COLUMN buckets SET STORAGE EXTERNAL; -- uncompressed, so that a bucket can be read alone

-- True if the bucket of a custom_id has its fingerprint. The first two bytes of the hash choose the bucket, the next
-- six are the fingerprint. The columns of `custom_ids` are arguments instead of its row, which would be read whole.
CREATE FUNCTION contains_custom_id(salt bytea, bucket_bytes integer, buckets bytea, custom_id bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN
    position(substring(sha256(salt || custom_id) FROM 3 FOR 6) IN substring(buckets
        FROM 1 + bucket_bytes * (
            (get_byte(sha256(salt || custom_id), 0) * 256 + get_byte(sha256(salt || custom_id), 1))
            * (octet_length(buckets) / bucket_bytes) / 65536)
        FOR bucket_bytes)) > 0;

-- A batch that its tenant has deleted. Its workflow's history may exist for longer than its row: the row is neither
-- restored from it nor inserted again, and a repeated deletion succeeds.
CREATE TABLE deleted_batches (
    tenant     text        NOT NULL,
    id         text        NOT NULL,
    deleted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX deleted_batches_by_time ON deleted_batches (deleted_at);

-- Bytes that attempts of ingestion have written for live batches. They count for the tenant's stored bytes.
CREATE TABLE ingest_attempts (
    tenant   text   NOT NULL,
    batch_id text   NOT NULL,
    prefix   text   NOT NULL, -- of the attempt's objects
    bytes    bigint NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (tenant, batch_id, prefix),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);

-- Progress of a slice of a live batch, updated every two seconds while the slice runs.
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
    errors           jsonb   NOT NULL DEFAULT '[]', -- failed lines by code, [{code, count, example}]
    PRIMARY KEY (tenant, batch_id, model, number),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
) WITH (fillfactor = 50);

-- How many lines of a batch had a final result at some times, oldest first: at its start, each ten seconds or more
-- seldom, and when its files begin to be written.
CREATE TABLE throughput (
    tenant     text          NOT NULL,
    batch_id   text          NOT NULL,
    sampled_at timestamptz[] NOT NULL,
    settled    bigint[]      NOT NULL,
    PRIMARY KEY (tenant, batch_id),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);

-- Return the sums over the slices of a batch: counts by model, [{model, lines, completed, failed}], usage by model,
-- [{model, requests, input_tokens, ...}], and failed lines by code and model, [{code, model, count, example}]. Return
-- no row if no slice has reported.
CREATE FUNCTION reported_progress(of_tenant text, of_batch text, OUT reported_models jsonb, OUT reported_usage jsonb,
                                  OUT reported_errors jsonb)
RETURNS SETOF record LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT jsonb_agg(jsonb_build_object(
               'model', m.model, 'lines', 0, 'completed', m.completed, 'failed', m.failed) ORDER BY m.model),
           jsonb_agg(jsonb_build_object(
               'model', m.model, 'requests', m.completed,
               'input_tokens', m.input_tokens, 'cached_tokens', m.cached_tokens,
               'output_tokens', m.output_tokens, 'reasoning_tokens', m.reasoning_tokens) ORDER BY m.model),
           (SELECT jsonb_agg(jsonb_build_object(
                       'code', e.code, 'model', e.model, 'count', e.lines, 'example', e.example))
            FROM (
                SELECT f.value->>'code' AS code, p.model, sum((f.value->>'count')::bigint) AS lines,
                       (array_agg(f.value->'example' ORDER BY p.number))[1] AS example
                FROM slice_progress p, jsonb_array_elements(p.errors) f
                WHERE p.tenant = of_tenant AND p.batch_id = of_batch AND p.failed > 0
                GROUP BY 1, 2
            ) e)
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

-- Why a live batch waits, as reported by one source. A reason holds until its source clears it, or until `until`.
-- There is no reference to batches: a reason may be written before the row of the batch.
CREATE TABLE waiting_reasons (
    tenant   text        NOT NULL,
    batch_id text        NOT NULL,
    model    text        NOT NULL, -- empty: the whole batch
    source   text        NOT NULL, -- worker, fleet or user
    reason   text        NOT NULL,
    since    timestamptz NOT NULL,
    until    timestamptz NOT NULL,
    PRIMARY KEY (tenant, batch_id, model, source)
);
CREATE INDEX waiting_reasons_until ON waiting_reasons (until);

-- When a live batch will be done, as a control worker forecast it last.
CREATE TABLE forecasts (
    tenant   text        NOT NULL,
    batch_id text        NOT NULL,
    made_at  timestamptz NOT NULL,
    forecast jsonb       NOT NULL,
    PRIMARY KEY (tenant, batch_id),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
) WITH (fillfactor = 50);

-- How fast a model settled lines when lines last waited for it: the basis of forecasts of new batches.
CREATE TABLE model_speeds (
    model       text        PRIMARY KEY,
    measured_at timestamptz NOT NULL,
    speed       jsonb       NOT NULL
) WITH (fillfactor = 50);

-- A call of a backend that reported the end of a job.
CREATE TABLE callbacks (
    id         text        PRIMARY KEY,            -- stands for a line and its job
    size       bigint      NOT NULL,               -- bytes of the received body
    body       bytea,                              -- null: too large to store, or no longer needed
    emptied    boolean     NOT NULL DEFAULT false,
    expires_at timestamptz NOT NULL                -- of the URL that was called
);
CREATE INDEX callbacks_expires_at ON callbacks (expires_at);


-- ----------------------------------------------------------------------------------------------- results and reruns

-- Batches that retry or resume an ended batch, at most one of each kind. A repeated request finds the first order.
CREATE TABLE reruns (
    tenant    text NOT NULL,
    origin_id text NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('retry', 'resume')),
    batch_id  text NOT NULL,
    made      json NOT NULL, -- the order of the new batch
    PRIMARY KEY (tenant, origin_id, kind),
    FOREIGN KEY (tenant, origin_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX reruns_by_batch ON reruns (tenant, batch_id);

-- A line that failed after its last attempt. Rows are written when the batch ends, and deleted with its row.
CREATE TABLE dead_letters (
    tenant      text        NOT NULL,
    id          text        NOT NULL, -- batch_req_..., the id of the line in the error file
    batch_id    text        NOT NULL,
    line_offset bigint      NOT NULL, -- in the input of the batch
    custom_id   text        NOT NULL,
    model       text        NOT NULL,
    attempts    integer     NOT NULL,
    failed_at   timestamptz NOT NULL,
    status      integer,              -- of the last HTTP response; null if the line has a code
    code        text,                 -- error code of the line
    message     text        NOT NULL,
    retry_id    text,                 -- the batch in dead_letter_retries that retries it; null: none
    PRIMARY KEY (tenant, id),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX dead_letters_by_time ON dead_letters (failed_at, id);
CREATE INDEX dead_letters_of_tenant ON dead_letters (tenant, failed_at, id);
CREATE INDEX dead_letters_of_batch ON dead_letters (tenant, batch_id, line_offset);
CREATE INDEX dead_letters_by_id ON dead_letters (id);
CREATE INDEX dead_letters_unretried ON dead_letters (batch_id, tenant) WHERE retry_id IS NULL;
CREATE INDEX dead_letters_unretried_of_tenant ON dead_letters (tenant, batch_id) WHERE retry_id IS NULL;
CREATE INDEX dead_letters_retried ON dead_letters (tenant, retry_id) WHERE retry_id IS NOT NULL;

-- A batch that retries dead letters. The row is written before the workflow starts, so that a repeated request
-- continues with the same order.
CREATE TABLE dead_letter_retries (
    tenant    text    NOT NULL,
    batch_id  text    NOT NULL,
    origin_id text    NOT NULL,
    made      json    NOT NULL,               -- the order of the new batch
    started   boolean NOT NULL DEFAULT false, -- true: the batch has a row
    PRIMARY KEY (tenant, batch_id),
    FOREIGN KEY (tenant, origin_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX dead_letter_retries_of_batch ON dead_letter_retries (tenant, origin_id);
CREATE INDEX dead_letter_retries_not_started ON dead_letter_retries (origin_id, tenant) WHERE NOT started;

-- When retries are deleted, their dead letters can be retried again.
CREATE FUNCTION release_dead_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dead_letters l SET retry_id = NULL FROM gone WHERE l.tenant = gone.tenant AND l.retry_id = gone.batch_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER release_dead_letters AFTER DELETE ON dead_letter_retries
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION release_dead_letters();


-- --------------------------------------------------------------------------------------------------------- webhooks

-- An endpoint: a URL that receives events about the batches of a tenant.
CREATE TABLE webhook_endpoints (
    tenant          text        NOT NULL,
    id              text        NOT NULL,
    batch_id        text        NOT NULL, -- it receives the events of this batch only; empty: of all batches
    url             text        NOT NULL,
    events          text[]      NOT NULL CHECK (cardinality(events) > 0),
    description     text        NOT NULL,
    details         boolean     NOT NULL, -- true: events say more about the batch
    secret          bytea       NOT NULL, -- encrypted if there are keys for payloads
    previous_secret bytea,
    previous_until  timestamptz,          -- until then, the previous secret signs, too
    created_at      timestamptz NOT NULL,
    failing_since   timestamptz,          -- first failed attempt since the last success
    disabled_at     timestamptz,
    disabled_reason text        NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 70);
CREATE INDEX webhook_endpoints_of_batch ON webhook_endpoints (tenant, batch_id, created_at, id);
CREATE INDEX webhook_endpoints_of_batches ON webhook_endpoints (created_at) WHERE batch_id <> '';

-- An event, and its delivery to one endpoint. A dispatcher starts a workflow for each row that is not started.
CREATE TABLE webhook_deliveries (
    tenant      text        NOT NULL,
    id          text        NOT NULL, -- wh_..., the same at every attempt
    endpoint_id text        NOT NULL,
    batch_id    text        NOT NULL,
    event_id    text        NOT NULL,
    type        text        NOT NULL,
    occurred_at timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    body        bytea,                -- as of the first attempt
    status      text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'failed')),
    reason      text        NOT NULL DEFAULT '', -- why it failed without another attempt
    attempts    integer     NOT NULL DEFAULT 0,
    replays     integer     NOT NULL DEFAULT 0,
    started     boolean     NOT NULL DEFAULT false, -- true: the workflow of the latest replay was started
    started_at  timestamptz,                        -- when a workflow was last started
    PRIMARY KEY (tenant, id),
    UNIQUE (tenant, endpoint_id, event_id),
    FOREIGN KEY (tenant, endpoint_id) REFERENCES webhook_endpoints (tenant, id) ON DELETE CASCADE
) WITH (fillfactor = 70);
CREATE INDEX webhook_deliveries_of_endpoint ON webhook_deliveries (tenant, endpoint_id, created_at, id);
CREATE INDEX webhook_deliveries_not_started ON webhook_deliveries (created_at) WHERE NOT started;
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (created_at);

-- One attempt of a delivery.
CREATE TABLE webhook_attempts (
    tenant      text             NOT NULL,
    delivery_id text             NOT NULL,
    number      integer          NOT NULL,
    at          timestamptz      NOT NULL,
    seconds     double precision NOT NULL,
    http_status integer,                    -- null: no response
    reason      text             NOT NULL,  -- why it failed; empty: it succeeded
    PRIMARY KEY (tenant, delivery_id, number),
    FOREIGN KEY (tenant, delivery_id) REFERENCES webhook_deliveries (tenant, id) ON DELETE CASCADE
);

-- Record an event about a batch for each endpoint that wants it. It is called by the triggers below, so that an event
-- is recorded in the transaction of its cause. `occurrence` tells two events of the same type apart; an event that is
-- recorded already is not recorded again. The endpoints are locked, because one that is being deleted would otherwise
-- break the reference and with it the transaction of the batch.
CREATE FUNCTION record_webhook_event(of_tenant text, of_batch text, of_type text, occurrence text, at timestamptz)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO webhook_deliveries (tenant, id, endpoint_id, batch_id, event_id, type, occurred_at)
    SELECT e.tenant, 'wh_' || replace(gen_random_uuid()::text, '-', ''), e.id, of_batch,
           'evt_' || md5(of_batch || '/' || of_type || '/' || occurrence), of_type, at
    FROM webhook_endpoints e
    WHERE e.tenant = of_tenant AND e.batch_id IN ('', of_batch) AND e.disabled_at IS NULL AND of_type = ANY (e.events)
    FOR KEY SHARE OF e
    ON CONFLICT (tenant, endpoint_id, event_id) DO NOTHING
$$;

CREATE FUNCTION record_status_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM record_webhook_event(NEW.tenant, NEW.id, 'batch.' || NEW.status, '', coalesce(
        NEW.completed_at, NEW.failed_at, NEW.expired_at, NEW.cancelled_at, NEW.in_progress_at));
    RETURN NULL;
END
$$;
CREATE TRIGGER record_status_event AFTER UPDATE OF status ON batches FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND NEW.status IN ('in_progress', 'completed', 'failed', 'expired', 'cancelled')
          AND NOT NEW.rolling)
    EXECUTE FUNCTION record_status_event();

CREATE FUNCTION record_pause_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM record_webhook_event(NEW.tenant, NEW.batch_id, 'batch.paused', extract(epoch FROM NEW.since)::text,
                                 NEW.since);
    RETURN NULL;
END
$$;
-- A repeated pause updates the row. Resuming deletes it.
CREATE TRIGGER record_pause_event AFTER INSERT ON waiting_reasons FOR EACH ROW
    WHEN (NEW.source = 'user' AND NEW.model = '') EXECUTE FUNCTION record_pause_event();

CREATE FUNCTION record_risk_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM record_webhook_event(NEW.tenant, NEW.batch_id, 'batch.at_risk', '', NEW.made_at);
    RETURN NULL;
END
$$;
-- Once for each batch: another event of the same batch has the same id.
CREATE TRIGGER record_first_risk_event AFTER INSERT ON forecasts FOR EACH ROW
    WHEN (NEW.forecast->>'window' <> 'fits') EXECUTE FUNCTION record_risk_event();
CREATE TRIGGER record_risk_event AFTER UPDATE ON forecasts FOR EACH ROW
    WHEN (NEW.forecast->>'window' <> 'fits' AND OLD.forecast->>'window' = 'fits')
    EXECUTE FUNCTION record_risk_event();


-- ----------------------------------------------------------------------------------------------------- single calls

-- The rolling batch that takes the calls of a group now. The row is deleted when the batch collects its calls.
CREATE TABLE rolling_batches (
    tenant    text        NOT NULL,
    group_id  text        NOT NULL, -- a digest of what its calls have in common
    batch_id  text        NOT NULL,
    made      json        NOT NULL, -- the order of the batch
    opened_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, group_id)
);

-- A single call, which is a line of a rolling batch with its id as `custom_id`. The first answer counts: it changes
-- the status, and no later answer does. There is no reference to batches: a call is stored before its batch.
CREATE TABLE calls (
    tenant        text        NOT NULL,
    id            text        NOT NULL,
    batch_id      text        NOT NULL,
    endpoint      text        NOT NULL,
    model         text        NOT NULL,
    request       bytea       NOT NULL,               -- the body for the backend; empty once the call has ended
    echoed        bytea       NOT NULL,               -- the fields of the request that a response without answer has
    bytes         bigint      NOT NULL GENERATED ALWAYS AS (
        octet_length(request) + octet_length(echoed) + coalesce(octet_length(answer), 0)) STORED,
    notifies      boolean     NOT NULL,               -- true: its end is an event for webhooks
    repeated      boolean     NOT NULL DEFAULT false, -- true: two requests or more stored it
    collected     boolean     NOT NULL DEFAULT false, -- true: it is in the input of its batch
    status        text        NOT NULL DEFAULT 'queued'
        CHECK (status IN ('queued', 'completed', 'incomplete', 'failed', 'cancelled')),
    created_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    answer        bytea,                              -- a line as in an output or error file; null: none
    PRIMARY KEY (tenant, id)
);
CREATE INDEX calls_of_batch ON calls (tenant, batch_id, id);
CREATE INDEX calls_by_end ON calls (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX calls_open ON calls (tenant, created_at) WHERE ended_at IS NULL;
CREATE INDEX calls_bytes ON calls (tenant) INCLUDE (bytes); -- the sum of a tenant's bytes is read from it alone

CREATE FUNCTION record_call_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM record_webhook_event(NEW.tenant, NEW.id, 'response.' || NEW.status, '', NEW.ended_at);
    RETURN NULL;
END
$$;
CREATE TRIGGER record_call_event AFTER UPDATE OF status ON calls FOR EACH ROW
    WHEN (NEW.notifies AND OLD.status = 'queued' AND NEW.status <> 'queued') EXECUTE FUNCTION record_call_event();

-- End the calls of a rolling batch that have no answer when the batch has ended and gets no more files. If it has not
-- collected its calls, because it was cancelled before, it gets no more of them.
CREATE FUNCTION end_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM rolling_batches
    WHERE tenant = NEW.tenant AND group_id = NEW.policy->'rolling'->>'group' AND batch_id = NEW.id;
    UPDATE calls SET status = CASE NEW.status WHEN 'cancelled' THEN 'cancelled' ELSE 'failed' END, ended_at = now(),
                     request = ''
    WHERE tenant = NEW.tenant AND batch_id = NEW.id AND status = 'queued';
    RETURN NULL;
END
$$;
CREATE TRIGGER end_calls AFTER UPDATE OF status, files_pending_until ON batches FOR EACH ROW
    WHEN (NEW.rolling AND NEW.status IN ('completed', 'failed', 'expired', 'cancelled')
          AND NEW.files_pending_until IS NULL)
    EXECUTE FUNCTION end_calls();


-- ----------------------------------------------------------------------------------------------- models and workers

-- A model that a backend listed.
CREATE TABLE served_models (
    backend_url text        NOT NULL,
    name        text        NOT NULL,
    seen_at     timestamptz NOT NULL,
    PRIMARY KEY (backend_url, name)
);

-- A model that was registered, changed or removed at run time. Models without a row are as in the registry file.
CREATE TABLE model_changes (
    model      text        PRIMARY KEY,
    config     jsonb,      -- as in the registry file; null: removed
    is_partial boolean     NOT NULL DEFAULT false, -- true: `config` has only the changed settings
    -- Rises with every change of any model, so that no version is used twice. An identity column needs no rights on
    -- a sequence.
    version    bigint      GENERATED ALWAYS AS IDENTITY,
    changed_at timestamptz NOT NULL,
    CONSTRAINT model_changes_partial CHECK (config IS NOT NULL OR NOT is_partial)
);

-- A rate that was set at run time. Models without a row have the rate of the settings.
CREATE TABLE rates (
    model               text             PRIMARY KEY, -- empty: the rate over all models
    requests_per_second double precision NOT NULL CHECK (requests_per_second >= 0), -- 0: no limit
    changed_at          timestamptz      NOT NULL
);

-- Tenants and models for which operators have stopped the sending of lines.
CREATE TABLE holds (
    kind    text        NOT NULL CHECK (kind IN ('tenant', 'model')),
    name    text        NOT NULL,
    held_at timestamptz NOT NULL,
    PRIMARY KEY (kind, name)
);

-- The last report of a worker process about itself.
CREATE TABLE workers (
    id         text        PRIMARY KEY,              -- host:pid
    stats      jsonb       NOT NULL,
    traffic    jsonb       NOT NULL DEFAULT '[]',    -- [{model, backend, requests, errors, seconds, pending}]
    registry   text        NOT NULL DEFAULT '',      -- fingerprint of the registry that it uses
    started_at timestamptz,
    beat_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Interactive calls that each API process has in flight at each backend, so that workers leave room for them.
CREATE TABLE interactive_load (
    process     text        NOT NULL,
    backend     text        NOT NULL,   -- URL
    in_flight   int         NOT NULL,
    mean        float8      NOT NULL,   -- over the last seconds
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (process, backend)
) WITH (fillfactor = 50);

-- What the interactive calls of each API process use of the rates per minute of tenants and models, so that workers
-- and the other API processes use only the rest.
CREATE TABLE interactive_rates (
    process     text        NOT NULL,
    of_tenant   boolean     NOT NULL,   -- false: of a model
    name        text        NOT NULL,   -- the tenant or the model
    requests    float8      NOT NULL,   -- per minute, over the last seconds
    tokens      float8      NOT NULL,   -- likewise
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (process, of_tenant, name)
) WITH (fillfactor = 50);


-- ------------------------------------------------------------------------------------------------------ maintenance

-- When each kind of clean-up last succeeded. Kinds that never did count from now on, so that a missing schedule is
-- noticed.
CREATE TABLE retention (
    kind         text        PRIMARY KEY,
    succeeded_at timestamptz NOT NULL
);
INSERT INTO retention
SELECT kind, now() FROM unnest(ARRAY['files', 'uploads', 'batches', 'metadata', 'keys', 'calls', 'webhooks', 'audit_log',
                                     'unfinished', 'orphans', 'lost']) AS kind;

-- Findings of the last consistency check of each kind. Kinds without a consistency check count from now on.
CREATE TABLE consistency_checks (
    kind        text        PRIMARY KEY,
    found       bigint      NOT NULL,
    unrepaired  bigint      NOT NULL, -- findings that were not repaired
    checked_at  timestamptz NOT NULL
);
INSERT INTO consistency_checks
SELECT kind, 0, 0, now() FROM unnest(ARRAY['run_missing', 'run_ended', 'row_missing', 'row_outdated',
                                           'run_open', 'file_missing', 'counts']) AS kind;

-- Position of the latest entry of the audit log.
CREATE TABLE audit_log_position (
    single   boolean PRIMARY KEY DEFAULT true CHECK (single),
    position bigint  NOT NULL
);
INSERT INTO audit_log_position (position) VALUES (0);

-- Returns the id of the next entry: its position, then random digits. The update locks the row until the transaction
-- ends, so the next transaction gets its position after this one is committed. Whoever sees an entry therefore sees all
-- entries before it. Unlike a sequence, it leaves no gap if a transaction is rolled back. Whoever waits longer than the
-- lock timeout fails, instead of occupying a connection that other requests need.
CREATE FUNCTION next_audit_log_id() RETURNS text LANGUAGE sql SET lock_timeout = '2s' AS $$
    UPDATE audit_log_position SET position = position + 1
    RETURNING 'act_' || lpad(to_hex(position), 16, '0') || right(replace(gen_random_uuid()::text, '-', ''), 16)
$$;

-- The audit log: an action of an operator, or a destructive action of a tenant. The row is inserted before the action. Fields
-- that do not apply are empty.
CREATE TABLE audit_log (
    id            text        PRIMARY KEY DEFAULT next_audit_log_id(),
    created_at    timestamptz NOT NULL,
    source        text        NOT NULL CHECK (source IN ('api', 'cli')),
    actor_tenant  text        NOT NULL,
    actor_key     text        NOT NULL, -- id of the API key
    actor_user    text        NOT NULL, -- of the request, or of the operating system
    address       text        NOT NULL, -- of the client, or the name of the host
    request_id    text        NOT NULL,
    action        text        NOT NULL,
    target_type   text        NOT NULL,
    target_id     text        NOT NULL,
    target_tenant text        NOT NULL, -- the tenant to which the target belongs
    before        json                  -- the target before the action, without secrets; null: there was none
);
CREATE INDEX audit_log_by_time ON audit_log (created_at);
CREATE INDEX audit_log_of_target ON audit_log (target_id, id);
CREATE INDEX audit_log_of_tenant ON audit_log (target_tenant, id);

-- The outcome of an action. An action without a row is running, or its process ended before it recorded the outcome.
CREATE TABLE audit_log_outcomes (
    id      text PRIMARY KEY REFERENCES audit_log (id) ON DELETE CASCADE,
    outcome text NOT NULL CHECK (outcome IN ('ok', 'refused', 'failed')),
    code    text NOT NULL, -- why it was refused or failed
    after   json           -- the target after the action; null: there is none
);

-- The audit log is append-only. Retention deletes old rows in transactions with a setting of its own.
CREATE FUNCTION refuse_audit_log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('batchwright.audit_log_retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'The audit log is append-only: % of % is refused.', TG_OP, TG_TABLE_NAME;
END
$$;
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION refuse_audit_log_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_log_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON audit_log_outcomes
    FOR EACH ROW EXECUTE FUNCTION refuse_audit_log_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON audit_log_outcomes
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_log_change();

-- Identity of this database. The object storage has an object with the same id: only then are rows and objects
-- compared.
CREATE TABLE storage_mark (
    single    boolean     PRIMARY KEY DEFAULT true CHECK (single),
    id        text        NOT NULL,
    marked_at timestamptz -- when the object was written
);
INSERT INTO storage_mark (id) VALUES (gen_random_uuid()::text);
