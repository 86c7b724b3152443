"""Workers of two releases under live batches: builds side by side, PINNED, and unversioned ones exchanged."""

import json
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openai.types import Batch
from temporalio.client import Client, WorkflowExecutionStatus

from batchwright.settings import load
from batchwright.temporal import connect
from batchwright.temporal.rollout import builds
from starter.stack.ports import free_port
from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.commands import batchwright
from tests.operations.guide import block, environment, run
from tests.operations.parts import beside, process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
LINES = chat_lines(MODELS, each=200)
FEW = chat_lines(MODELS, each=2)
DEPLOYMENT, ONE, TWO = "batchwright", "one", "two"
SHORT = {
    "BATCHWRIGHT_SLICE_LINES": "5",
    "BATCHWRIGHT_OUTSTANDING_SLICES": "4",
    "BATCHWRIGHT_CONTINUE_AS_NEW_EVENTS": "40",
}
# Another first command than ours: neither code can replay what the other began.
_FIRST = "        work = asyncio.create_task(self._process())\n"
_SLEEPS_FIRST = f"        await workflow.sleep(0.001)\n{_FIRST}"


@pytest.fixture(scope="module")
def house() -> Iterator[Stack]:
    """Without workers. Slices are small and histories short, so that runs continue as new all the time."""
    with dev("--workers", "0", data=None, **SHORT) as stack:
        yield stack


@pytest.fixture
def newer_code(tmp_path: Path) -> Path:
    """Ours, with workflows that cannot replay ours."""
    folder = tmp_path / "newer"
    shutil.copytree(ROOT / "workflows", folder / "workflows")
    text = (folder / "workflows" / "batch.py").read_text()
    assert text.count(_FIRST) == 1
    (folder / "workflows" / "batch.py").write_text(text.replace(_FIRST, _SLEEPS_FIRST))
    return folder


def shell(house: Stack, **more: str) -> dict[str, str]:
    return environment(house.now, BATCHWRIGHT_DEPLOYMENT_NAME=DEPLOYMENT, **more)


@asynccontextmanager
async def worker(house: Stack, build: str = "", code: Path | None = None) -> AsyncGenerator[str]:
    """Where its metrics are; drains at the end. Without a build it is unversioned."""
    port = free_port()
    told = environment(house.now, BATCHWRIGHT_METRICS_PORT=str(port), **SHORT)
    if build:
        told |= {"BATCHWRIGHT_DEPLOYMENT_NAME": DEPLOYMENT, "BATCHWRIGHT_BUILD_ID": build}
    url = f"http://127.0.0.1:{port}"
    async with beside(process("worker", well=f"{url}/readyz", environment=told, code=code)):
        yield f"{url}/metrics"


async def temporal(house: Stack) -> Client:
    return await connect(load(temporal_address=house.now.temporal, temporal_namespace=house.now.namespace))


async def build_of(client: Client, batch: Batch) -> str:
    found = (await client.get_workflow_handle(batch.id).describe()).raw_description
    return found.workflow_execution_info.versioning_info.deployment_version.build_id


async def exchange(house: Stack, build: str, folder: Path) -> str:
    """As the guide has it, once the build polls every queue."""
    settings = {"temporal_address": house.now.temporal, "temporal_namespace": house.now.namespace}

    async def is_taken() -> bool:
        told = ("rollout", "current", build, "--deployment", DEPLOYMENT)
        return (await batchwright(*told, **settings)).code == 0

    await until(is_taken)
    return run(block("Exchange builds"), shell(house, BUILD=build), folder)


async def live(house: Stack, build: str) -> int:
    """Batches that need the build, by `rollout show`."""
    settings = {"temporal_address": house.now.temporal, "temporal_namespace": house.now.namespace}
    told = ("rollout", "show", "--deployment", DEPLOYMENT, "--json")
    found = json.loads((await batchwright(*told, **settings)).said[0])["builds"]
    return next(each["batches"] for each in found if each["build"] == build)


async def held(client: AsyncOpenAI) -> Batch:
    """A batch that has begun, and stays where it is."""
    batch = await submit(client, LINES)
    await settled(client, batch.id, 10)
    await client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
    assert (await client.batches.retrieve(batch.id)).status == "in_progress"
    return batch


async def finished(client: AsyncOpenAI, batch: Batch, lines: list[dict[str, object]] = LINES) -> None:
    done = await ended(client, batch.id, 200)
    await check_conservation(client, done, lines)
    assert (done.status, done.error_file_id) == ("completed", None)


