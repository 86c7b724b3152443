"""What is left to do is found in indexes that hold nothing else, however much there is beside it."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.database.dead_letters import DeadLetterQueries
from batchwright.database.driver import Connection, connect
from batchwright.database.pool import Database
from batchwright.database.retention import RetentionQueries
from batchwright.database.sql import queries
from tests.integration.rows import an_order

pytestmark = pytest.mark.integration

# 1,000 batches that add up, each with 3 letters that one retry has; of ten nobody has retried anything.
_MANY = """
INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, weight, priority, policy,
                     created_at, expires_at, status, total, completed, failed, output_file_id, completed_at)
SELECT 't' || n % 7, 'batch_' || 10000 + n, 'file-1', '/v1/embeddings', '24h', 1, 3, '{}', now(), now(),
       'completed', 3, 0, 3, 'file-2', now()
FROM generate_series(1, 1000) n;
INSERT INTO dead_letter_retries (tenant, batch_id, origin_id, made, begun)
SELECT tenant, 'retry_' || id, id, '{}', true FROM batches WHERE right(id, 2) <> '00';
INSERT INTO dead_letters (tenant, id, batch_id, line_offset, custom_id, model, attempts, failed_at,
                          message, retry_id)
SELECT b.tenant, 'batch_req_' || l || b.id, b.id, l, 'c', 'm', 5, now(), 'no', r.batch_id
FROM batches b LEFT JOIN dead_letter_retries r ON r.origin_id = b.id CROSS JOIN generate_series(1, 3) l;
ANALYZE;
"""


@pytest.fixture
async def full(database_url: str) -> AsyncGenerator[Connection]:
    connection = await connect(database_url)
    await connection.execute(_MANY)
    yield connection
    await connection.close()


async def plan(connection: Connection, sql: str, *arguments: object) -> str:
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {sql}", *arguments))


async def test_what_is_to_be_retried_is_looked_for_among_free_letters_only(full: Connection) -> None:
    sql = queries(DeadLetterQueries, "dead_letters")
    for found, index in [
        (await plan(full, sql.origins, "", 21), "dead_letters_free"),
        (await plan(full, sql.origins_of_tenant, "t1", "", 21), "dead_letters_free_of_tenant"),
        (await plan(full, sql.origin, "batch_10100", None), "dead_letters_free"),
    ]:
        assert f"using {index} on dead_letters" in found
        assert "Seq Scan on dead_letters" not in found
    rows = await full.fetch(sql.origins, "batch_10200", 21)
    assert [row["batch_id"] for row in rows] == [f"batch_{10_000 + 100 * n}" for n in range(3, 11)]


async def test_what_does_not_add_up_is_in_an_index_of_its_own(full: Connection) -> None:
    sql = queries(RetentionQueries, "retention")
    await full.execute("SET enable_seqscan = off")  # of so few rows it would be the cheapest
    assert "batches_miscounted" in await plan(full, sql.miscounted)
    assert await full.fetch(sql.miscounted) == []
    await full.execute("UPDATE batches SET completed = 1 WHERE id IN ('batch_10007', 'batch_10008')")
    assert [row["id"] for row in await full.fetch(sql.miscounted)] == ["batch_10007", "batch_10008"]


async def test_a_retry_is_begun_with_the_row_of_its_batch(full: Connection, database: Database) -> None:
    await full.execute("INSERT INTO dead_letter_retries VALUES ('t1', 'batch_9', 'batch_10001', '{}', false)")
    await database.batches.upsert(an_order("batch_9", "t1"))
    rows = await full.fetch("SELECT begun FROM dead_letter_retries WHERE batch_id = 'batch_9'")
    assert [row["begun"] for row in rows] == [True]
