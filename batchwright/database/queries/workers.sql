-- name: record_heartbeat
-- Times of heartbeats come from the clock of the database server, because the clocks of workers differ. Each
-- start of a worker has a new id, so workers that have sent no heartbeat for a day are deleted here.
WITH silent AS (
    DELETE FROM workers WHERE id IN (
        SELECT id FROM workers WHERE beat_at < now() - interval '1 day' AND id <> $1 FOR UPDATE SKIP LOCKED)
)
INSERT INTO workers (id, stats, beat_at, registry, traffic, started_at) VALUES ($1, $2, now(), $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET
    stats = excluded.stats, registry = excluded.registry, traffic = excluded.traffic,
    started_at = excluded.started_at, beat_at = excluded.beat_at

-- name: count_alive
SELECT count(*) FROM workers WHERE beat_at >= now() - $1::interval

-- name: heartbeats
SELECT id, stats, beat_at, registry, started_at FROM workers WHERE beat_at >= now() - $1::interval ORDER BY id COLLATE "C"

-- name: traffic
-- Return the sums over all live workers, by model and backend. All workers report about the same few
-- backends, so an API process reads only few rows.
SELECT t.model, t.backend, sum(t.requests)::bigint AS requests, sum(t.errors)::bigint AS errors,
       sum(t.seconds) AS seconds, coalesce(sum(t.squared_seconds), 0) AS squared_seconds,
       sum(t.pending)::bigint AS pending, coalesce(sum(t.tokens_per_second), 0) AS tokens_per_second,
       coalesce(sum(t.open_circuits), 0)::bigint AS open_circuits
FROM workers, jsonb_to_recordset(workers.traffic) AS t
    (model text, backend text, requests bigint, errors bigint, seconds float8, squared_seconds float8,
     pending bigint, tokens_per_second float8, open_circuits bigint)
WHERE workers.beat_at >= now() - $1::interval
GROUP BY t.model, t.backend
ORDER BY t.model COLLATE "C", t.backend COLLATE "C"

-- name: report_interactive_load
-- Replace the load of one API process. Rows of other processes are deleted if they are older than a minute.
WITH reported AS (
    SELECT * FROM unnest($2::text[], $3::int[], $4::float8[]) AS t (backend, in_flight, mean)
), gone AS (
    DELETE FROM interactive_load WHERE (process, backend) IN (
        SELECT process, backend FROM interactive_load
        WHERE process = $1 AND backend NOT IN (SELECT backend FROM reported)
           OR process <> $1 AND reported_at < now() - interval '1 minute'
        FOR UPDATE SKIP LOCKED)
)
INSERT INTO interactive_load (process, backend, in_flight, mean, reported_at)
SELECT $1, backend, in_flight, mean, now() FROM reported
ON CONFLICT (process, backend) DO UPDATE SET
    in_flight = excluded.in_flight, mean = excluded.mean, reported_at = excluded.reported_at

-- name: interactive_load
SELECT backend, sum(in_flight)::int AS in_flight, sum(mean)::float8 AS mean
FROM interactive_load WHERE reported_at >= now() - $1::interval
GROUP BY backend ORDER BY backend COLLATE "C"

-- name: report_interactive_rates
-- Replace the rates of one API process. Rows of other processes are deleted if they are older than a minute.
WITH reported AS (
    SELECT * FROM unnest($2::bool[], $3::text[], $4::float8[], $5::float8[]) AS t (of_tenant, name, requests, tokens)
), gone AS (
    DELETE FROM interactive_rates WHERE (process, of_tenant, name) IN (
        SELECT process, of_tenant, name FROM interactive_rates
        WHERE process = $1 AND (of_tenant, name) NOT IN (SELECT of_tenant, name FROM reported)
           OR process <> $1 AND reported_at < now() - interval '1 minute'
        FOR UPDATE SKIP LOCKED)
)
INSERT INTO interactive_rates (process, of_tenant, name, requests, tokens, reported_at)
SELECT $1, of_tenant, name, requests, tokens, now() FROM reported
ON CONFLICT (process, of_tenant, name) DO UPDATE SET
    requests = excluded.requests, tokens = excluded.tokens, reported_at = excluded.reported_at

-- name: interactive_rates
SELECT of_tenant, name, sum(requests)::float8 AS requests, sum(tokens)::float8 AS tokens, count(*)::int AS processes
FROM interactive_rates WHERE reported_at >= now() - $1::interval AND process <> $2
GROUP BY of_tenant, name ORDER BY of_tenant, name COLLATE "C"
