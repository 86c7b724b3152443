"""Models are changed at run time. While a batch runs, one of two backends is stopped."""

import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.backend import Backend
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FRESH, PAIR = "fresh", "org/pair"
SETTINGS = with_constants(refresh_seconds=0.5)


@contextmanager
def simulator(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a second simulated backend, and yield its process and its URL."""
    command = [sys.executable, "-m", "batchwright.simulator", "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr.readline().split()[-1]
        finally:
            process.kill()


async def register(stack: Stack, model: str, *backends: Mapping[str, object], **more: object) -> None:
    """Register a model, and wait until all processes use the new registry."""
    async with http_client() as http:
        before = await fingerprints(stack, http)
        url = f"{stack.now.api}/admin/models/{model}"
        (await http.put(url, json={"backends": backends, **more})).raise_for_status()

        async def is_followed() -> bool:
            now = await fingerprints(stack, http)
            return len(now) == 1 and before.isdisjoint(now) and model in await served(stack)

        await until(is_followed)


async def served(stack: Stack) -> set[str]:
    async with stack.client() as client:
        return {model.id async for model in client.models.list()}


async def fingerprints(stack: Stack, http: httpx.AsyncClient, of: str = "registry") -> set[str]:
    """Return the fingerprints of the registries, or of the settings, in the API and the workers.

    There is only one fingerprint if they are equal in all processes.
    """
    texts = [(await http.get(url)).text for url in stack.now.metrics]
    lines = [line for text in texts for line in text.splitlines()]
    return {line for line in lines if line.startswith(f"batchwright_{of}_info{{")}


async def test_a_model_registered_at_run_time_survives_the_loss_of_one_backend() -> None:
    options = ("--models", FRESH, "--latency-ms", "150", "--no-ledger")
    with dev(data=None, **SETTINGS) as stack, simulator(*options) as (process, url):
        async with stack.client() as client, http_client() as http:
            assert len(await fingerprints(stack, http, of="settings")) == 1
            assert FRESH not in await served(stack)
            await register(stack, FRESH, {"url": url})
            lines = chat_lines([FRESH], each=50)
            batch = await ended(client, (await submit(client, lines)).id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 50
            await check_conservation(client, batch, lines)

            one, other = {"url": stack.simulator, "model": MODELS[0]}, {"url": url, "model": FRESH}
            await register(stack, PAIR, one, other)
            lines = chat_lines([PAIR], each=4_000)
            for backend in (stack.backend, Backend(url)):  # so that the batch does not end before the kill
                await backend.faults(kind="hold", rate=0.05)
            await stack.faults(model=MODELS[0], kind="slow", seconds=0.15)
            batch = await submit(client, lines)
            await settled(client, batch.id, 20)
            process.kill()
            counts = (await client.batches.retrieve(batch.id)).request_counts
            assert counts is not None
            assert counts.completed < 4_000
            await stack.heal()
            batch = await ended(client, batch.id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 4_000
            await check_conservation(client, batch, lines)
            assert len(await stack.requests_by_id()) > 2_000


async def test_a_batch_can_be_created_as_soon_as_its_model_is_registered() -> None:
    with dev(data=None) as stack:
        async with stack.client() as client, http_client() as http:
            for number in range(5):
                model = f"new-{number}"
                config = {"backends": [{"url": stack.simulator, "model": MODELS[0]}]}
                (await http.put(f"{stack.now.api}/admin/models/{model}", json=config)).raise_for_status()
                batch = await ended(client, (await submit(client, chat_lines([model], each=1))).id)
                assert batch.request_counts is not None
                assert (batch.status, batch.request_counts.completed) == ("completed", 1)
