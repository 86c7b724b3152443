"""Models changed at run time through the whole stack, and one of two backends that dies in mid-batch."""

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import httpx
import pytest

from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FRESH, PAIR = "fresh", "org/pair"
SETTINGS = {"BATCHWRIGHT_MODEL_REFRESH_SECONDS": "0.5"}


@contextmanager
def simulator(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A second one: its process and its URL."""
    command = [sys.executable, "-m", "simulator", "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr.readline().split()[-1]
        finally:
            process.kill()


async def register(stack: Stack, model: str, *backends: dict[str, str], **more: object) -> None:
    """Every process goes by it once this returns."""
    async with http_client() as http:
        before = await fingerprints(stack, http)
        url = f"{stack.now.api}/admin/models/{model}"
        (await http.put(url, json={"backends": backends, **more})).raise_for_status()

        async def is_followed() -> bool:
            return before.isdisjoint(await fingerprints(stack, http)) and model in await served(stack)

        await until(is_followed)
        assert len(await fingerprints(stack, http)) == 1


async def served(stack: Stack) -> set[str]:
    async with stack.client() as client:
        return {model.id async for model in client.models.list()}


async def fingerprints(stack: Stack, http: httpx.AsyncClient) -> set[str]:
    """The registries that API and workers go by."""
    texts = [(await http.get(url)).text for url in stack.now.metrics]
    lines = [line for text in texts for line in text.splitlines()]
    return {line for line in lines if line.startswith("batchwright_registry_info{")}


async def test_a_model_registered_at_run_time_and_a_backend_that_dies() -> None:
    options = ("--models", FRESH, "--latency-ms", "150", "--no-ledger")
    with dev(data=None, **SETTINGS) as stack, simulator(*options) as (process, url):
        async with stack.client() as client:
            assert FRESH not in await served(stack)
            await register(stack, FRESH, {"url": url})
            lines = chat_lines([FRESH], each=50)
            batch = await ended(client, (await submit(client, lines)).id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 50
            await check_conservation(client, batch, lines)

            one, other = {"url": stack.simulator, "model": MODELS[0]}, {"url": url, "model": FRESH}
            await stack.faults(model=MODELS[0], kind="slow", seconds=0.15)
            await register(stack, PAIR, one, other)
            lines = chat_lines([PAIR], each=4_000)
            batch = await submit(client, lines)
            await settled(client, batch.id, 200)
            process.kill()
            counts = (await client.batches.retrieve(batch.id)).request_counts
            assert counts is not None
            assert counts.completed < 4_000
            batch = await ended(client, batch.id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 4_000
            await check_conservation(client, batch, lines)
            assert len(await stack.asked()) > 2_000


async def hedged(stack: Stack) -> list[str]:
    """What workers have counted of lines that two backends were asked."""
    async with http_client() as http:
        texts = [(await http.get(url)).text for url in stack.now.metrics]
    lines = [line for text in texts for line in text.splitlines()]
    return [line for line in lines if line.startswith("batchwright_requests_hedged_total{")]


async def test_lines_at_a_backend_that_hangs_are_answered_by_the_other_where_their_model_says_so() -> None:
    options = ("--models", FRESH, "--latency-ms", "150", "--no-ledger")
    with dev(data=None, **SETTINGS) as stack, simulator(*options) as (process, url):
        async with stack.client() as client:
            one, other = {"url": stack.simulator, "model": MODELS[0]}, {"url": url, "model": FRESH}
            await stack.faults(model=MODELS[0], kind="slow", seconds=0.15)
            await register(stack, PAIR, one, other, hedge_after=2)
            lines = chat_lines([PAIR], each=2_000)
            batch = await submit(client, lines)
            await settled(client, batch.id, 100)
            process.send_signal(signal.SIGSTOP)
            batch = await ended(client, batch.id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 2_000
            await check_conservation(client, batch, lines)
        assert any('result="won"' in line and not line.endswith(" 0.0") for line in await hedged(stack))


async def test_a_batch_may_come_as_soon_as_its_models_registration_is_answered() -> None:
    with dev(data=None) as stack:
        async with stack.client() as client, http_client() as http:
            for number in range(5):
                model = f"new-{number}"
                config = {"backends": [{"url": stack.simulator, "model": MODELS[0]}]}
                (await http.put(f"{stack.now.api}/admin/models/{model}", json=config)).raise_for_status()
                batch = await ended(client, (await submit(client, chat_lines([model], each=1))).id)
                assert batch.request_counts is not None
                assert (batch.status, batch.request_counts.completed) == ("completed", 1)
