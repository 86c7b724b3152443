"""Query plans of a real PostgreSQL, for queries on tables that may grow large."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import pytest

from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection, connect
from batchwright.database.list_positions import FIRST_POSITION, LAST_POSITION
from batchwright.database.pool import open_connection_pool
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_list import BatchListQueries, PostgresBatchList
from batchwright.database.tables.batches.custom_ids import (
    EXAMINED_AT_ONCE,
    CustomIdQueries,
    PostgresCustomIds,
)
from batchwright.database.tables.batches.waiting_reasons import WaitingQueries
from batchwright.database.tables.callbacks import CallbackQueries
from batchwright.database.tables.files import FileQueries
from batchwright.database.tables.operations.operator_batches import OperatorBatchQueries
from batchwright.database.tables.operations.retention import RetentionQueries
from batchwright.database.tables.tenants.quotas import QuotaQueries
from batchwright.database.tables.webhooks.webhook_deliveries import SHOWN_ATTEMPTS, WebhookDeliveryQueries
from batchwright.rules.batch_filters import BatchFilters, model_tags
from batchwright.rules.worker_stats import running_slice_stats

HOUR = timedelta(hours=1)
pytestmark = pytest.mark.integration

MANY = """
INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, weight, priority, policy, status,
                     created_at, in_progress_at, deadline)
SELECT 't', 'batch_' || lpad(n::text, 8, '0'), 'file-' || n, '/v1/embeddings', '24h', 1, 3, '{}',
       CASE WHEN n % 1000 = 0 THEN 'in_progress' ELSE 'completed' END, now() + n * interval '1 second', now(),
       now()
FROM generate_series(1, 100000) n
"""
# Every batch has the common tag, and each thousandth the rare one.
TAGGED = """
INSERT INTO batch_tags (tenant, batch_id, tag, created_at)
SELECT tenant, id, unnest(CASE WHEN right(id, 3) = '007' THEN ARRAY[$1::bytea, $2] ELSE ARRAY[$2::bytea] END),
       created_at
FROM batches
"""
OF_KEY = "jsonb_build_object('caller', jsonb_build_object('key_id', 'key_' || n / 1000 % 20))"
CAPPED = """
INSERT INTO tenants SELECT 't' || n, now() FROM generate_series(0, 19) n;
INSERT INTO quotas (tenant, max_in_flight, changed_at)
SELECT 't' || n, 8, now() FROM generate_series(0, 19) n;
INSERT INTO api_keys (id, tenant, prefix, salt, hash, scopes, label, created_at, max_in_flight)
SELECT 'key_' || n, 't' || n, 'p' || n, '', '', '{read}', '', now(), 8 FROM generate_series(0, 19) n
"""
# They ended 80 to 10 days ago, and each thousandth is rolling.
ENDED = """
UPDATE batches
SET status = 'completed', completed_at = now() - interval '80 days' + right(id, 8)::int * interval '1 minute',
    swept_at = now(),
    policy = CASE WHEN right(id, 3) = '007' THEN '{"rolling": {"group": "g"}}' ELSE policy END
"""
MANY_SLICES = """
INSERT INTO slice_progress
SELECT tenant, id, 'a', n, 0, 1, 1, 0, 1, 0, 1, 0
FROM batches, generate_series(1, 200) n WHERE status = 'in_progress'
"""
MANY_CUSTOM_IDS = r"""
INSERT INTO custom_ids SELECT tenant, id, 0, '', 6, '\x010203040506' FROM batches
"""
MANY_FILES = """
INSERT INTO files (tenant, id, purpose, filename, bytes, created_at, expires_at, storage_key)
SELECT 't', 'file-' || n, 'batch', 'x', 1, now() + n * interval '1 second', now() + interval '1 day', 'x'
FROM generate_series(1, 20000) n
"""
MANY_WAITING_REASONS = """
INSERT INTO waiting_reasons
SELECT 't', 'batch_' || n / 10, 'model-' || n % 10, 'worker', 'x', now(), now() + interval '1 day'
FROM generate_series(1, 50000) n
"""
MANY_DELIVERIES = """
INSERT INTO webhook_endpoints (tenant, id, batch_id, url, events, description, details, secret, created_at)
SELECT 't', 'webhook_' || n, '', 'https://a.example', '{batch.completed}', '', false, '', now()
FROM generate_series(0, 9) n;
INSERT INTO webhook_deliveries (tenant, id, endpoint_id, batch_id, event_id, type, occurred_at, created_at)
SELECT 't', 'wh_' || n, 'webhook_' || n % 10, 'batch_' || n, 'evt_' || n, 'batch.completed', now(),
       now() + n * interval '1 second'
