"""Statements that lock several rows: they cannot deadlock with other statements that lock the same rows."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest

from batchwright.database.driver import DatabaseConnection, connect
from batchwright.database.sql import queries

pytestmark = pytest.mark.integration

LIVE = (
    "INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, weight, priority, policy, "
    "status, created_at, deadline) "
    "SELECT 't', id, 'file-1', '/v1/embeddings', '24h', 1, 3, '{}', 'in_progress', now(), now() "
    "FROM unnest(ARRAY['a', 'b']) AS id; "
)
PROGRESS = (
    LIVE + "INSERT INTO slice_progress SELECT 't', 'a', 'm', number, 0, 1, 0, 0, 0, 0, 0, 0 "
    "FROM unnest(ARRAY[2, 1]) AS number"
)
OLD_CALLS = (  # of which only 'b' has ended
    "INSERT INTO calls "
    "(tenant, id, batch_id, endpoint, model, request, echoed, notifies, created_at, ended_at) "
    "SELECT 't', id, '', '', 'm', '', '', false, '2020-01-01', ended_at "
    "FROM (VALUES ('a', NULL), ('b', '2020-01-01'::timestamptz)) AS call (id, ended_at); "
)
ENDPOINTS = (
    "INSERT INTO webhook_endpoints "
    "(tenant, id, batch_id, url, events, description, details, secret, created_at) "
    "SELECT 't', id, id, '', ARRAY['*'], '', false, '', '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id; "
)


@dataclass(frozen=True)
class Case:
    """A statement with its arguments, and rows for it.

    `first` and `last` are SQL conditions. Each selects one row of `table`.
    """

    statement: str
    arguments: str
    rows: str
    table: str
    first: str
    last: str = ""


IN_ORDER = [
    Case(
        "api_keys.record_uses",
        "ARRAY['b', 'a'], ARRAY[now(), now()]",
        "INSERT INTO tenants (name, created_at) VALUES ('t', now()); "
        "INSERT INTO api_keys (id, tenant, prefix, salt, hash, scopes, label, created_at) "
        "SELECT id, 't', id, '', '', ARRAY['read'], '', now() FROM unnest(ARRAY['b', 'a']) AS id",
        "api_keys",
        "id = 'a'",
        "id = 'b'",
    ),
    Case(
        "callbacks.clear_bodies",
        "ARRAY['b', 'a']",
        "INSERT INTO callbacks SELECT id, 1, '', false, now() FROM unnest(ARRAY['b', 'a']) AS id",
        "callbacks",
        "id = 'a'",
        "id = 'b'",
    ),
    Case(
        "calls.collect",
        "'t', 'a'",
        "INSERT INTO calls (tenant, id, batch_id, endpoint, model, request, echoed, notifies) "
        "SELECT 't', id, 'a', '', 'm', '', '', false FROM unnest(ARRAY['b', 'a']) AS id",
        "calls",
        "id = 'a'",
        "id = 'b'",
    ),
    Case("batch_ends.clear_progress", "'t', 'a'", PROGRESS, "slice_progress", "number = 1", "number = 2"),
    Case("retention.clear_progress", "'t', 'a'", PROGRESS, "slice_progress", "number = 1", "number = 2"),
]
WITHOUT_WAIT = [
    Case(
        "callbacks.delete_expired",
        "now()",
        "INSERT INTO callbacks SELECT id, 1, '', false, '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id",
        "callbacks",
        "id = 'a'",
    ),
    Case("calls.remove_old", "now(), 10", OLD_CALLS, "calls", "id IN ('a', 'b')"),
    Case(
        "calls.remove_old",
        "now(), 10",
        OLD_CALLS + ENDPOINTS,
        "webhook_endpoints",
        "id = 'a'",
    ),
    Case(
        "calls.remove_old",
        "now(), 10",
        "INSERT INTO rolling_batches (tenant, group_id, batch_id, made, opened_at) "
        "SELECT 't', id, id, '{}', '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id",
        "rolling_batches",
        "group_id = 'a'",
    ),
    Case(
        "webhook_deliveries.remove_old",
        "now(), 10",
        ENDPOINTS + "INSERT INTO webhook_deliveries "
        "(tenant, id, endpoint_id, batch_id, event_id, type, occurred_at, created_at) "
        "SELECT 't', id, id, id, id, '', '2020-01-01', '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id",
        "webhook_deliveries",
        "id = 'a'",
    ),
    Case("webhook_deliveries.remove_endpoints", "now(), 10", ENDPOINTS, "webhook_endpoints", "id = 'a'"),
    Case(
        "waiting_reasons.delete_expired",
        "now()",
        "INSERT INTO waiting_reasons SELECT 't', id, '', 'user', '', '2020-01-01', '2020-01-01' "
        "FROM unnest(ARRAY['a', 'b']) AS id",
        "waiting_reasons",
        "batch_id = 'a'",
    ),
    Case(
        "forecasts.publish_speeds",
        "ARRAY['new'], now(), ARRAY['{}'::jsonb], interval '1 minute'",
        "INSERT INTO model_speeds SELECT id, '2020-01-01', '{}' FROM unnest(ARRAY['a', 'b']) AS id",
        "model_speeds",
        "model = 'a'",
    ),
    Case(
        "workers.record_heartbeat",
        "'new', '{}', '', '[]', now()",
        "INSERT INTO workers (id, stats, beat_at) "
        "SELECT id, '{}', '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id",
        "workers",
        "id = 'a'",
    ),
    Case(
        "workers.report_interactive_load",
        "'new', ARRAY['x'], ARRAY[1], ARRAY[1.0]",
        "INSERT INTO interactive_load SELECT id, 'x', 1, 1, '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id",
        "interactive_load",
        "process = 'a'",
    ),
    Case(
        "workers.report_interactive_rates",
        "'new', ARRAY[true], ARRAY['x'], ARRAY[1.0], ARRAY[1.0]",
        "INSERT INTO interactive_rates "
        "SELECT id, true, 'x', 1, 1, '2020-01-01' FROM unnest(ARRAY['a', 'b']) AS id",
        "interactive_rates",
        "process = 'a'",
    ),
    Case(
        "progress.sample",
        "now()",
        LIVE + "INSERT INTO throughput SELECT 't', id, ARRAY['2020-01-01'::timestamptz], ARRAY[0] "
        "FROM unnest(ARRAY['a', 'b']) AS id",
        "throughput",
        "batch_id = 'a'",
    ),
]


def statement_of(case: Case) -> str:
    """Return SQL that executes the statement with its arguments."""
    table, name = case.statement.split(".")
    prepared = queries(dict[str, str], table)[name]
    return f"PREPARE one AS {prepared}; EXECUTE one ({case.arguments})"


@pytest.fixture
async def other(database_url: str) -> AsyncGenerator[DatabaseConnection]:
    other = await connect(database_url)
    yield other
    await other.close()


async def wait_until_blocked(connection: DatabaseConnection) -> None:
    """Wait until a statement in this database waits for a lock."""
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not await connection.fetch(waiting):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("case", IN_ORDER, ids=lambda case: f"{case.statement}-{case.table}")
async def test_a_statement_that_waits_for_its_first_row_has_not_locked_the_last_one(
    case: Case, connection: DatabaseConnection, other: DatabaseConnection
) -> None:
    await connection.execute(case.rows)
    await other.execute("SET enable_indexscan = off")  # so that no index gives the rows their order
    lock = f"SELECT FROM {case.table} WHERE {{}} FOR UPDATE NOWAIT"
    async with connection.transaction():
        await connection.execute(lock.format(case.first))
        statement = asyncio.create_task(other.execute(statement_of(case)))
        await wait_until_blocked(connection)
        assert await connection.fetch(lock.format(case.last))
    assert (await statement).endswith("2")


@pytest.mark.parametrize("case", WITHOUT_WAIT, ids=lambda case: f"{case.statement}-{case.table}")
async def test_a_statement_leaves_out_rows_that_others_are_changing(
    case: Case, connection: DatabaseConnection, other: DatabaseConnection
) -> None:
    await connection.execute(case.rows)
    await other.execute("SET lock_timeout = '100ms'")
    async with connection.transaction():
        await connection.execute(f"SELECT FROM {case.table} WHERE {case.first} FOR UPDATE")
        await other.execute(statement_of(case))  # raises LockNotAvailable if it waits
