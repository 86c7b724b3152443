-- What backends told by calling when a job had ended; the id stands for a line and its job.
CREATE TABLE callbacks (
    id         text        PRIMARY KEY,
    size       bigint      NOT NULL,  -- of what was sent, in bytes
    body       bytea,                 -- null: too large to be kept, or of no more use
    emptied    boolean     NOT NULL DEFAULT false,
    expires_at timestamptz NOT NULL   -- of the URL that was called
);
CREATE INDEX callbacks_expires_at ON callbacks (expires_at);
