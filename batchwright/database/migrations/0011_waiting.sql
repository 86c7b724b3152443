-- Why live batches wait, by whoever knows it; what was told holds until it is taken back, or until `until`.
-- Without a reference to batches: a reason may come before the row is there again.
CREATE TABLE waiting (
    tenant   text        NOT NULL,
    batch_id text        NOT NULL,
    model    text        NOT NULL,  -- empty: the whole batch
    source   text        NOT NULL,  -- worker, fleet, user
    reason   text        NOT NULL,
    since    timestamptz NOT NULL,
    until    timestamptz NOT NULL,
    PRIMARY KEY (tenant, batch_id, model, source)
);
CREATE INDEX waiting_until ON waiting (until);
