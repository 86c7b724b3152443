"""The commands of the operator's guide work on a running stack, in the order of the guide."""

import json
import re
from collections.abc import Coroutine, Iterator
from pathlib import Path

import httpx
import pytest
from openai.types import Batch
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.database.driver import connect as connect_database
from batchwright.settings import load
from batchwright.temporal import connect
from tests.clients import http_client
from tests.e2e.batches import (
    CHAT,
    chat_lines,
    check_conservation,
    ended,
    settled,
    submit,
    submit_to_expire,
    until,
)
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.starter.commands import batchwright
from tests.operations.guide import block, environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ALLOWED = WorkflowIDReusePolicy.ALLOW_DUPLICATE


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with dev() as started:
        yield started


def shell(stack: Stack, **more: str) -> dict[str, str]:
    return environment(stack.now, **more)


async def test_commands_show_the_state_of_the_stack(stack: Stack, tmp_path: Path) -> None:
    output = run(block("Inspect"), shell(stack), tmp_path)
    assert "ok  workers" in output
    assert "BATCHWRIGHT_DATABASE_URL" in output
    assert "inference.llama_3_1_8b" in output
    assert "fingerprint" in output.lower()


async def test_commands_control_a_running_batch(stack: Stack, tmp_path: Path) -> None:
    await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it ends only by the cancel
    for model in MODELS[1:]:
        await stack.faults(model=model, kind="slow", seconds=0.5, rate=1.0)
    async with stack.client() as client:
        batch = await submit(client, chat_lines(MODELS, each=600))
        await settled(client, batch.id, 10)
        output = run(block("Control"), shell(stack, ID=batch.id), tmp_path)
        done = await ended(client, batch.id)
    assert batch.id in output
    assert done.status == "cancelled"
    assert done.output_file_id
    await stack.heal()


def test_commands_hold_and_release_tenants_and_models(stack: Stack, tmp_path: Path) -> None:
    output = run(block("Hold a tenant or a model"), shell(stack), tmp_path)
    assert re.search(r"^blue +\d", output, flags=re.MULTILINE)


def test_commands_manage_files_and_storage(stack: Stack, tmp_path: Path) -> None:
    output = run(block("Clean up"), shell(stack), tmp_path)
    assert "to delete" in output
    assert "orphans" in output


async def test_commands_prepare_an_upgrade_while_batches_run(stack: Stack, tmp_path: Path) -> None:
    async with stack.client() as client, stack.backend.hold(MODELS[0]) as hold:
        batch = await submit(client, chat_lines(MODELS, each=200))
        await settled(client, batch.id, 10)
        output = run(block("Upgrade and roll back"), shell(stack), tmp_path)
        await hold.release()
        assert (await ended(client, batch.id)).status == "completed"
    assert "nothing to apply" in output
    assert "search attribute BatchwrightStatus: was there" in output


async def test_the_daily_consistency_check_reports_a_missing_file_and_the_next_one_no_difference(
    stack: Stack, tmp_path: Path
) -> None:
    async with stack.client() as client:
        file = await client.files.create(file=("old.jsonl", b'{"a": 1}\n'), purpose="batch")
    database = await connect_database(stack.now.postgres)
    try:
        older = "UPDATE files SET created_at = now() - interval '1 hour' WHERE id = $1 RETURNING storage_key"
        row = await database.fetchrow(older, file.id)
        assert row is not None
        stored = stack.objects / row["storage_key"]
        stored.rename(tmp_path / "aside")
        run(block("BatchwrightConsistencyCheckStale"), shell(stack), tmp_path)
        await until(lambda: differences(stack, "file_missing", 1))
        wide = shell(stack, COLUMNS="300")
        assert file.id in run(block("BatchwrightConsistencyDifferences"), wide, tmp_path)
        (tmp_path / "aside").rename(stored)
    finally:
        await database.close()
    run(block("BatchwrightConsistencyCheckStale"), shell(stack), tmp_path)
    await until(lambda: differences(stack, "file_missing", 0))


def differences(stack: Stack, kind: str, count: int) -> Coroutine[None, None, bool]:
    """Return True if the metrics show that a consistency check left `count` differences of this kind."""
    return shows(stack, f'batchwright_consistency_differences{{kind="{kind}",state="left"}} {count}[.]0')


async def test_a_run_that_no_worker_can_replay_is_found_and_terminated(stack: Stack, tmp_path: Path) -> None:
    client = await connect(load(temporal_address=stack.now.temporal))
    handle = await client.start_workflow(
        "BatchWorkflow", "{}", id="unreadable", task_queue=CONTROL_QUEUE, id_reuse_policy=ALLOWED
    )
    failed = r'temporal_workflow_task_execution_failed_total{.*failure_reason="WorkflowError".*} [1-9]'
    await until(lambda: shows(stack, failed))
    run(block("Batches that stand still"), shell(stack, ID=handle.id), tmp_path)
    assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED


async def test_a_batch_whose_plan_vanishes_fails_visibly_and_is_resumed(stack: Stack) -> None:
    lines = chat_lines(MODELS, each=400)
    async with stack.client() as client, stack.backend.hold() as hold:
        await stack.faults(kind="slow", seconds=1.0, rate=1.0)
        batch = await hold.submit(client, lines)
        for shard in stack.objects.rglob(f"*/{batch.id}/**/*.jsonl"):
            shard.unlink()
        await hold.release()
        failed = await ended(client, batch.id)
        await stack.heal()
        resumed = await client.post(f"/batches/{batch.id}/x/resume", cast_to=Batch)
        done = await ended(client, resumed.id)
        await check_conservation(client, done, lines)
    assert (failed.status, done.status) == ("failed", "completed")
    assert await shows(stack, r'batchwright_step_failures_total{.*type="PlanDamaged".*} [1-9]')


