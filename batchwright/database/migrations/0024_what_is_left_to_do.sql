-- What is left to retry, and what does not add up, is found in indexes that hold nothing else.

-- A letter is free where retry_id is null: a retry that goes with its batch's row frees its letters.
CREATE FUNCTION free_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dead_letters l SET retry_id = NULL FROM gone WHERE l.tenant = gone.tenant AND l.retry_id = gone.batch_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER free_letters AFTER DELETE ON dead_letter_retries
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION free_letters();
UPDATE dead_letters l SET retry_id = NULL
WHERE l.retry_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM dead_letter_retries r WHERE r.tenant = l.tenant AND r.batch_id = l.retry_id);
CREATE INDEX dead_letters_free ON dead_letters (batch_id, tenant) WHERE retry_id IS NULL;
CREATE INDEX dead_letters_free_of_tenant ON dead_letters (tenant, batch_id) WHERE retry_id IS NULL;
CREATE INDEX dead_letters_taken ON dead_letters (tenant, retry_id) WHERE retry_id IS NOT NULL;

-- Its batch has a row. The version before does not say so: it may be false though there is one, never the reverse.
ALTER TABLE dead_letter_retries ADD COLUMN begun boolean NOT NULL DEFAULT false;
UPDATE dead_letter_retries r SET begun = true
FROM batches b WHERE b.tenant = r.tenant AND b.id = r.batch_id;
CREATE INDEX dead_letter_retries_not_begun ON dead_letter_retries (origin_id, tenant) WHERE NOT begun;

-- As the audit asks for them: it is empty where all is well.
CREATE INDEX batches_miscounted ON batches (tenant, id)
    WHERE status IN ('completed', 'failed', 'expired', 'cancelled')
      AND coalesce(output_file_id, error_file_id) IS NOT NULL AND completed + failed <> total;
