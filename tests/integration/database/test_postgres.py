"""Behaviour that only a real PostgreSQL has: connections that are lost, and statements that wait."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import RerunKind, SourceBatch
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection, Session, connect, create_driver_pool
from batchwright.database.errors import (
    DatabaseUnavailable,
    FileInUse,
    OutcomeUnknown,
    ResultsGone,
    ResultsInUse,
)
from batchwright.database.migrate import migrate, missing_names
from batchwright.database.pool import open_connection_pool
from batchwright.database.postgres import open_database
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_deletions import BatchDeletionQueries
from batchwright.database.tables.batches.batches import BatchQueries
from batchwright.database.tables.batches.reruns import RerunQueries
from batchwright.database.tables.tenants.admissions import AdmissionQueries
from batchwright.rules.batch_filters import BatchFilters
from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from tests.integration.database.admission_rows import admit_batch
from tests.integration.database.rows import (
    a_file,
    a_running_batch,
    after,
    an_order,
    an_outcome,
    slice_progress,
)

pytestmark = pytest.mark.integration

COPY = """
INSERT INTO batches (tenant, id, input_file_id, endpoint, completion_window, weight, priority, policy, status,
                     created_at, deadline)
VALUES ('t', '{}', 'file-1', '/v1/embeddings', '24h', 1, 3, '{{}}', '{}', now(), now())
"""
# Startup parameters that PgBouncer accepts by default.
POOLED = {"user", "database", "client_encoding", "datestyle", "timezone", "application_name"}


@pytest.fixture
async def lost(database_url: str) -> AsyncGenerator[Database, None]:
    """A database whose connections have ended and that accepts no new connections."""
    database = await open_database(load(database_url=database_url))
    name = database_url.rpartition("/")[2]
    server = await connect(database_url.rpartition("/")[0] + "/postgres")
    await server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    ended = f"SELECT pg_terminate_backend(pid, 240000) FROM pg_stat_activity WHERE datname = '{name}'"
    await server.execute(ended)  # waits until they have
    yield database
    await database.close()
    await server.close()


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    url = f"postgresql://user:secret-one@127.0.0.1:{free_port()}/x"
    with pytest.raises(DatabaseUnavailable, match=r"does not answer at 127\.0\.0\.1:\d+/x") as caught:
        await open_database(load(database_url=url), patience_seconds=0)
    assert "secret-one" not in str(caught.value)
    with pytest.raises(DatabaseUnavailable, match="BATCHWRIGHT_DATABASE_URL"):
        await migrate(url)


async def test_a_server_that_stops_just_after_the_first_connection_is_waited_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    async def missing_at_last(session: Session) -> list[str]:
        nonlocal checks
        checks += 1
        if checks == 1:
            await session.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return await missing_names(session)

    monkeypatch.setattr("batchwright.database.postgres.missing_names", missing_at_last)
    with pytest.raises(DatabaseUnavailable):
        await open_database(load(database_url=database_url), patience_seconds=0)
    checks = 0
    opened = await open_database(load(database_url=database_url))
    await opened.check()
    await opened.close()


async def test_returning_a_connection_to_the_pool_costs_no_statement(database_url: str) -> None:
    pool, witness = await create_driver_pool(database_url, 1), await connect(database_url)
    async with pool.acquire(timeout=120) as session:
        ours = await session.fetchrow("SELECT pg_backend_pid() AS pid")
    assert ours is not None
    seen = await witness.fetchrow("SELECT query FROM pg_stat_activity WHERE pid = $1", ours["pid"])
    assert seen is not None
    assert seen["query"] == "SELECT pg_backend_pid() AS pid"
    await pool.close()
    await witness.close()


async def test_a_lost_server_is_unavailable_to_every_table(lost: Database) -> None:
    calls = [
        lost.check(),
        lost.files.get("t", "file-1"),
        lost.files.delete("t", "file-1"),
        lost.batches.upsert(an_order()),
        lost.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1)),
        lost.progress.record([slice_progress()]),
        lost.models.replace_models("http://one", ["a"], after(1)),
        lost.workers.count_alive(timedelta(seconds=1)),
    ]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, DatabaseUnavailable) for error in errors)


async def test_a_connection_uses_only_startup_parameters_known_to_poolers_and_leaves_no_transaction_open(
    database_url: str,
) -> None:
    parameters = list[str]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Act as a server without TLS: record the client's start parameters, then close the connection."""
        await reader.readexactly(8)
        writer.write(b"N")
        size = int.from_bytes(await reader.readexactly(4))
        words = (await reader.readexactly(size - 4))[4:].decode().split("\0")
        parameters.extend(words[:-2:2])
        writer.close()

    pooler = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = pooler.sockets[0].getsockname()[1]
    with pytest.raises(DatabaseUnavailable):
        await open_connection_pool(f"postgresql://u@127.0.0.1:{port}/x", size=1, patience_seconds=0)
    pooler.close()
    assert {name.lower() for name in parameters} <= POOLED
    assert "application_name" in parameters
    pool = await open_connection_pool(database_url, size=1, patience_seconds=0)
    shown = [await pool.fetch(f"SHOW {name}") for name in ("jit", "idle_in_transaction_session_timeout")]
    assert [row[0] for [row] in shown] == ["off", "1min"]
    await pool.close()


