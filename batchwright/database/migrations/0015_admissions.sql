-- Batches and bytes that a quota has let in and whose rows are being made. One that is there counts by its row.
-- What a crash of the server loses is at most a minute's.
CREATE UNLOGGED TABLE admissions (
    tenant      text        NOT NULL,
    id          text        NOT NULL,  -- of the batch, file or upload
    quota       text        NOT NULL,
    amount      bigint      NOT NULL,
    admitted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);
