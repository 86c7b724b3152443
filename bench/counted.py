"""Counts the SQL statements, storage requests and events of Temporal histories that a batch causes.

The numbers do not depend on the load of the machine.
"""

import asyncio
import re
import time
from pathlib import Path

import httpx
from temporalio.client import Client as Temporal

from batchwright.database.pool import open_connection_pool
from bench.stack import RunningStack

_VISIBLE_SECONDS = 20.0
_STORAGE_REQUESTS = re.compile(r"^batchwright_file_storage_operations_total\{[^}]*\} (\S+)", re.MULTILINE)
_STATEMENT = re.compile(rb"LOG:  (?:statement|execute)")


async def log_statements(stack: RunningStack, which: str = "all") -> None:
    """Set which SQL statements PostgreSQL logs for `statements`. `which` is `all` or `none`."""
    connection = await open_connection_pool(stack.postgres, size=2, patience_seconds=10)
    await connection.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


def statements(stack: RunningStack) -> int:
    """Return the number of SQL statements in the log file of the stack's PostgreSQL."""
    return len(_STATEMENT.findall((Path(stack.data) / "logs" / "postgres.log").read_bytes()))


def storage_requests(stack: RunningStack) -> int:
    """Return the number of requests that API and workers have sent to the storage since they started.

    The number is read from their metrics.
    """
    total = 0.0
    for url in stack.metrics:
        text = httpx.get(url, trust_env=False).raise_for_status().text
        total += sum(float(value) for value in _STORAGE_REQUESTS.findall(text))
    return int(total)


async def events(stack: RunningStack, batch_id: str) -> int:
    """Wait until all workflows of the batch have ended. Return the number of events in their histories.

    Raises:
        SystemExit: the workflows did not end in time.
    """
    client = await Temporal.connect(stack.temporal, namespace=stack.namespace)
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while time.monotonic() < deadline:
        runs = [run async for run in client.list_workflows(f"WorkflowId STARTS_WITH '{batch_id}'")]
        if len(runs) > 1 and all(run.close_time for run in runs):
            return sum([(await run_length(client, run.id, run.run_id)) for run in runs])
        await asyncio.sleep(0.2)
    raise SystemExit(f"the workflows of {batch_id} did not end")


async def run_length(client: Temporal, workflow_id: str, run_id: str) -> int:
    """Return the number of events in the history of one workflow run."""
    return (await client.get_workflow_handle(workflow_id, run_id=run_id).describe()).history_length


async def wait_in_temporal(stack: RunningStack, batch_ids: list[str]) -> None:
    """Wait until the workflows of the batches have ended, without any request to the API."""
    client = await Temporal.connect(stack.temporal, namespace=stack.namespace)
    await asyncio.gather(*(client.get_workflow_handle(batch_id).result() for batch_id in batch_ids))