FROM generate_series(1, 20000) n
"""
MANY_CALLBACKS = """
INSERT INTO callbacks (id, size, emptied, expires_at)
SELECT md5(n::text) || '.0', 2, true, now() + interval '1 day' FROM generate_series(1, 100000) n
"""

ALL_ROWS = "SET default_statistics_target = 1000"  # that ANALYZE reads


@pytest.fixture(scope="module")
def postgres_url(_server: str, postgres_url: str) -> str:
    """URL of a database with the batches that the statement `MANY` inserts. The tests use copies of this
    database.

    Its statistics are copied, too. A test analyzes only the tables that it changes. If it needs other
    batches, it truncates the table of batches first.
    """
    name = "batchwright_many_batches"
    url = f"{_server.rpartition('/')[0]}/{name}"

    async def create() -> None:
        await execute(_server, f"CREATE DATABASE {name} TEMPLATE {postgres_url.rpartition('/')[2]}")
        await execute(url, MANY, ALL_ROWS, "VACUUM ANALYZE batches")

    asyncio.run(create())
    return url


@pytest.fixture
async def connection(connection: DatabaseConnection) -> DatabaseConnection:
    """The connection of a test. Its ANALYZE reads all rows instead of a random sample, so that plans do not
    vary.
    """
    await connection.execute(ALL_ROWS)
    return connection


async def execute(url: str, *statements: str) -> None:
    connection = await connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


SCAN = "Seq Scan on (?!forecasts)"  # that table is empty here


async def plan(connection: DatabaseConnection, sql: str, *args: object) -> str:
    rows = await connection.fetch("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + sql, *args)
    return "\n".join(row["QUERY PLAN"] for row in rows)


async def test_a_page_out_of_a_hundred_thousand_batches_is_an_index_scan(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute(MANY_SLICES)
    await connection.execute("ANALYZE slice_progress")
    pages = queries(BatchListQueries, "batch_list")
    first = await plan(connection, pages.all, "t", *LAST_POSITION, 21, FIRST_POSITION[0])
    assert "Index Scan Backward using batches_by_creation" in first
    assert not re.search(SCAN, first)
    rows, more = await database.batch_list.page("t", limit=20, after="batch_00050001")
    ids = [row.order.batch_id for row in rows]
    assert (ids[0], ids[-1], more) == ("batch_00050000", "batch_00049981", True)
    position = await connection.fetchrow(pages.position, "t", "batch_00050001")
    assert position is not None
    deep = await plan(
        connection, pages.all, "t", position["created_at"], "batch_00050001", 21, FIRST_POSITION[0]
    )
    assert re.search(r"Index Cond: .*ROW\(created_at, id\) < ROW\(", deep)
    assert not re.search(SCAN, deep)
    assert "batches_live" in await plan(connection, pages.count_live, "t")
    assert "Seq Scan" not in await plan(connection, pages.fairness, "t", LAST_POSITION[0])


async def test_an_operator_finds_batches_of_all_tenants_by_their_id(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute("TRUNCATE batches CASCADE")
    await connection.execute(MANY.replace("'t'", "'t' || n / 1000 % 20"))
    await connection.execute("ANALYZE")
    sql = queries(OperatorBatchQueries, "operator_batches")
    since = FIRST_POSITION[0]
    filters = (None, None, None, None, since, 21)
    for query in (sql.owner, sql.position):
        assert "using batches_by_id" in await plan(connection, query, "batch_00050001")
    position = await connection.fetchrow(sql.position, "batch_00050001")
    assert position is not None
    middle = (position["created_at"], "batch_00050001")
    for seen in (
        await plan(connection, sql.page_down, *LAST_POSITION, *filters),
        await plan(connection, sql.page_down, *middle, *filters),
        await plan(connection, sql.page_up, *middle, *filters),
    ):
        assert re.search(r"Index Scan .*using batches_listed", seen)
        assert "Seq Scan on batches" not in seen
    assert "Seq Scan on batches" not in await plan(connection, sql.counts, since, LAST_POSITION[0])


async def test_an_operators_filter_by_status_reads_only_batches_of_this_status(
    connection: DatabaseConnection,
) -> None:
    sql, since = queries(OperatorBatchQueries, "operator_batches"), FIRST_POSITION[0]
    live = [status for status in BatchStatus if not status.is_terminal]
    for query in (sql.page_down, sql.page_up):
        for statuses in (live, [BatchStatus.FAILED], [BatchStatus.COMPLETED]):
            position = LAST_POSITION if query == sql.page_down else FIRST_POSITION
            seen = await plan(connection, query, *position, None, statuses, None, None, since, 21)
            assert rows_read(seen) <= 200  # a hundred are live, and none has failed


async def test_retention_does_not_read_the_batches_that_are_not_old_yet(
    connection: DatabaseConnection,
) -> None:
    await connection.execute(ENDED)
    await connection.execute("VACUUM ANALYZE batches")
    sql = queries(RetentionQueries, "retention").old_batches
    ninety_days_ago = (await connection.fetch("SELECT now() - interval '90 days' AS at"))[0]["at"]
    seen = await plan(connection, sql, ninety_days_ago, FIRST_POSITION[0], "", "", 100)
    assert rows_read(seen) <= 200  # a hundred are rolling and older than two days


async def test_a_search_for_a_line_reads_the_list_and_one_row_of_each_examined_batch(
    connection: DatabaseConnection,
) -> None:
    await connection.execute(MANY_CUSTOM_IDS)
    await connection.execute("ANALYZE custom_ids")
    since, bounds = FIRST_POSITION[0], (*LAST_POSITION, EXAMINED_AT_ONCE, FIRST_POSITION[0])
    search = queries(CustomIdQueries, "custom_ids").search
    of_operators = queries(OperatorBatchQueries, "operator_batches")
    filters = (None, None, None, None, since, EXAMINED_AT_ONCE, b"line")
    for index, seen in (
        ("batches_by_creation", await plan(connection, search, "t", *bounds, b"line", list(BatchStatus))),
        ("batches_listed", await plan(connection, of_operators.search_down, *LAST_POSITION, *filters)),
        ("batches_listed", await plan(connection, of_operators.search_up, *FIRST_POSITION, *filters)),
    ):
        assert re.search(rf"Index (Only )?Scan .*using {index}", seen)
        assert "using custom_ids_pkey" in seen
        assert not re.search(SCAN, seen)
        assert rows_read(seen) <= 3 * EXAMINED_AT_ONCE


async def test_each_filter_of_a_hundred_thousand_batches_reads_one_page(
    database: Database, connection: DatabaseConnection
) -> None:
    [rare], [common] = model_tags(["rare"]), model_tags(["common"])
    await connection.execute(TAGGED, rare, common)
    await connection.execute("VACUUM ANALYZE batch_tags")
    sql, every = queries(BatchListQueries, "batch_list"), list(BatchStatus)
    since, until = LAST_POSITION, FIRST_POSITION[0]
    middle = await connection.fetchrow(sql.position, "t", "batch_00050001")
    assert middle is not None
    seen = {
        "of a rare status": await plan(connection, sql.of_status, "t", *since, 21, until, "in_progress"),
        "of a common status": await plan(connection, sql.of_status, "t", *since, 21, until, "completed"),
        "of a time": await plan(
            connection, sql.all, "t", middle["created_at"], "", 21, middle["created_at"] - timedelta(hours=1)
        ),
        "of a rare tag": await plan(connection, sql.of_tags, "t", *since, 21, until, every, rare, []),
        "of a common tag": await plan(connection, sql.of_tags, "t", *since, 21, until, every, common, []),
        "before one, of a rare tag": await plan(connection, sql.before, "t", *FIRST_POSITION, 21, rare),
        "before one, of a common tag": await plan(connection, sql.before, "t", *FIRST_POSITION, 21, common),
        "of two tags": await plan(connection, sql.of_tags, "t", *since, 21, until, every, rare, [common]),
        "of a common tag and status": await plan(
            connection, sql.of_tags, "t", *since, 21, until, ["completed"], common, []
        ),
        "of a common tag and a rare status": await plan(
            connection, sql.of_tags, "t", *since, 21, until, ["in_progress"], common, []
        ),
    }
    for text in seen.values():
        assert "Seq Scan" not in text
    # At most the batches of the rare status or tag are read, of which there are a hundred.
    assert {name: rows_read(text) <= 200 for name, text in seen.items()} == dict.fromkeys(seen, True)


async def test_filters_by_a_tag_are_planned_for_each_tag_and_status(
    database: Database, database_url: str
) -> None:
    """If all tags had the same plan, it would read all batches with a common tag, although few have the
    status.
    """
    pool = await open_connection_pool(database_url, size=1, patience_seconds=30)
    filters = BatchFilters(model="common", status=BatchStatus.IN_PROGRESS)
    try:
        await PostgresBatchList(pool).page("t", limit=20, after=None, filters=filters)
        await PostgresCustomIds(pool).search("t", "line", limit=20, after=None, filters=filters)
        # PostgreSQL makes one plan for all values only for a statement that is executed several times.
        kept = await pool.fetch("SELECT name FROM pg_prepared_statements WHERE statement ~ 't\\.tag = \\$'")
    finally:
        await pool.close()
    assert kept == []


def rows_read(text: str) -> int:
    """Return the largest number of rows that any part of the plan read, even if it dropped them."""
    kept = [int(float(rows) * int(loops)) for rows, loops in re.findall(r"rows=([\d.]+) loops=(\d+)", text)]
    dropped = [int(rows) for rows in re.findall(r"Rows Removed by \w+(?: \w+)*: (\d+)", text)]
    return max(kept) + sum(dropped)


async def test_workers_of_capped_tenants_and_keys_are_found_with_one_pass_over_heartbeats_and_live_batches(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute("TRUNCATE batches CASCADE")
    await connection.execute(MANY.replace("'t'", "'t' || n / 1000 % 20").replace("'{}'", OF_KEY))
    await connection.execute(CAPPED)
    for number in range(50):
        slices = {(f"batch_{((2 * number + slice_) % 100 + 1) * 1000:08}", "m"): 1 for slice_ in range(8)}
        await database.workers.record_heartbeat(f"worker-{number}", running_slice_stats(slices))
    await connection.execute("ANALYZE")
    sql = queries(QuotaQueries, "quotas")
    for query in (sql.shares, sql.key_caps):
        seen = await plan(connection, query, HOUR)
        assert re.findall(r"Function Scan on jsonb_object_keys .*loops=(\d+)", seen) == ["50"]
        assert "batches_live" in seen
        assert "Seq Scan on batches" not in seen
    assert [len(row.workers) for row in await database.quotas.shares(HOUR)] == [20] * 20
    assert [len(row.workers) for row in await database.quotas.key_caps(HOUR)] == [20] * 20


async def test_a_page_of_files_and_the_lookup_of_their_readers_are_index_scans(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute(MANY_FILES)
    await connection.execute("ANALYZE files")
    sql = queries(FileQueries, "files")
    assert "files_by_creation" in await plan(connection, sql.page_down, "t", *LAST_POSITION, 21)
    assert "files_by_creation" in await plan(connection, sql.page_up, "t", *FIRST_POSITION, 21)
    for of_purpose, begin in ((sql.purpose_down, LAST_POSITION), (sql.purpose_up, FIRST_POSITION)):
        seen = await plan(connection, of_purpose, "t", *begin, 21, "batch_output")
        assert "files_of_purpose" in seen
        assert "Removed by Filter" not in seen
    reader = await plan(connection, sql.reader, "t", "file-1000")
    assert "Index Scan using batches_by_input" in reader
    assert re.search(r"Index Cond: .*tenant = .*input_file_id = ", reader)


async def test_retention_queries_of_a_tenant_read_no_rows_of_others(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute(MANY_FILES.replace("'t'", "'t' || n % 20"))
    await connection.execute("VACUUM ANALYZE files")
    of_retention = queries(RetentionQueries, "retention")
    live = await plan(connection, of_retention.live_batches, "t")
    assert "Seq Scan" not in live
    assert {"batches_live", "batches_kept"} <= set(re.findall(r"batches_\w+", live))
    tenants = await plan(connection, of_retention.tenants, "", 100)
    assert max(map(int, re.findall(r"actual rows=(\d+)", tenants))) <= 22  # as many as there are, and the end


async def test_a_deep_page_of_the_deliveries_to_an_endpoint_reads_no_newer_rows(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute(MANY_DELIVERIES)
    await connection.execute("ANALYZE webhook_endpoints, webhook_deliveries")
    rows, more = await database.webhook_deliveries.page("t", "webhook_1", limit=20, after="wh_5001")
    assert ([each.delivery.id for each in rows[::19]], more) == (["wh_4991", "wh_4801"], True)
    sql = queries(WebhookDeliveryQueries, "webhook_deliveries")
    position = await connection.fetchrow(sql.position, "t", "wh_5001")
    assert position is not None
    place = (position["created_at"], "wh_5001")
    deep = await plan(connection, sql.page, "t", *place, 21, "webhook_1", SHOWN_ATTEMPTS, None)
    assert not re.search(r"Seq Scan on webhook_deliveries", deep)
    assert sum(map(int, re.findall(r"Rows Removed by .*Filter: (\d+)", deep))) < 500


async def test_the_poll_for_a_thousand_callbacks_reads_them_by_the_primary_key(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute(MANY_CALLBACKS)
    await connection.execute("ANALYZE callbacks")
    waiting = [blake2b(b"%d" % number, digest_size=16).hexdigest() + ".0" for number in range(1000)]
    seen = await plan(connection, queries(CallbackQueries, "callbacks").get, waiting, 2**24)
    assert "callbacks_pkey" in seen
    assert "Seq Scan" not in seen


async def test_the_waiting_reasons_of_a_page_of_batches_are_read_by_the_primary_key(
    database: Database, connection: DatabaseConnection
) -> None:
    await connection.execute(MANY_WAITING_REASONS)
    await connection.execute("ANALYZE waiting_reasons")
    ids = [f"batch_{number}" for number in range(100)]
    of_batches = queries(WaitingQueries, "waiting_reasons").of_batches
    seen = await plan(connection, of_batches, ["t"] * len(ids), ids, datetime.now(UTC))
    assert "waiting_reasons_pkey" in seen
    assert "Seq Scan" not in seen
