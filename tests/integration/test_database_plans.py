"""What a real PostgreSQL reads for the queries that tables of any size are asked."""

import re

import pytest

from batchwright.database.batches import BatchQueries
from batchwright.database.driver import Connection
from batchwright.database.files import FIRST, LAST, FileQueries
from batchwright.database.pool import Database
from batchwright.database.retention import RetentionQueries
from batchwright.database.sql import queries

pytestmark = pytest.mark.integration

MANY = """
INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, weight, priority, policy, status,
                     created_at, expires_at)
SELECT 't', 'batch_' || lpad(n::text, 8, '0'), 'file-' || n, '/v1/embeddings', '24h', 1, 3, '{}',
       CASE WHEN n % 1000 = 0 THEN 'in_progress' ELSE 'completed' END, now() + n * interval '1 second', now()
FROM generate_series(1, 100000) n
"""
MANY_SLICES = """
INSERT INTO slice_progress
SELECT tenant, id, 'a', n, 0, 1, 1, 0, 1, 0, 1, 0
FROM batches, generate_series(1, 200) n WHERE status = 'in_progress'
"""
MANY_FILES = """
INSERT INTO files (tenant, id, purpose, filename, bytes, created_at, expires_at, storage_key)
SELECT 't', 'file-' || n, 'batch', 'x', 1, now() + n * interval '1 second', now() + interval '1 day', 'x'
FROM generate_series(1, 20000) n
"""


async def plan(connection: Connection, sql: str, *args: object) -> str:
    rows = await connection.fetch("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + sql, *args)
    return "\n".join(row["QUERY PLAN"] for row in rows)


async def test_a_page_out_of_a_hundred_thousand_batches_is_an_index_scan(
    database: Database, connection: Connection
) -> None:
    await connection.execute(MANY)
    await connection.execute(MANY_SLICES)
    await connection.execute("ANALYZE")
    sql = queries(BatchQueries, "batches")
    first = await plan(connection, sql.page, "t", *LAST, 21)
    assert "Index Scan Backward using batches_by_creation" in first
    assert "Seq Scan" not in first
    rows, more = await database.batches.page("t", limit=20, after="batch_00050001")
    ids = [row.order.batch_id for row in rows]
    assert (ids[0], ids[-1], more) == ("batch_00050000", "batch_00049981", True)
    position = await connection.fetchrow(sql.position, "t", "batch_00050001")
    assert position is not None
    deep = await plan(connection, sql.page, "t", position["created_at"], "batch_00050001", 21)
    assert re.search(r"Index Cond: .*ROW\(created_at, id\) < ROW\(", deep)
    assert "Seq Scan" not in deep
    assert "batches_live" in await plan(connection, sql.count_live, "t")


async def test_a_page_of_files_and_the_question_who_reads_one_are_index_scans(
    database: Database, connection: Connection
) -> None:
    await connection.execute(MANY)
    await connection.execute(MANY_FILES)
    await connection.execute("ANALYZE")
    sql = queries(FileQueries, "files")
    assert "files_by_creation" in await plan(connection, sql.page_down, "t", *LAST, 21)
    assert "files_by_creation" in await plan(connection, sql.page_up, "t", *FIRST, 21)
    for of_purpose, begin in ((sql.purpose_down, LAST), (sql.purpose_up, FIRST)):
        seen = await plan(connection, of_purpose, "t", *begin, 21, "batch_output")
        assert "files_of_purpose" in seen
        assert "Removed by Filter" not in seen
    assert "batches_live" in await plan(connection, sql.reader, "t", "file-1000")


async def test_what_retention_asks_of_a_tenant_reads_no_others_rows(
    database: Database, connection: Connection
) -> None:
    await connection.execute(MANY)
    await connection.execute(MANY_FILES.replace("'t'", "'t' || n % 20"))
    await connection.execute("VACUUM ANALYZE")
    of_retention = queries(RetentionQueries, "retention")
    live = await plan(connection, of_retention.live_batches, "t")
    assert "Seq Scan" not in live
    assert {"batches_live", "batches_kept"} <= set(re.findall(r"batches_\w+", live))
    tenants = await plan(connection, of_retention.tenants, "", 100)
    assert max(map(int, re.findall(r"actual rows=(\d+)", tenants))) <= 22  # as many as there are, and the end
