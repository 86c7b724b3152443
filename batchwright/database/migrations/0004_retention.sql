-- What retention goes by: which ended batches are cleared, what succeeded when, and whose the storage is.

ALTER TABLE batches ADD COLUMN swept_at timestamptz; -- when what the batch left in storage was deleted
CREATE INDEX batches_unswept ON batches (coalesce(completed_at, failed_at, expired_at, cancelled_at))
    WHERE swept_at IS NULL;
CREATE INDEX batches_swept ON batches (coalesce(completed_at, failed_at, expired_at, cancelled_at))
    WHERE swept_at IS NOT NULL;
-- Of every status, unlike batches_live: a file stays for a while after the batch that read it last.
CREATE INDEX batches_by_input ON batches (tenant, input_file_id);

-- A kind that has never succeeded counts from here on: a schedule nobody made is noticed too.
CREATE TABLE retention (
    kind         text        PRIMARY KEY,
    succeeded_at timestamptz NOT NULL
);
INSERT INTO retention
SELECT kind, now() FROM unnest(ARRAY['files', 'uploads', 'batches', 'metadata', 'keys',
                                     'unfinished', 'orphans', 'lost']) AS kind;

-- The storage has an object that says the same. Where it does not, rows and objects are not compared.
CREATE TABLE storage_mark (
    single    boolean     PRIMARY KEY DEFAULT true CHECK (single),
    id        text        NOT NULL,
    marked_at timestamptz -- when the object was put there
);
INSERT INTO storage_mark (id) VALUES (gen_random_uuid()::text);
