-- What the last audit found. Kinds that were never looked for count from here on: a schedule nobody made is
-- noticed too.
CREATE TABLE audits (
    kind        text        PRIMARY KEY,
    found       bigint      NOT NULL,
    still_there bigint      NOT NULL, -- of those found
    audited_at  timestamptz NOT NULL
);
INSERT INTO audits
SELECT kind, 0, 0, now() FROM unnest(ARRAY['run_missing', 'run_ended', 'row_missing', 'run_open',
                                           'file_missing', 'counts']) AS kind;