async def test_a_connection_lost_in_a_transaction_raises_outcome_unknown(
    database_url: str,
) -> None:
    pool = await open_connection_pool(database_url, size=1, patience_seconds=0)
    with pytest.raises(OutcomeUnknown):
        async with pool.transaction() as session:
            await session.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(OutcomeUnknown):
        await pool.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    await pool.close()


async def test_an_error_with_which_postgresql_rolls_back_has_a_known_outcome(database_url: str) -> None:
    pool = await open_connection_pool(database_url, size=1, patience_seconds=0)
    await pool.execute("CREATE TABLE sums (sum int)")

    async def insert_and_fail(code: str) -> None:
        async with pool.transaction() as session:
            await session.execute("INSERT INTO sums VALUES (1)")
            await session.execute(f"DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '{code}'; END $$")

    for code in ("40P01", "40001", "53100", "57014", "25006", "55P03", "58030", "42501"):
        with pytest.raises(DatabaseUnavailable) as caught:
            await insert_and_fail(code)
        assert not isinstance(caught.value, OutcomeUnknown)
    assert await pool.fetch("SELECT FROM sums") == []
    await pool.close()


async def test_a_statement_that_never_had_a_connection_was_not_executed(lost: Database) -> None:
    with suppress(DatabaseUnavailable):
        await lost.check()  # over the connection there was
    with pytest.raises(DatabaseUnavailable) as caught:
        await lost.files.insert(a_file())
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_a_pool_recovers_when_its_connections_were_ended(
    database: Database, database_url: str, connection: DatabaseConnection
) -> None:
    before = await database.batches.upsert(an_order())
    name = database_url.rpartition("/")[2]
    await connection.execute(
        "SELECT pg_terminate_backend(pid, 240000) FROM pg_stat_activity "
        f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    )
    tries = [await get_or_unavailable(database) for _ in range(6)]  # each connection may fail once
    assert tries[-1] == before


async def get_or_unavailable(database: Database) -> BatchRow | None:
    try:
        return await database.batches.get("t", "batch_1")
    except DatabaseUnavailable:
        return None


async def test_a_concurrent_file_deletion_and_batch_creation_has_one_winner(
    database: Database,
) -> None:
    """If the batch is first, it keeps its input. If the deletion is first, the batch has no input."""
    for number in range(20):
        file = a_file(f"file-{number}")
        await database.files.insert(file)
        order = an_order(f"batch_{number}", input_file_id=file.id)
        deleted, row = await asyncio.gather(
            database.files.delete("t", file.id), database.batches.upsert(order), return_exceptions=True
        )
        assert isinstance(row, BatchRow)
        left = await database.files.get("t", file.id)
        assert (left is None) == (deleted == file)
        assert (left == file) == isinstance(deleted, FileInUse)


async def test_a_deletion_waits_for_the_batch_that_is_being_created_with_the_file(
    database: Database, connection: DatabaseConnection
) -> None:
    await database.files.insert(a_file())
    sql = queries(BatchQueries, "batches")
    async with connection.transaction():
        await connection.fetchrow(sql.pin_input, "t", "file-1")
        deleting = asyncio.create_task(database.files.delete("t", "file-1"))
        while not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not deleting.done()
        await connection.execute(COPY.format("batch_1", "validating"))
    with pytest.raises(FileInUse):
        await deleting


async def test_the_order_of_a_batch_that_has_a_row_is_upserted_without_a_lock(
    database: Database, connection: DatabaseConnection
) -> None:
    await database.files.insert(a_file())
    running = await a_running_batch(database)
    async with connection.transaction():
        await connection.execute("SELECT FROM files WHERE tenant = 't' AND id = 'file-1' FOR UPDATE")
        upserting = asyncio.create_task(database.batches.upsert(an_order()))
        while not upserting.done():
            assert not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted")
    assert await upserting == running


async def test_a_resumption_that_waited_for_a_deletion_to_begin_claims_nothing(
    database: Database, connection: DatabaseConnection
) -> None:
    await a_running_batch(database)
    later = datetime.now(UTC) + timedelta(days=1)
    await database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1), later)
    sql = queries(BatchDeletionQueries, "batch_deletions")
    async with connection.transaction():
        await connection.fetchrow(sql.lock, "t", "batch_1")
        origin = SourceBatch(batch_id="batch_1", kind=RerunKind.RESUME)
        claiming = asyncio.create_task(database.reruns.claim(an_order("batch_2"), origin))
        while not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not claiming.done()
        await connection.execute(sql.release_results, "t", "batch_1")
    with pytest.raises(ResultsGone):
        await claiming


