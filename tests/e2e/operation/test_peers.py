"""Batches with servers of other projects as backends: LiteLLM's proxy, and LitServe with a real model."""

import tempfile
from collections.abc import Generator
from math import sqrt
from pathlib import Path

import httpx
import pytest
from openai.types import Batch

from batchwright.starter.embedded_stack.ports import free_port
from tests.clients import SECONDS
from tests.constants import with_constants
from tests.e2e.batches import (
    Response,
    ResultLine,
    chat_lines,
    check_conservation,
    ended,
    expired,
    lines_of,
    submit,
    until,
)
from tests.e2e.features.test_registry import simulator
from tests.e2e.stack import Stack, dev
from tests.peers.servers import KEY, Engine, embedder, litellm

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT, UPSTREAM, EMBEDDINGS = "via-litellm", "llama-3.1-8b", "org/wordllama"
HALVED, DEAD = "one-engine-of-two-is-dead", "its-only-engine-is-dead"


@pytest.fixture(scope="module")
def peers() -> Generator[Stack]:
    settings = {"BATCHWRIGHT_BACKEND_API_KEY": KEY, **with_constants(refresh_seconds=1)}
    with (
        tempfile.TemporaryDirectory(prefix="batchwright-peers-") as folder,
        simulator("--models", UPSTREAM, "--no-ledger") as (_, url),
        litellm(engines(Engine(url, UPSTREAM)), Path(folder)) as proxy,
        embedder(Path(folder)) as embeddings,
    ):
        proxy.wait()
        embeddings.wait()
        with dev("--backend", f"{proxy.url}/v1", data=None, **settings) as stack:
            register(stack, embeddings.url)
            yield stack


def engines(alive: Engine) -> dict[str, list[Engine]]:
    dead = Engine(f"http://127.0.0.1:{free_port()}", UPSTREAM)
    return {CHAT: [alive], HALVED: [alive, dead], DEAD: [dead]}


def register(stack: Stack, url: str) -> None:
    """Register the embeddings model, because its server lists no models."""
    backend = {"url": url, "model": "wordllama"}
    url = f"{stack.now.api}/admin/models/{EMBEDDINGS}"
    response = httpx.put(url, json={"backends": [backend]}, trust_env=False, timeout=SECONDS)
    response.raise_for_status()


async def is_served(stack: Stack, model: str) -> None:
    async def listed() -> bool:
        async with stack.client() as client:
            return model in {found.id async for found in client.models.list()}

    await until(listed)


def answered(line: ResultLine) -> Response:
    assert line.error is None
    assert line.response is not None
    assert line.response.status_code == 200
    return line.response


async def test_a_batch_over_litellms_proxy_with_its_key(peers: Stack) -> None:
    await is_served(peers, CHAT)
    lines = chat_lines([CHAT], each=60)
    async with peers.client() as client:
        batch = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, batch, lines)
        output = await lines_of(client, batch.output_file_id)
    assert (batch.status, len(output)) == ("completed", 60)
    assert batch.usage is not None
    assert batch.usage.output_tokens > 0
    for line in output:
        extra = answered(line).model_extra
        assert extra is not None
        assert extra["body"]["object"] == "chat.completion"


async def test_a_batch_over_litellms_proxy_completes_while_one_engine_of_its_two_is_dead(
    peers: Stack,
) -> None:
    await is_served(peers, HALVED)
    lines = chat_lines([HALVED], each=60)
    async with peers.client() as client:
        batch = await ended(client, (await submit(client, lines)).id, seconds=400)
        await check_conservation(client, batch, lines)
    assert (batch.status, batch.error_file_id) == ("completed", None)


async def test_lines_of_a_dead_engine_behind_litellms_proxy_expire_and_those_of_another_are_answered(
    peers: Stack,
) -> None:
    await is_served(peers, DEAD)
    lines = chat_lines([CHAT, DEAD], each=20)
    async with peers.client() as client:
        batch = await expired(client, lines, lambda batch: has_completed(batch, 20))
        await check_conservation(client, batch, lines)
        errors = await lines_of(client, batch.error_file_id)
        output = await lines_of(client, batch.output_file_id)
    assert batch.status == "expired"
    assert [line.custom_id for line in output] == [str(line["custom_id"]) for line in lines[::2]]
    assert {line.error.code for line in errors if line.error is not None} == {"batch_expired"}
    assert len(errors) == 20


def has_completed(batch: Batch, lines: int) -> bool:
    return batch.request_counts is not None and batch.request_counts.completed == lines


async def test_embeddings_of_a_real_model_that_its_server_does_not_list(peers: Stack) -> None:
    await is_served(peers, EMBEDDINGS)
    inputs = [["a cat", "a kitten", "the stock exchange"], "a cat", *[f"text {n}" for n in range(40)]]
    lines: list[dict[str, object]] = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": EMBEDDINGS, "input": text},
        }
        for number, text in enumerate(inputs)
    ]
    async with peers.client() as client:
        batch = await submit(client, lines, endpoint="/v1/embeddings")
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, lines)
        output = await lines_of(client, batch.output_file_id)
    assert (batch.status, len(output)) == ("completed", len(lines))
    cat, kitten, exchange = vectors(output[0])
    assert closeness(cat, kitten) > closeness(cat, exchange)
    assert vectors(output[1]) == [cat]


def vectors(line: ResultLine) -> list[list[float]]:
    extra = answered(line).model_extra
    assert extra is not None
    return [item["embedding"] for item in extra["body"]["data"]]


def closeness(one: list[float], other: list[float]) -> float:
    def length(vector: list[float]) -> float:
        return sqrt(sum(x * x for x in vector))

    return sum(x * y for x, y in zip(one, other, strict=True)) / length(one) / length(other)
