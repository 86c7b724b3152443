-- Lines that failed after their last attempt, written with the end of their batch and gone with its row; and
-- what workers have sent.

CREATE TABLE dead_letters (
    tenant      text        NOT NULL,
    id          text        NOT NULL, -- batch_req_..., of the line in the error file
    batch_id    text        NOT NULL,
    line_offset bigint      NOT NULL, -- in the batch's input
    custom_id   text        NOT NULL,
    model       text        NOT NULL,
    attempts    integer     NOT NULL,
    failed_at   timestamptz NOT NULL,
    status      integer,              -- of the last HTTP answer, or else
    code        text,                 -- that of the line
    message     text        NOT NULL,
    retry_id    text,                 -- the batch that asks it again, while dead_letter_retries has it
    PRIMARY KEY (tenant, id),
    FOREIGN KEY (tenant, batch_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX dead_letters_by_time ON dead_letters (failed_at, id);
CREATE INDEX dead_letters_of_tenant ON dead_letters (tenant, failed_at, id);
CREATE INDEX dead_letters_of_batch ON dead_letters (tenant, batch_id, line_offset);
CREATE INDEX dead_letters_by_id ON dead_letters (id);

-- Batches made of dead letters: written before their run starts, so that whoever asks again goes on with it.
CREATE TABLE dead_letter_retries (
    tenant    text NOT NULL,
    batch_id  text NOT NULL,
    origin_id text NOT NULL,
    made      json NOT NULL, -- the new batch's order
    PRIMARY KEY (tenant, batch_id),
    FOREIGN KEY (tenant, origin_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX dead_letter_retries_of_batch ON dead_letter_retries (tenant, origin_id);

-- What a worker process sent since it started: [{model, backend, requests, errors, seconds, pending}].
ALTER TABLE workers ADD COLUMN traffic jsonb NOT NULL DEFAULT '[]', ADD COLUMN started_at timestamptz;