async def continued(client: Client, batch: Batch) -> int:
    """How many runs of its models went on as new."""
    query = f"WorkflowId STARTS_WITH '{batch.id}/'"
    found = [run async for run in client.list_workflows(query)]
    return sum(run.status is WorkflowExecutionStatus.CONTINUED_AS_NEW for run in found)


async def test_every_build_finishes_what_it_began_while_the_current_one_takes_what_is_new(
    house: Stack, newer_code: Path, tmp_path: Path
) -> None:
    """Forward to a build that could not replay the batch of the one before, and back again."""
    await house.faults(kind="slow", seconds=2.0, rate=1.0)
    server = await temporal(house)
    async with house.client() as client, AsyncExitStack() as workers:
        await workers.enter_async_context(worker(house, ONE))
        await exchange(house, ONE, tmp_path)
        first = await held(client)
        await workers.enter_async_context(worker(house, TWO, newer_code))
        said = await exchange(house, TWO, tmp_path)
        assert "current" in said
        await finished(client, await submit(client, FEW), FEW)
        second = await held(client)
        assert (await live(house, ONE), await live(house, TWO)) == (1, 1)
        await exchange(house, ONE, tmp_path)
        third = await submit(client, FEW)
        await finished(client, third, FEW)
        await house.heal()
        for batch in (first, second):
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await finished(client, batch)
        stayed = [await build_of(server, batch) for batch in (first, second, third)]
        assert min(await continued(server, first), await continued(server, second)) > 0
    assert stayed == [ONE, TWO, ONE]


async def test_a_build_without_workers_is_not_made_current_and_the_message_says_what_to_do(
    house: Stack,
) -> None:
    settings = {"temporal_address": house.now.temporal, "temporal_namespace": house.now.namespace}
    ended = await batchwright("rollout", "current", "nobody", "--deployment", DEPLOYMENT, **settings)
    assert (ended.code, ended.said) == (1, [])
    assert "'nobody'" in ended.complained
    assert "start its workers first" in ended.complained


async def test_workers_are_exchanged_under_a_live_batch_forward_to_a_newer_release_and_back(
    house: Stack, tmp_path: Path
) -> None:
    """Unversioned: the release brings a migration, and replays what the old one began."""
    newer = tmp_path / "newer"
    shutil.copytree(ROOT / "batchwright", newer / "batchwright")
    migration = "CREATE TABLE newer (id text PRIMARY KEY);\n"
    (newer / "batchwright" / "database" / "migrations" / "9000_newer.sql").write_text(migration)
    await exchange_to_unversioned(house)
    await house.faults(kind="slow", seconds=2.0, rate=1.0)
    async with house.client() as client, AsyncExitStack() as new:
        async with worker(house):
            batch = await held(client)
            said = run(block("Upgrade, and go back"), shell(house, PYTHONPATH=f"{newer}:{ROOT}"), tmp_path)
            await new.enter_async_context(worker(house, code=newer))
        await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
        await settled(client, batch.id, 100)
        await client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
        async with worker(house):
            await new.aclose()
            await house.heal()
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await finished(client, batch)
    assert "9000_newer.sql" in said


async def test_a_release_that_cannot_replay_a_batch_is_seen_and_the_one_before_goes_on_with_it(
    house: Stack, newer_code: Path
) -> None:
    await exchange_to_unversioned(house)
    await house.faults(kind="slow", seconds=2.0, rate=1.0)
    async with house.client() as client:
        async with worker(house):
            batch = await held(client)
        async with worker(house, code=newer_code) as metrics:
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await until(lambda: tasks_fail(metrics))
        await house.heal()
        async with worker(house):
            await finished(client, batch)


async def exchange_to_unversioned(house: Stack) -> None:
    if await builds(await temporal(house), DEPLOYMENT):
        settings = {"temporal_address": house.now.temporal, "temporal_namespace": house.now.namespace}
        told = ("rollout", "current", "--unversioned", "--deployment", DEPLOYMENT)
        assert (await batchwright(*told, **settings)).code == 0


async def tasks_fail(metrics: str) -> bool:
    """Whether a worker shows what BatchwrightWorkflowTasksFailing goes by."""
    async with http_client() as http:
        shown = (await http.get(metrics)).text.splitlines()
    failed = [line for line in shown if line.startswith("temporal_workflow_task_execution_failed_total{")]
    return any('failure_reason="NonDeterminismError"' in line for line in failed)
