-- Batches made of others that have ended.

-- name: find
SELECT made FROM second_chances WHERE tenant = $1 AND origin_id = $2 AND chance = $3

-- name: claim
INSERT INTO second_chances (tenant, origin_id, chance, batch_id, made)
SELECT tenant, id, $3, $4, $5 FROM batches WHERE tenant = $1 AND id = $2 FOR KEY SHARE
ON CONFLICT (tenant, origin_id, chance) DO NOTHING
RETURNING batch_id

-- name: keep_longer
-- What is taken over stays until the new batch has had its time.
UPDATE batches SET results_kept_until = greatest(results_kept_until, $3)
WHERE tenant = $1 AND id = $2 AND results_kept_until IS NOT NULL
