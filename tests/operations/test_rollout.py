"""Workers of two releases run at the same time while batches run, with and without versioning."""

import json
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openai.types import Batch
from temporalio.client import Client

from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.temporal import connect
from batchwright.temporal.rollout import list_builds
from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.integration.starter.commands import batchwright
from tests.operations.guide import block, environment, run
from tests.operations.parts import beside, process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
LINES = chat_lines(MODELS, each=200)
FEW = chat_lines(MODELS, each=2)
DEPLOYMENT, ONE, TWO = "batchwright", "one", "two"
SHORT = with_constants(max_slice_lines=5, outstanding_slices=4, hand_over_events=40)
# Another first command than ours: neither code can replay what the other began.
_FIRST = "        work = asyncio.create_task(self._process())\n"
_SLEEPS_FIRST = f"        await workflow.sleep(0.001)\n{_FIRST}"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack without workers.

    Slices are small and histories are short, so that model runs (workflows for one model of a batch) often
    start another run for their remaining slices.
    """
    with dev("--workers", "0", data=None, **SHORT) as started:
        yield started


@pytest.fixture
def newer_code(tmp_path: Path) -> Path:
    """A copy of our code. Its workflows cannot replay the histories of the original workflows."""
    folder = tmp_path / "newer"
    shutil.copytree(ROOT / "batchwright", folder / "batchwright")
    path = folder / "batchwright" / "workflows" / "batch.py"
    text = path.read_text()
    assert text.count(_FIRST) == 1
    path.write_text(text.replace(_FIRST, _SLEEPS_FIRST))
    return folder


def shell(stack: Stack, **more: str) -> dict[str, str]:
    return environment(stack.now, BATCHWRIGHT_DEPLOYMENT_NAME=DEPLOYMENT, **more)


@asynccontextmanager
async def worker(stack: Stack, build: str = "", code: Path | None = None) -> AsyncGenerator[str]:
    """Context manager that runs a worker, and yields the URL of its metrics.

    Args:
        build: build id of the worker; empty to run it without versioning.
        code: directory of other code; None for ours.
    """
    port = free_port()
    arguments = environment(stack.now, BATCHWRIGHT_METRICS_PORT=str(port), **SHORT)
    if build:
        arguments |= {"BATCHWRIGHT_DEPLOYMENT_NAME": DEPLOYMENT, "BATCHWRIGHT_BUILD_ID": build}
    url = f"http://127.0.0.1:{port}"
    async with beside(process("worker", well=f"{url}/readyz", environment=arguments, code=code)):
        yield f"{url}/metrics"


async def temporal(stack: Stack) -> Client:
    return await connect(load(temporal_address=stack.now.temporal, temporal_namespace=stack.now.namespace))


async def build_of(client: Client, batch: Batch) -> str:
    found = (await client.get_workflow_handle(batch.id).describe()).raw_description
    return found.workflow_execution_info.versioning_info.deployment_version.build_id


async def exchange(stack: Stack, build: str, folder: Path) -> str:
    """Wait until workers of `build` poll all task queues, then make it the current build with the commands of
    the guide.

    Return the output of the commands.
    """
    settings = {"temporal_address": stack.now.temporal, "temporal_namespace": stack.now.namespace}

    async def is_taken() -> bool:
        arguments = ("rollout", "current", build, "--deployment", DEPLOYMENT)
        return (await batchwright(*arguments, **settings)).code == 0

    await until(is_taken)
    return run(block("Switch builds"), shell(stack, BUILD=build), folder)


async def live(stack: Stack, build: str) -> int:
    """Return the number of live batches on the build, as `rollout show` prints it."""
    settings = {"temporal_address": stack.now.temporal, "temporal_namespace": stack.now.namespace}
    arguments = ("rollout", "show", "--deployment", DEPLOYMENT, "--json")
    found = json.loads((await batchwright(*arguments, **settings)).stdout[0])["builds"]
    return next(each["batches"] for each in found if each["build"] == build)


@asynccontextmanager
async def one_model_is_answered(stack: Stack) -> AsyncGenerator[None]:
    """Let the backend answer only one model and hold all other requests.

    So no batch with `LINES` can end.
    """
    async with stack.backend.hold(MODELS[1]), stack.backend.hold(MODELS[2]):
        yield


async def one_is_live_on_each(stack: Stack) -> bool:
    return (await live(stack, ONE), await live(stack, TWO)) == (1, 1)


async def held(stack: Stack, client: AsyncOpenAI) -> Batch:
    """Start a batch, pause it when some lines have results, and return it."""
    async with one_model_is_answered(stack):
        batch = await submit(client, LINES)
        await settled(client, batch.id, 10)
        await client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
    return batch


async def finished(client: AsyncOpenAI, batch: Batch, lines: list[dict[str, object]] = LINES) -> None:
    done = await ended(client, batch.id)
    await check_conservation(client, done, lines)
    assert (done.status, done.error_file_id) == ("completed", None)


async def handed_over(client: Client, batch: Batch) -> int:
    """Return how many model runs (workflows for one model) of the batch were started to continue
    another one.
    """
    query = f"WorkflowId STARTS_WITH '{batch.id}/'"
    return len([run async for run in client.list_workflows(query)]) - len(MODELS)


async def test_every_build_finishes_its_batches_while_the_current_one_accepts_new_ones(
    stack: Stack, newer_code: Path, tmp_path: Path
) -> None:
    """The second build cannot replay the workflows of the first one. It becomes the current build, and later
    the first one again.
    """
    server = await temporal(stack)
    async with stack.client() as client, AsyncExitStack() as workers:
        await workers.enter_async_context(worker(stack, ONE))
        await exchange(stack, ONE, tmp_path)
        first = await held(stack, client)
        await workers.enter_async_context(worker(stack, TWO, newer_code))
        output = await exchange(stack, TWO, tmp_path)
        assert "current" in output
        await finished(client, await submit(client, FEW), FEW)
        second = await held(stack, client)
        await until(lambda: one_is_live_on_each(stack))
        await exchange(stack, ONE, tmp_path)
        third = await submit(client, FEW)
        await finished(client, third, FEW)
        for batch in (first, second):
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await finished(client, batch)
        stayed = [await build_of(server, batch) for batch in (first, second, third)]
        assert min(await handed_over(server, first), await handed_over(server, second)) > 0
    assert stayed == [ONE, TWO, ONE]


async def test_a_build_without_workers_is_not_made_current_and_the_message_says_what_to_do(
    stack: Stack,
) -> None:
    settings = {"temporal_address": stack.now.temporal, "temporal_namespace": stack.now.namespace}
    ended = await batchwright("rollout", "current", "nobody", "--deployment", DEPLOYMENT, **settings)
    assert (ended.code, ended.stdout) == (1, [])
    assert "'nobody'" in ended.stderr
    assert "start its workers first" in ended.stderr


async def test_workers_are_replaced_during_a_live_batch_by_a_newer_release_and_back(
    stack: Stack, tmp_path: Path
) -> None:
    """The workers are unversioned.

    The newer release has a new migration, and replays workflow runs that the older release began.
    """
    newer = tmp_path / "newer"
    shutil.copytree(ROOT / "batchwright", newer / "batchwright")
    migration = "CREATE TABLE newer (id text PRIMARY KEY);\n"
    (newer / "batchwright" / "database" / "migrations" / "9000_newer.sql").write_text(migration)
    await exchange_to_unversioned(stack)
    async with stack.client() as client, AsyncExitStack() as new:
        async with worker(stack):
            batch = await held(stack, client)
            output = run(block("Upgrade and roll back"), shell(stack, PYTHONPATH=f"{newer}:{ROOT}"), tmp_path)
            await new.enter_async_context(worker(stack, code=newer))
        async with one_model_is_answered(stack):
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await settled(client, batch.id, 100)
            await client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
        async with worker(stack):
            await new.aclose()
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await finished(client, batch)
    assert "9000_newer.sql" in output


async def test_a_release_that_cannot_replay_a_batch_is_detected_and_the_previous_one_continues_it(
    stack: Stack, newer_code: Path
) -> None:
    await exchange_to_unversioned(stack)
    async with stack.client() as client:
        async with worker(stack):
            batch = await held(stack, client)
        async with worker(stack, code=newer_code) as metrics:
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
            await until(lambda: tasks_fail(metrics))
        async with worker(stack):
            await finished(client, batch)


async def exchange_to_unversioned(stack: Stack) -> None:
    if await list_builds(await temporal(stack), DEPLOYMENT):
        settings = {"temporal_address": stack.now.temporal, "temporal_namespace": stack.now.namespace}
        arguments = ("rollout", "current", "--unversioned", "--deployment", DEPLOYMENT)
        assert (await batchwright(*arguments, **settings)).code == 0


async def tasks_fail(metrics: str) -> bool:
    """Return True if a worker's metrics show failures for the alert BatchwrightWorkflowTasksFailing."""
    async with http_client() as http:
        shown = (await http.get(metrics)).text.splitlines()
    failed = [line for line in shown if line.startswith("temporal_workflow_task_execution_failed_total{")]
    return any('failure_reason="NonDeterminismError"' in line for line in failed)