async def test_a_deletion_waits_for_the_resumption_that_is_being_claimed(
    database: Database, connection: DatabaseConnection
) -> None:
    await a_running_batch(database)
    await database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1))
    claim, order = queries(RerunQueries, "reruns").claim, an_order("batch_2")
    async with connection.transaction():
        await connection.fetchrow(claim, "t", "batch_1", "resume", "batch_2", order.model_dump_json())
        deleting = asyncio.create_task(database.batch_deletions.begin("t", "batch_1", keep_files=False))
        while not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not deleting.done()
        await connection.execute(COPY.format("batch_2", "validating"))
    with pytest.raises(ResultsInUse):
        await deleting


async def test_requests_that_wait_for_the_quotas_of_a_tenant_leave_pool_connections_to_others(
    database_url: str, connection: DatabaseConnection
) -> None:
    database = await open_database(load(database_url=database_url, database_pool_size=2))
    await database.files.insert(a_file(tenant="other"))
    async with connection.transaction():
        await connection.execute(queries(AdmissionQueries, "admissions").lock_tenant, "t")
        waiting = [asyncio.create_task(admit_batch(database, f"batch_{n}", 3)) for n in range(5)]
        while not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not any(task.done() for task in waiting)
        assert await database.files.get("other", "file-1") == a_file(tenant="other")
        waiting.pop().cancel()  # one that leaves is in nobody's way
    assert sorted(await asyncio.gather(*waiting)) == [False, True, True, True]
    await database.close()


async def test_many_requests_at_once_share_the_connections_of_the_pool(
    database_url: str, connection: DatabaseConnection
) -> None:
    database = await open_database(load(database_url=database_url, database_pool_size=3))
    await database.files.insert(a_file(tenant="t"))
    async with connection.transaction():
        await connection.execute("LOCK TABLE files")
        waiting = [asyncio.create_task(database.files.get("t", "file-1")) for _ in range(30)]
        while len(await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted")) < 3:
            assert not any(task.done() for task in waiting)
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        assert len(await connection.fetch(f"SELECT 1 FROM pg_stat_activity WHERE {others}")) == 3
    assert await asyncio.gather(*waiting) == [a_file(tenant="t")] * 30
    await database.close()


async def test_a_concurrent_second_end_waits_and_then_changes_nothing(
    database: Database, connection: DatabaseConnection
) -> None:
    await a_running_batch(database)
    async with connection.transaction():
        await connection.execute("UPDATE batches SET status = 'expired', expired_at = created_at")
        finishing = asyncio.create_task(database.batch_ends.finish("t", "batch_1", an_outcome(), after(30)))
        while not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not finishing.done()
    assert (await finishing).row.status is BatchStatus.EXPIRED
    assert await database.files.get("t", "file-out") is None


async def test_progress_reported_beside_an_end_is_never_read(
    database: Database, connection: DatabaseConnection
) -> None:
    await a_running_batch(database)
    ended, _ = await database.batch_ends.end_without_files("t", "batch_1", BatchStatus.EXPIRED, [], after(30))
    await connection.execute(
        "INSERT INTO slice_progress VALUES ('t', 'batch_1', 'a', 0, 0, 1, 99, 99, 99, 99, 99, 99)"
    )
    assert await database.batches.get("t", "batch_1") == ended
    assert await database.batch_list.page("t", limit=1, after=None) == ([ended], False)


async def test_progress_that_is_written_while_its_batch_ends_hides_no_lines_of_other_batches(
    database: Database, connection: DatabaseConnection
) -> None:
    await a_running_batch(database)
    await a_running_batch(database, "batch_2")
    await database.progress.record([slice_progress(0, completed=1)])
    async with connection.transaction():
        await connection.execute("DELETE FROM slice_progress")
        recording = asyncio.create_task(database.progress.record([slice_progress(0, completed=3)]))
        while not await connection.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not recording.done()
        await connection.execute("UPDATE batches SET status = 'expired' WHERE id = 'batch_1'")
    await recording
    assert len(await connection.fetch("SELECT 1 FROM slice_progress")) == 1
    assert await database.fleet.lines_left() == {"a": 3, "b": 6}


async def test_closing_ends_every_connection(database_url: str, connection: DatabaseConnection) -> None:
    database = await open_database(load(database_url=database_url))
    await asyncio.gather(*(database.check() for _ in range(10)))
    await database.close()
    with pytest.raises(DatabaseUnavailable):
        await database.check()


async def test_a_list_of_batches_with_a_tag_is_read_after_its_table_has_got_a_column(
    database_url: str,
) -> None:
    """PostgreSQL refuses a statement that was prepared before its table changed."""
    database, owner = await open_database(load(database_url=database_url)), await connect(database_url)
    await database.batches.upsert(an_order(metadata={"team": "search"}))
    filters = BatchFilters(metadata=(("team", "search"),))
    for column in ("one", "two"):
        rows, _ = await database.batch_list.page("t", limit=10, after=None, filters=filters)
        assert [row.order.batch_id for row in rows] == ["batch_1"]
        await owner.execute(f"ALTER TABLE batches ADD COLUMN {column} text")
    await database.close()
    await owner.close()
