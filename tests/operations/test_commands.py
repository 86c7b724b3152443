"""The guide's commands on a running stack, in the order an operator comes to them."""

import json
import re
from collections.abc import Coroutine, Iterator
from pathlib import Path

import pytest
from openai.types import Batch
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.names import CONTROL_QUEUE
from batchwright.database.driver import connect as connect_database
from batchwright.settings import load
from batchwright.temporal import connect
from tests.clients import http_client
from tests.e2e.batches import CHAT, chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright
from tests.operations.guide import block, environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ALLOWED = WorkflowIDReusePolicy.ALLOW_DUPLICATE


@pytest.fixture(scope="module")
def house() -> Iterator[Stack]:
    with dev() as stack:
        yield stack


def shell(house: Stack, **more: str) -> dict[str, str]:
    return environment(house.now, **more)


async def test_one_sees_what_there_is(house: Stack, tmp_path: Path) -> None:
    said = run(block("Look"), shell(house), tmp_path)
    assert "ok  workers" in said
    assert "BATCHWRIGHT_DATABASE_URL" in said
    assert "inference.llama_3_1_8b" in said
    assert "fingerprint" in said.lower()


async def test_one_steers_a_batch_that_runs(house: Stack, tmp_path: Path) -> None:
    await house.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it ends only by the cancel
    for model in MODELS[1:]:
        await house.faults(model=model, kind="slow", seconds=0.5, rate=1.0)
    async with house.client() as client:
        batch = await submit(client, chat_lines(MODELS, each=600))
        await settled(client, batch.id, 10)
        said = run(block("Steer"), shell(house, ID=batch.id), tmp_path)
        done = await ended(client, batch.id)
    assert batch.id in said
    assert done.status == "cancelled"
    assert done.output_file_id
    await house.heal()


def test_one_looks_after_files_and_storage(house: Stack, tmp_path: Path) -> None:
    said = run(block("Tidy"), shell(house), tmp_path)
    assert "would go" in said
    assert "orphans" in said


async def test_one_prepares_an_upgrade_while_batches_run(house: Stack, tmp_path: Path) -> None:
    async with house.client() as client:
        for model in MODELS:
            await house.faults(model=model, kind="slow", seconds=0.2, rate=1.0)
        batch = await submit(client, chat_lines(MODELS, each=200))
        await settled(client, batch.id, 10)
        said = run(block("Upgrade, and go back"), shell(house), tmp_path)
        assert (await ended(client, batch.id)).status == "completed"
    assert "nothing to apply" in said
    assert "search attribute BatchwrightStatus: was there" in said


async def test_the_daily_audit_tells_of_a_file_that_is_gone_and_the_next_that_nothing_differs(
    house: Stack, tmp_path: Path
) -> None:
    async with house.client() as client:
        file = await client.files.create(file=("old.jsonl", b'{"a": 1}\n'), purpose="batch")
    database = await connect_database(house.now.postgres)
    try:
        older = "UPDATE files SET created_at = now() - interval '1 hour' WHERE id = $1 RETURNING storage_key"
        row = await database.fetchrow(older, file.id)
        assert row is not None
        stored = house.objects / row["storage_key"]
        stored.rename(tmp_path / "aside")
        run(block("BatchwrightAuditStale"), shell(house), tmp_path)
        await until(lambda: differences(house, "file_missing", 1))
        wide = shell(house, COLUMNS="300")
        assert file.id in run(block("BatchwrightAuditDifferences"), wide, tmp_path)
        (tmp_path / "aside").rename(stored)
    finally:
        await database.close()
    run(block("BatchwrightAuditStale"), shell(house), tmp_path)
    await until(lambda: differences(house, "file_missing", 0))


def differences(house: Stack, kind: str, count: int) -> Coroutine[None, None, bool]:
    """Whether the metrics show so many that are left."""
    return shows(house, f'batchwright_audit_differences{{kind="{kind}",state="left"}} {count}[.]0')


async def test_a_run_that_nobody_can_read_is_seen_and_terminated(house: Stack, tmp_path: Path) -> None:
    client = await connect(load(temporal_address=house.now.temporal))
    handle = await client.start_workflow(
        "BatchWorkflow", "{}", id="unreadable", task_queue=CONTROL_QUEUE, id_reuse_policy=ALLOWED
    )
    failed = r'temporal_workflow_task_execution_failed_total{.*failure_reason="WorkflowError".*} [1-9]'
    await until(lambda: shows(house, failed))
    run(block("Stuck is impossible"), shell(house, ID=handle.id), tmp_path)
    assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED


