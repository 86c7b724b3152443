"""Causes every event that the dashboards and alerts show, once, on a stack. This takes about a minute."""

import json

import httpx
from openai import AsyncOpenAI
from temporalio.client import Client

from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.database.driver import connect
from batchwright.rules.stored_objects import object_keys
from batchwright.temporal.namespace.maintenance_schedules import SCHEDULES
from tests.e2e.batches import CHAT, chat_lines, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack
from tests.observability.prometheus import Prometheus
from tests.observability.spent_history import leave_fallbacks, leave_jobs, leave_refusals

ANSWERED, TROUBLED, AWAY = MODELS


async def make_history(stack: Stack, prometheus: Prometheus) -> None:
    """Cause all events. At the end, a batch of each of two tenants is still in progress."""
    async with stack.client() as client, stack.client("acme") as other:
        await _batches_that_end(stack, client, prometheus)
        await _broken_workflow(stack)
        await stack.faults(kind="slow", seconds=1.0, rate=1.0)
        await _torn_batch(stack, client)
        await submit(client, chat_lines([ANSWERED, TROUBLED], each=4000))
        lasting = await submit(other, chat_lines([ANSWERED, AWAY], each=4000))
        await settled(other, lasting.id, 150)  # takes turns of two seconds
        assert not prometheus.ask("batchwright_batch_startup_recovery_total"), "a turn is no lost worker"
        stack.kill("worker")
        await _seen(prometheus, "sum(batchwright_batch_startup_recovery_total) > 0")
        await _wrong_row(stack, client)  # counters of a killed worker go stale: the failures come after it
        await stack.heal()  # of several faults the first counts
        await stack.faults(model=AWAY, kind="503", rate=1.0)
        await stack.faults(model=TROUBLED, kind="500", rate=0.5)
        await stack.faults(kind="slow", seconds=1.0, rate=1.0)
        await leave_jobs(stack, client, ANSWERED)
        await leave_fallbacks(stack, client, ANSWERED)
        await leave_refusals(stack, ANSWERED)
        await _retention(stack, client)
        for counter in (
            "batchwright_retention_deleted_total",
            "batchwright_retention_deleted_bytes_total",
            "batchwright_retention_failures_total",
            "batchwright_model_group_deferrals_total",
            "batchwright_request_retries_total",
            'batchwright_step_failures_total{type="Unexpected"}',
            'batchwright_backend_jobs_ended_total{result="lost"}',
            'batchwright_backend_jobs_ended_total{result="completed"}',
            'batchwright_backend_jobs_polled_total{result="inconclusive"}',
            'batchwright_callbacks_total{result="token"}',
            'batchwright_quota_refusals_total{quota="tokens_per_day"}',
            "batchwright_fallbacks_total",
            "batchwright_requests_total",
            "batchwright_errors_total",
            "temporal_workflow_task_execution_failed_total",
        ):
            await _seen(prometheus, f"rate({counter}[2m])")


async def _batches_that_end(stack: Stack, client: AsyncOpenAI, prometheus: Prometheus) -> None:
    """Twice, complete one batch and cancel another one.

    In between, Prometheus must read the counters, because a rate needs two values.
    """
    for _ in range(2):
        done = await submit(client, chat_lines(MODELS, each=20))
        assert (await ended(client, done.id)).status == "completed"
        await stack.faults(kind="slow", seconds=5.0, rate=1.0)
        cancelled = await submit(client, chat_lines([ANSWERED], each=200))
        await _until_status(client, cancelled.id, "in_progress")
        await client.batches.cancel(cancelled.id)
        await ended(client, cancelled.id)
        await stack.heal()
        await _seen(prometheus, "sum(batchwright_batch_cancellation_total) > 0")


async def _broken_workflow(stack: Stack) -> None:
    """Start a workflow run with an invalid input, so that all its workflow tasks fail."""
    now = stack.now
    client = await Client.connect(now.temporal, namespace=now.namespace)
    await client.start_workflow("BatchWorkflow", json.dumps({}), id="broken", task_queue=CONTROL_QUEUE)


async def _torn_batch(stack: Stack, client: AsyncOpenAI) -> None:
    """Delete the lines of a running batch from the storage, so that its slices fail."""
    batch = await submit(client, chat_lines([ANSWERED], each=500))
    await settled(client, batch.id, 10)
    for shard in stack.objects.rglob(f"*/{batch.id}/**/*.jsonl"):
        shard.unlink()


async def _wrong_row(stack: Stack, client: AsyncOpenAI) -> None:
    """Create a batch with an invalid file row, so that its ingestion fails with an unexpected error."""
    file = await client.files.create(file=("odd.jsonl", b'{"a": 1}\n'), purpose="batch")
    database = await connect(stack.now.postgres)
    await database.execute("UPDATE files SET storage_key = '../elsewhere' WHERE id = $1", file.id)
    await database.close()
    await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def _retention(stack: Stack, client: AsyncOpenAI) -> None:
    """Run retention with an expired file, and with a storage that seems to belong to another database."""
    file = await client.files.create(file=("old.jsonl", b'{"a": 1}\n'), purpose="batch")
    database = await connect(stack.now.postgres)
    await database.execute("UPDATE files SET expires_at = now() - interval '2 hours' WHERE id = $1", file.id)
    await database.close()
    (stack.objects / object_keys.DATABASE_MARK).write_text("another")
    temporal = await Client.connect(stack.now.temporal, namespace=stack.now.namespace)
    for planned in SCHEDULES:
        await temporal.get_schedule_handle(planned.id).trigger()


async def _until_status(client: AsyncOpenAI, batch_id: str, status: str) -> None:
    async def reached() -> bool:
        return (await client.batches.retrieve(batch_id)).status == status

    await until(reached)


async def _seen(prometheus: Prometheus, expr: str) -> None:
    async def has_value() -> bool:
        try:
            return bool(prometheus.ask(expr))
        except httpx.HTTPError:
            return False

    await until(has_value)
