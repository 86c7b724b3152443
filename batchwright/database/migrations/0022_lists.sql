-- What is read tenant by tenant is found where a tenant has many files and batches.

CREATE INDEX files_of_purpose ON files (tenant, purpose, created_at, id);
-- A sum of it is taken of the index alone.
CREATE INDEX files_stored ON files (tenant) INCLUDE (id, expires_at, bytes);
CREATE INDEX batches_kept ON batches (tenant) WHERE results_kept_until IS NOT NULL;