async def test_a_batch_whose_plan_vanishes_fails_visibly_and_is_resumed(house: Stack) -> None:
    await house.faults(kind="slow", seconds=1.0, rate=1.0)
    lines = chat_lines(MODELS, each=400)
    async with house.client() as client:
        batch = await submit(client, lines)
        await settled(client, batch.id, 10)
        for shard in house.objects.rglob(f"*/{batch.id}/**/*.jsonl"):
            shard.unlink()
        failed = await ended(client, batch.id)
        await house.heal()
        resumed = await client.post(f"/batches/{batch.id}/x/resume", cast_to=Batch)
        done = await ended(client, resumed.id)
        await check_conservation(client, done, lines)
    assert (failed.status, done.status) == ("failed", "completed")
    assert await shows(house, r'batchwright_step_failures_total{.*type="PlanDamaged".*} [1-9]')


async def test_a_batch_that_cannot_end_when_its_window_closes_is_seen_and_ends_once_the_storage_is_mended(
    house: Stack,
) -> None:
    """Something else lies where the storage's directory was."""
    await house.heal()
    await house.faults(kind="slow", seconds=1.0, rate=1.0)
    lines = chat_lines(MODELS, each=400)
    aside = house.objects.with_name("aside")
    async with house.client() as client:
        batch = await submit(client, lines, "20s")
        await settled(client, batch.id, 10)
        house.objects.rename(aside)
        house.objects.touch()
        try:
            await until(lambda: shows(house, r"batchwright_batches_past_deadline [1-9]"))
        finally:
            house.objects.unlink()
            aside.rename(house.objects)
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    await house.heal()
    assert done.status == "expired"


async def test_a_live_batch_whose_run_is_lost_is_seen_and_goes_on_once_it_is_repaired(
    house: Stack, tmp_path: Path
) -> None:
    server = await connect(load(temporal_address=house.now.temporal))
    await house.heal()
    await house.faults(kind="slow", seconds=5.0, rate=1.0)
    lines = chat_lines(MODELS, each=100)
    async with house.client() as client:
        batch = await submit(client, lines)
        await settled(client, batch.id, 10)
        lost = server.get_workflow_handle(batch.id)
        await lost.terminate()
        await delete(server, batch.id)
        database = await connect_database(house.now.postgres)
        older = "UPDATE batches SET created_at = created_at - interval '1 hour' WHERE id = $1"
        await database.execute(older, batch.id)
        await database.close()
        run(block("BatchwrightAuditStale"), shell(house), tmp_path)
        await until(lambda: differences(house, "run_missing", 1))
        await batchwright("audit", "--repair", **settings_of(house))
        await house.heal()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    assert done.status == "completed"


async def delete(server: Client, run: str) -> None:
    """From Temporal, until it knows the run no more."""
    execution = WorkflowExecution(workflow_id=run)
    await server.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=server.namespace, workflow_execution=execution)
    )

    async def is_gone() -> bool:
        try:
            await server.get_workflow_handle(run).describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await until(is_gone)


def settings_of(house: Stack) -> dict[str, str]:
    """Of a command that asks everything but the API; what the shell has."""
    return {
        name.removeprefix("BATCHWRIGHT_").lower(): value
        for name, value in shell(house).items()
        if name.startswith("BATCHWRIGHT_")
    }


async def test_a_step_that_fails_for_a_reason_nobody_expected_is_seen_and_goes_on_once_that_is_mended(
    house: Stack,
) -> None:
    """The row of the input was changed by hand: its key is none."""
    database = await connect_database(house.now.postgres)
    change = "UPDATE files SET storage_key = $2 WHERE id = $1"
    await house.heal()
    lines = chat_lines(MODELS, each=10)
    async with house.client() as client:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        row = await database.fetchrow("SELECT storage_key FROM files WHERE id = $1", file.id)
        assert row is not None
        await database.execute(change, file.id, "../elsewhere")
        batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        failures = r'batchwright_step_failures_total{.*step="ingest".*type="other".*} [2-9]'
        await until(lambda: shows(house, failures))
        told = await batchwright("status", batch.id, "--url", house.now.api)
        assert "nobody" in " ".join(told.said)
        await database.execute(change, file.id, row["storage_key"])
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    await database.close()
    assert done.status == "completed"


async def shows(house: Stack, line: str) -> bool:
    """Whether a process shows such a line among its metrics."""
    async with http_client() as http:
        answers = [(await http.get(url)).text for url in house.now.metrics]
    return any(re.search(line, answer) for answer in answers)


async def test_retention_is_paused_and_goes_on(house: Stack, tmp_path: Path) -> None:
    client = await connect(load(temporal_address=house.now.temporal))
    schedule = client.get_schedule_handle("batchwright-retention")
    run(block("Pause retention"), shell(house), tmp_path)
    assert (await schedule.describe()).schedule.state.paused
    said = run(block("After a restore"), shell(house), tmp_path)
    assert not (await schedule.describe()).schedule.state.paused
    assert "lost" in said
