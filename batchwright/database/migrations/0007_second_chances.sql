-- Batches made of others that have ended, and results that are kept for that.

ALTER TABLE batches ADD COLUMN origin jsonb; -- the batch it was made of: {batch_id, chance}
-- Of a batch that failed without files: until then what it had settled stays in storage.
ALTER TABLE batches ADD COLUMN results_kept_until timestamptz;

-- One of each kind a batch: whoever asks again goes on with the order of the first.
CREATE TABLE second_chances (
    tenant     text        NOT NULL,
    origin_id  text        NOT NULL,
    chance     text        NOT NULL CHECK (chance IN ('retry', 'resume')),
    batch_id   text        NOT NULL,
    made       json        NOT NULL, -- the new batch's order
    PRIMARY KEY (tenant, origin_id, chance),
    FOREIGN KEY (tenant, origin_id) REFERENCES batches (tenant, id) ON DELETE CASCADE
);
CREATE INDEX second_chances_by_batch ON second_chances (tenant, batch_id);
