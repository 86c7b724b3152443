"""Retention on a running stack: what is past its life goes, what is in use stays, kills harm nothing."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from temporalio.client import Client

from batchwright.contracts.retention import Kind, RetentionResult
from batchwright.database.driver import connect
from batchwright.rules import keys
from tests.e2e.batches import chat_lines, check_conservation, ended, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LONG_AGO = datetime.now(UTC) - timedelta(days=4)
TENANT = "default"


async def execute(stack: Stack, sql: str, *args: object) -> None:
    connection = await connect(stack.now.postgres)
    try:
        await connection.execute(sql, *args)
    finally:
        await connection.close()


async def outlive(stack: Stack, *file_ids: str | None) -> None:
    """Their life is over, and the grace too."""
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
    assert ran.code == 0, ran.complained
    return RetentionResult.model_validate_json(ran.said[0])


def counts(result: RetentionResult) -> dict[Kind, int]:
    return {gone.kind: gone.count for gone in result.gone}


def objects_of(stack: Stack, file_id: str | None) -> list[Path]:
    assert file_id is not None
    return list((stack.objects / keys.upload_key(TENANT, file_id, "")).glob("*"))


async def is_unknown(client: AsyncOpenAI, file_id: str | None) -> bool:
    try:
        await client.files.retrieve(file_id or "")
    except openai.NotFoundError:
        return True
    return False


async def test_what_is_past_its_life_goes_and_what_is_in_use_stays(stack: Stack) -> None:
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
        assert counts(await retain(stack, "--dry-run"))[Kind.FILES] == 1  # the input was read a moment ago
        await execute(stack, "UPDATE batches SET completed_at = $1 WHERE id = $2", LONG_AGO, done.id)
        assert [await is_unknown(client, id) for id in (*files, live.input_file_id)] == [True, True, False]
        assert counts(await retain(stack, "--dry-run"))[Kind.FILES] == 2
        assert all(objects_of(stack, id) for id in files)
        result = await retain(stack)
        assert [gone.kind for gone in result.gone] == list(Kind)
        assert counts(result)[Kind.FILES] == 2
        assert [objects_of(stack, id) for id in files] == [[], []]
        assert objects_of(stack, live.input_file_id)
        await stack.heal()
        await check_conservation(client, await ended(client, live.id), lines)


async def test_objects_without_rows_and_rows_without_objects_go_once_they_are_old(stack: Stack) -> None:
    async with stack.client() as client:
        made = [
            await client.files.create(file=(name, b'{"a": 1}\n'), purpose="batch")
            for name in ("orphan", "lost", "young")
        ]
        orphan, lost, young = (file.id for file in made)
        [left], [gone], [kept] = (objects_of(stack, id) for id in (orphan, lost, young))
        gone.unlink()
        os.utime(left, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
        await execute(stack, "DELETE FROM files WHERE id = ANY($1::text[])", [orphan, young])
        await execute(stack, "UPDATE files SET created_at = $1 WHERE id = $2", LONG_AGO, lost)
        result = counts(await retain(stack))
        assert (result[Kind.ORPHANS], result[Kind.LOST]) == (1, 1)
        assert (left.exists(), kept.exists()) == (False, True)
        assert await is_unknown(client, lost)


async def test_a_worker_killed_in_mid_deletion_leaves_nothing_behind() -> None:
    """Wherever among hundreds of files the kill falls: in the end none has an object or a row."""
    with dev("--workers", "1") as stack:
        async with stack.client() as client:
            for first in range(0, 600, 50):
                await asyncio.gather(
                    *(
                        client.files.create(file=(f"{n}.jsonl", b'{"a": 1}\n'), purpose="batch")
                        for n in range(first, first + 50)
                    )
                )
            folder = stack.objects / keys.upload_key(TENANT, "", "").split("//")[0]
            before = _files_in(folder)
            assert before >= 600
            await execute(stack, "UPDATE files SET expires_at = $1", LONG_AGO)
            running = asyncio.create_task(retain(stack))
            await until(lambda: _fewer(folder, before))
            stack.kill("worker")
            left = _files_in(folder)
            result = await running
            assert 0 < left < before
            assert not folder.exists()
            assert await _rows(stack) == 0
            assert [gone.failures for gone in result.gone] == [0] * len(result.gone)


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
    now = stack.now
    client = await Client.connect(now.temporal, namespace=now.namespace)
    async with stack.client() as http:
        file = await http.files.create(file=("a.jsonl", b'{"a": 1}\n'), purpose="batch")
        assert objects_of(stack, file.id)
        await outlive(stack, file.id)

        async def is_gone() -> bool:
            return not objects_of(stack, file.id)

        await client.get_schedule_handle("batchwright-retention").trigger()
        await until(is_gone)
