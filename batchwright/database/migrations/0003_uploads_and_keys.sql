-- Uploads in parts, and what requests with an Idempotency-Key made.

CREATE TABLE uploads (
    tenant                text        NOT NULL,
    id                    text        NOT NULL,
    purpose               text        NOT NULL,
    filename              text        NOT NULL,
    mime_type             text        NOT NULL,
    bytes                 bigint      NOT NULL CHECK (bytes > 0),
    expires_after_seconds integer,
    status                text        NOT NULL CHECK (status IN ('pending', 'completed', 'cancelled', 'expired')),
    created_at            timestamptz NOT NULL,
    expires_at            timestamptz NOT NULL,
    file_id               text,
    completion            text,       -- digest of the parts it was completed with
    swept_at              timestamptz, -- when what its parts left in storage was deleted
    PRIMARY KEY (tenant, id)
);
CREATE INDEX uploads_unswept ON uploads (expires_at) WHERE swept_at IS NULL;

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

CREATE TABLE idempotency_keys (
    tenant      text        NOT NULL,
    operation   text        NOT NULL,
    key         text        NOT NULL,
    fingerprint text        NOT NULL, -- of the request
    made        text        NOT NULL, -- what the first request made, as JSON
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, operation, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
