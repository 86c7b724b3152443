"""`python -m bench.temporal_floor ADDRESS NAMESPACE COUNT`: measures Temporal alone, without Batchwright.

The program runs a few workflows one after another, then COUNT workflows at the same time. Each workflow has
the same steps as a batch of one line: a timer, two activities, three changes of a search attribute, and a
child workflow with one activity. The activities do nothing. Therefore, the result is the minimum duration and
CPU time of a batch.
"""

import asyncio
import resource
import sys
import time
from datetime import timedelta
from uuid import uuid4

import msgspec
import uvloop
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.search_attributes import STATUS

CONTROL, FILES, LINES = "floor-control", "floor-files", "floor-lines"
ALONE = 5
_OPTIONS = timedelta(minutes=5)


class Floor(msgspec.Struct, frozen=True):
    """Durations and CPU time of workflows whose activities do nothing.

    Attributes:
        alone_seconds: durations of workflows that ran one after another.
        together_seconds: duration of all workflows that were started at the same time.
        cpu_ms: CPU time of the process that runs workflows and activities, for one workflow, in ms.
        events: number of events in the histories of one workflow and its child.
    """

    alone_seconds: list[float]
    together_seconds: float
    cpu_ms: float
    events: int


@activity.defn
async def files() -> None: ...


@activity.defn
async def lines() -> None: ...


@workflow.defn
class FloorModelRun:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(lines, task_queue=LINES, start_to_close_timeout=_OPTIONS)


@workflow.defn
class FloorBatch:
    @workflow.run
    async def run(self) -> None:
        window = asyncio.create_task(workflow.sleep(_OPTIONS))
        await workflow.execute_activity(files, task_queue=FILES, start_to_close_timeout=_OPTIONS)
        _set_status("in_progress")
        await workflow.execute_child_workflow(FloorModelRun.run, id=f"{workflow.info().workflow_id}-model")
        window.cancel()
        _set_status("finalizing")
        await workflow.execute_activity(files, task_queue=FILES, start_to_close_timeout=_OPTIONS)
        _set_status("completed")


def _set_status(status: str) -> None:
    workflow.upsert_search_attributes([STATUS.value_set(status)])  # pyright: ignore[reportUnknownMemberType]


async def measure(address: str, namespace: str, count: int) -> Floor:
    client = await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
    restrictions = SandboxRestrictions.default.with_passthrough_modules("batchwright", "bench")
    control = Worker(
        client,
        task_queue=CONTROL,
        workflows=[FloorBatch, FloorModelRun],
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
    )
    async with (
        control,
        Worker(client, task_queue=FILES, activities=[files]),
        Worker(client, task_queue=LINES, activities=[lines]),
    ):
        first = await _run(client)
        alone = [await _timed(client, 1) for _ in range(ALONE)]
        before = _own_cpu_seconds()
        together = await _timed(client, count)
        cpu_ms = (_own_cpu_seconds() - before) / count * 1000
        events = sum([await _events(client, name) for name in (first, f"{first}-model")])
    return Floor(alone, together, cpu_ms, events)


async def _run(client: Client) -> str:
    name = f"floor-{uuid4().hex}"
    attributes = TypedSearchAttributes([SearchAttributePair(STATUS, "validating")])
    await client.execute_workflow(FloorBatch.run, id=name, task_queue=CONTROL, search_attributes=attributes)
    return name


async def _timed(client: Client, count: int) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(_run(client) for _ in range(count)))
    return time.perf_counter() - started


async def _events(client: Client, name: str) -> int:
    return (await client.get_workflow_handle(name).describe()).history_length


def _own_cpu_seconds() -> float:
    """Return the CPU time of this process, including the threads of Temporal's SDK."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _main(address: str, namespace: str, count: int) -> None:
    found = await measure(address, namespace, count)
    print(msgspec.json.encode(found).decode(), flush=True)
    await asyncio.sleep(0.5)  # the SDK aborts a process that ends at once after its worker


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
