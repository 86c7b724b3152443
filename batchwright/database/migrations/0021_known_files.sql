-- An expired file is unknown, unless a live batch reads it that was created before (R14): a batch that comes later
-- brings no file back.
CREATE OR REPLACE VIEW known_files AS
    SELECT f.* FROM files f
    WHERE f.expires_at IS NULL OR f.expires_at > now() OR EXISTS (
        SELECT FROM batches b
        WHERE b.tenant = f.tenant AND b.input_file_id = f.id AND b.created_at < f.expires_at
          AND b.status IN ('validating', 'in_progress', 'finalizing'));
