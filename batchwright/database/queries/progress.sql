-- name: record
-- The numbers are totals, so a repeated report changes nothing. Rows are written in the order of their keys,
-- so that two workers cannot deadlock. Reports about an ended batch are ignored. A row that is written while
-- the batch ends is never read.
INSERT INTO slice_progress AS p (tenant, batch_id, model, number, generation, attempt, completed, failed,
                                 input_tokens, cached_tokens, output_tokens, reasoning_tokens, errors)
SELECT DISTINCT ON (t.tenant, t.batch_id, t.model, t.number)
       t.tenant, t.batch_id, t.model, t.number, t.generation, t.attempt, t.completed, t.failed,
       t.input_tokens, t.cached_tokens, t.output_tokens, t.reasoning_tokens, t.errors::jsonb
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[])
     WITH ORDINALITY AS t (tenant, batch_id, model, number, generation, attempt, completed, failed,
                           input_tokens, cached_tokens, output_tokens, reasoning_tokens, errors,
                           place)
JOIN batches b ON b.tenant = t.tenant AND b.id = t.batch_id
     AND b.status IN ('validating', 'in_progress', 'finalizing')
ORDER BY t.tenant, t.batch_id, t.model, t.number, t.generation DESC, t.attempt DESC, t.place DESC
ON CONFLICT (tenant, batch_id, model, number) DO UPDATE SET
    generation = excluded.generation,
    attempt = excluded.attempt,
    completed = excluded.completed,
    failed = excluded.failed,
    input_tokens = excluded.input_tokens,
    cached_tokens = excluded.cached_tokens,
    output_tokens = excluded.output_tokens,
    reasoning_tokens = excluded.reasoning_tokens,
    errors = excluded.errors
WHERE (excluded.generation, excluded.attempt) >= (p.generation, p.attempt)

-- name: slices
SELECT model, number, completed, failed FROM slice_progress WHERE tenant = $1 AND batch_id = $2

-- name: spending
-- Return the batches of $1 and $2 that have a cap on their cost, each with the usage of its slices by model.
-- The slices in $3 to $6 are left out, because the worker that calls this query counts them itself.
SELECT b.tenant, b.id, b.max_cost::text, b.cap_reached_at IS NOT NULL AS is_ending, b.prices, (
    SELECT jsonb_agg(jsonb_build_object(
               'model', m.model, 'requests', m.completed,
               'input_tokens', m.input_tokens, 'cached_tokens', m.cached_tokens, 'output_tokens', m.output_tokens))
    FROM (
        SELECT p.model, sum(p.completed) AS completed, sum(p.input_tokens) AS input_tokens,
               sum(p.cached_tokens) AS cached_tokens, sum(p.output_tokens) AS output_tokens
        FROM slice_progress p
        WHERE p.tenant = b.tenant AND p.batch_id = b.id AND NOT EXISTS (
            SELECT FROM unnest($3::text[], $4::text[], $5::text[], $6::int[]) AS own (tenant, batch_id, model, number)
            WHERE own.tenant = p.tenant AND own.batch_id = p.batch_id AND own.model = p.model
              AND own.number = p.number)
        GROUP BY p.model
    ) m) AS usages
FROM unnest($1::text[], $2::text[]) AS tracked (tenant, batch_id)
JOIN batches b ON b.tenant = tracked.tenant AND b.id = tracked.batch_id AND b.max_cost IS NOT NULL

-- name: reach_cap
-- If the batch has reached its cap before, the time does not change.
UPDATE batches SET cap_reached_at = coalesce(cap_reached_at, now())
WHERE tenant = $1 AND id = $2 AND status = 'in_progress' AND max_cost <= $3::text::numeric
RETURNING id

-- name: sample
-- A young batch gets a sample every ten seconds. The interval grows with the age of the batch, so a batch
-- that runs for a day has about 260 samples. Batches for which another worker is storing a sample now are
-- skipped.
WITH own AS (
    SELECT tenant, batch_id FROM throughput
    WHERE $1 - sampled_at[cardinality(sampled_at)] >= greatest(interval '10 seconds', ($1 - sampled_at[1]) / 40)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE throughput t SET sampled_at = t.sampled_at || $1::timestamptz, settled = t.settled || b.settled
FROM own, (
    SELECT b.tenant, b.id, b.completed + b.failed + coalesce(sum(p.completed + p.failed), 0)::bigint AS settled
    FROM batches b LEFT JOIN slice_progress p ON p.tenant = b.tenant AND p.batch_id = b.id
    WHERE b.status = 'in_progress'
    GROUP BY b.tenant, b.id
) b
WHERE t.tenant = b.tenant AND t.batch_id = b.id AND t.tenant = own.tenant AND t.batch_id = own.batch_id
  AND $1 - t.sampled_at[cardinality(t.sampled_at)] >= greatest(interval '10 seconds', ($1 - t.sampled_at[1]) / 40)

-- name: samples
SELECT unnest(sampled_at) AS sampled_at, unnest(settled) AS settled FROM throughput WHERE tenant = $1 AND batch_id = $2
