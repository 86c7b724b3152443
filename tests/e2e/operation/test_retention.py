"""Retention on a running stack deletes expired data, keeps data in use, and survives kills."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.temporal_payloads.retention import RetentionKind, RetentionResult
from batchwright.database.driver import connect
from batchwright.rules.stored_objects import object_keys
from batchwright.temporal.namespace.maintenance_schedules import SCHEDULES
from tests.e2e.batches import chat_lines, check_conservation, ended, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LONG_AGO = datetime.now(UTC) - timedelta(days=4)
TENANT = "default"


@pytest.fixture
async def stack(stack: Stack) -> Stack:
    """The shared stack without scheduled retention, which could otherwise run during a test."""
    client = await stack.server()

    async def is_paused() -> bool:
        try:
            for planned in SCHEDULES:
                await client.get_schedule_handle(planned.id).pause()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # a worker creates the schedules when it starts
                raise
            return False
        return True

    await until(is_paused)
    return stack


async def execute(stack: Stack, sql: str, *args: object) -> None:
    connection = await connect(stack.now.postgres)
    try:
        await connection.execute(sql, *args)
    finally:
        await connection.close()


async def outlive(stack: Stack, *file_ids: str | None) -> None:
    """Make these files expire so long ago that even their grace period has passed."""
    await execute(
        stack, "UPDATE files SET expires_at = $1 WHERE id = ANY($2::text[])", LONG_AGO, list(file_ids)
    )


async def retain(stack: Stack, *options: str) -> RetentionResult:
    now = stack.now
    ran = await batchwright(
        "retention",
        "run",
        "--json",
        *options,
        temporal_address=now.temporal,
        temporal_namespace=now.namespace,
        database_url=now.postgres,
    )
    assert ran.code == 0, ran.stderr
    return RetentionResult.model_validate_json(ran.stdout[0])


def counts(result: RetentionResult) -> dict[RetentionKind, int]:
    return {deleted.kind: deleted.count for deleted in result.deleted}


def objects_of(stack: Stack, file_id: str | None) -> list[Path]:
    assert file_id is not None
    try:
        return list((stack.objects / object_keys.upload_key(TENANT, file_id, "")).iterdir())
    except FileNotFoundError:
        return []


async def is_unknown(client: AsyncOpenAI, file_id: str | None) -> bool:
    try:
        await client.files.retrieve(file_id or "")
    except openai.NotFoundError:
        return True
    return False


async def test_expired_objects_are_deleted_and_objects_in_use_stay(stack: Stack) -> None:
    async with stack.client() as client:
        done = await ended(client, (await submit(client, chat_lines(MODELS, each=2))).id)
        files = (done.input_file_id, done.output_file_id)
        await stack.faults(kind="503", rate=1.0)  # what is live then stays so until that is mended
        lines = chat_lines(MODELS[:1], each=40)
        live = await submit(client, lines)

        async def is_planned() -> bool:
            return (await client.batches.retrieve(live.id)).status == "in_progress"

        await until(is_planned)
        await outlive(stack, *files, live.input_file_id)
        earlier = LONG_AGO - timedelta(hours=1)
        await execute(stack, "UPDATE batches SET created_at = $1 WHERE id = $2", earlier, live.id)
        assert (
            counts(await retain(stack, "--dry-run"))[RetentionKind.FILES] == 1
        )  # the input was read a moment ago
        await execute(stack, "UPDATE batches SET completed_at = $1 WHERE id = $2", LONG_AGO, done.id)
        assert [await is_unknown(client, id) for id in (*files, live.input_file_id)] == [True, True, False]
        assert counts(await retain(stack, "--dry-run"))[RetentionKind.FILES] == 2
        assert all(objects_of(stack, id) for id in files)
        result = await retain(stack)
        assert [deleted.kind for deleted in result.deleted] == list(RetentionKind)
        assert counts(result)[RetentionKind.FILES] == 2
        assert [objects_of(stack, id) for id in files] == [[], []]
        assert objects_of(stack, live.input_file_id)
        await stack.heal()
        await check_conservation(client, await ended(client, live.id), lines)


async def test_old_objects_without_rows_and_rows_without_objects_are_deleted(stack: Stack) -> None:
    async with stack.client() as client:
        batches = [
            await client.files.create(file=(name, b'{"a": 1}\n'), purpose="batch")
            for name in ("orphan", "lost", "young")
        ]
        orphan, lost, young = (file.id for file in batches)
        [left], [gone], [young_objects] = (objects_of(stack, id) for id in (orphan, lost, young))
        gone.unlink()
        os.utime(left, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
        await execute(stack, "DELETE FROM files WHERE id = ANY($1::text[])", [orphan, young])
        await execute(stack, "UPDATE files SET created_at = $1 WHERE id = $2", LONG_AGO, lost)
        result = counts(await retain(stack))
        assert (result[RetentionKind.ORPHANS], result[RetentionKind.LOST]) == (1, 1)
        assert (left.exists(), young_objects.exists()) == (False, True)
        assert await is_unknown(client, lost)


async def test_a_worker_killed_during_a_deletion_leaves_nothing_behind() -> None:
    """The worker is killed at some point while hundreds of files are deleted. In the end, no file has an
    object or a row.
    """
    with dev("--workers", "1") as stack:
        async with stack.client() as client:
            for first in range(0, 600, 50):
                await asyncio.gather(
                    *(
                        client.files.create(file=(f"{n}.jsonl", b'{"a": 1}\n'), purpose="batch")
                        for n in range(first, first + 50)
                    )
                )
            folder = stack.objects / object_keys.upload_key(TENANT, "", "").split("//")[0]
            before = _files_in(folder)
            assert before >= 600
            await execute(stack, "UPDATE files SET expires_at = $1", LONG_AGO)
            async with _a_file_in_the_middle_locked(stack):
                running = asyncio.create_task(retain(stack))
                await until(lambda: _fewer(folder, before))
                stack.kill("worker")
                left = _files_in(folder)
            result = await running
            assert 0 < left < before
            assert not folder.exists()
            assert await _rows(stack) == 0
            assert [deleted.failures for deleted in result.deleted] == [0] * len(result.deleted)


@asynccontextmanager
async def _a_file_in_the_middle_locked(stack: Stack) -> AsyncGenerator[None]:
    """Context manager that locks the row of a file.

    Retention deletes one file after the other, so it reaches this file and goes no further.
    """
    connection = await connect(stack.now.postgres)
    try:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT FROM files ORDER BY expires_at, tenant, id OFFSET 300 LIMIT 1 FOR UPDATE"
        )
        yield
    finally:
        await connection.close()


async def _fewer(folder: Path, than: int) -> bool:
    return _files_in(folder) < than


def _files_in(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.exists() else 0


async def _rows(stack: Stack) -> int:
    connection = await connect(stack.now.postgres)
    try:
        row = await connection.fetchrow("SELECT count(*) FROM files")
    finally:
        await connection.close()
    assert row is not None
    return row["count"]


async def test_the_schedules_of_a_stack_delete_by_themselves(stack: Stack) -> None:
    client = await stack.server()
    async with stack.client() as http:
        file = await http.files.create(file=("a.jsonl", b'{"a": 1}\n'), purpose="batch")
        assert objects_of(stack, file.id)
        await outlive(stack, file.id)

        async def is_gone() -> bool:
            return not objects_of(stack, file.id)

        await client.get_schedule_handle("batchwright-retention").trigger()
        await until(is_gone)