async def test_a_batch_whose_deadline_passes_without_storage_expires_and_its_files_follow(
    stack: Stack,
) -> None:
    """The storage is unavailable because a file was put in place of its directory."""
    await stack.heal()
    lines = chat_lines(MODELS, each=400)
    aside = stack.objects.with_name("aside")
    async with stack.client() as client, stack.backend.hold(MODELS[0]):

        async def shown(batch_id: str) -> BatchObject:
            answer = await client.get(f"/batches/{batch_id}", cast_to=httpx.Response)
            return BatchObject.model_validate_json(answer.content)

        async def is_expired() -> bool:  # while its files are pending
            return (await client.batches.retrieve(batch.id)).status == "expired"

        batch = await submit_to_expire(client, lines, least=10)
        stack.objects.rename(aside)
        stack.objects.touch()
        try:
            await until(is_expired)
            pending = await shown(batch.id)
        finally:
            stack.objects.unlink()
            aside.rename(stack.objects)

        async def has_files() -> bool:
            return not (await shown(batch.id)).x_batchwright.files_pending

        await until(has_files)
        done = await client.batches.retrieve(batch.id)
        await check_conservation(client, done, lines)
    assert pending.x_batchwright.files_pending
    assert (pending.status, done.status) == ("expired", "expired")
    assert pending.expired_at == done.expired_at


async def test_a_live_batch_whose_run_is_lost_is_found_and_continues_after_repair(
    stack: Stack, tmp_path: Path
) -> None:
    server = await connect(load(temporal_address=stack.now.temporal))
    await stack.heal()
    lines = chat_lines(MODELS, each=100)
    async with stack.client() as client, stack.backend.hold(MODELS[0]) as hold:
        batch = await submit(client, lines)
        await settled(client, batch.id, 10)
        lost = server.get_workflow_handle(batch.id)
        await lost.terminate()
        await delete(server, batch.id)
        database = await connect_database(stack.now.postgres)
        older = "UPDATE batches SET created_at = created_at - interval '1 hour' WHERE id = $1"
        await database.execute(older, batch.id)
        await database.close()
        run(block("BatchwrightConsistencyCheckStale"), shell(stack), tmp_path)
        await until(lambda: differences(stack, "run_missing", 1))
        await batchwright("consistency", "--repair", **settings_of(stack))
        await hold.release()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    assert done.status == "completed"


async def delete(server: Client, run: str) -> None:
    """Delete a workflow run from Temporal, and wait until Temporal no longer knows it."""
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


def settings_of(stack: Stack) -> dict[str, str]:
    """Return the operator's shell settings by lower-case name, for commands that do not use the API."""
    return {
        name.removeprefix("BATCHWRIGHT_").lower(): value
        for name, value in shell(stack).items()
        if name.startswith("BATCHWRIGHT_")
    }


async def test_a_batch_failed_by_an_unknown_error_is_found_and_resumed_after_the_cause_is_fixed(
    stack: Stack,
) -> None:
    """The database row of the input file was changed by hand, so that its storage key is not valid."""
    database = await connect_database(stack.now.postgres)
    change = "UPDATE files SET storage_key = $2 WHERE id = $1"
    await stack.heal()
    lines = chat_lines(MODELS, each=10)
    async with stack.client() as client:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        row = await database.fetchrow("SELECT storage_key FROM files WHERE id = $1", file.id)
        assert row is not None
        await database.execute(change, file.id, "../elsewhere")
        batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        failed = await ended(client, batch.id)
        seen = await shows(stack, r'batchwright_step_failures_total{.*step="ingest".*type="Unexpected".*} 5')
        status = await batchwright("status", batch.id, "--url", stack.now.api)
        await database.execute(change, file.id, row["storage_key"])
        command = await batchwright("resume", batch.id, "--url", stack.now.api, "--json")
        assert command.code == 0, command.stderr
        done = await ended(client, json.loads("\n".join(command.stdout))["id"])
        await check_conservation(client, done, lines)
    await database.close()
    assert (failed.status, seen, done.status) == ("failed", True, "completed")
    assert "An internal error ended 5 attempts (ValueError)." in " ".join(" ".join(status.stdout).split())


async def shows(stack: Stack, line: str) -> bool:
    """Return True if the metrics of any process contain a line that matches the regular expression `line`."""
    async with http_client() as http:
        answers = [(await http.get(url)).text for url in stack.now.metrics]
    return any(re.search(line, answer) for answer in answers)


async def test_retention_is_paused_and_resumed(stack: Stack, tmp_path: Path) -> None:
    client = await connect(load(temporal_address=stack.now.temporal))
    schedule = client.get_schedule_handle("batchwright-retention")
    run(block("Pause retention"), shell(stack), tmp_path)
    assert (await schedule.describe()).schedule.state.paused
    output = run(block("After a restore"), shell(stack), tmp_path)
    assert not (await schedule.describe()).schedule.state.paused
    assert "lost" in output
