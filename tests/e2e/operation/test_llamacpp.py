"""Batches with a real inference engine as backend: llama.cpp's own server with a tiny random model."""

import json
import re
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import pytest
from openai.types import Batch
from pydantic import BaseModel

from batchwright.starter.embedded_stack.ports import free_port
from tests.clients import get
from tests.constants import with_constants
from tests.e2e.batches import CHAT, ResultLine, check_conservation, ended, lines_of, settled, submit
from tests.e2e.features.test_registry import register
from tests.e2e.stack import Stack, dev
from tests.peers.prompt_reuse import computed_in_file_order, prompts
from tests.peers.servers import Peer, llamacpp

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL, MORTAL = "tiny", "tiny-mortal"
SLOTS = 4
EMBEDDINGS: Literal["/v1/embeddings"] = "/v1/embeddings"
# A turn that ends passes the prompts in the engine's slots on to other slices.
SETTINGS = {"BATCHWRIGHT_SLICE_SECONDS": "60", **with_constants(refresh_seconds=1)}


@pytest.fixture(scope="module")
def folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="batchwright-llamacpp-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Generator[Peer]:
    with llamacpp(folder, MODEL, slots=SLOTS) as engine:
        engine.wait()
        yield engine


@pytest.fixture(scope="module")
def stack(engine: Peer) -> Generator[Stack]:
    with dev("--backend", engine.url, data=None, **SETTINGS) as stack:
        yield stack


def chat(custom_id: str, content: str = "hello", **more: object) -> dict[str, object]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 400, **more}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


async def results(
    stack: Stack, lines: list[dict[str, object]], endpoint: Literal["/v1/chat/completions", "/v1/embeddings"]
) -> tuple[Batch, dict[str, ResultLine]]:
    """Run the lines as a batch, and return the batch and its result lines by custom id."""
    async with stack.client() as client:
        batch = await ended(client, (await submit(client, lines, endpoint=endpoint)).id)
        assert batch.status == "completed"
        await check_conservation(client, batch, lines)
        found = await lines_of(client, batch.output_file_id) + await lines_of(client, batch.error_file_id)
    return batch, {line.custom_id: line for line in found}


class Choice(BaseModel):
    class Message(BaseModel):
        content: str

    message: Message
    finish_reason: str


class Completion(BaseModel):
    """A response of llama.cpp; `timings` is its own addition to OpenAI's format."""

    class Usage(BaseModel):
        prompt_tokens: int
        completion_tokens: int

    class Timings(BaseModel):
        prompt_n: int
        cache_n: int
        predicted_n: int

    choices: list[Choice]
    usage: Usage
    timings: Timings

    @classmethod
    def of(cls, line: ResultLine) -> "Completion":
        return cls.model_validate(body_of(line, 200))

    @property
    def text(self) -> str:
        return self.choices[0].message.content


class EngineError(BaseModel):
    class Error(BaseModel):
        type: str
        message: str

    error: Error


def body_of(line: ResultLine, status: int) -> object:
    assert line.response is not None
    assert line.response.status_code == status
    assert line.response.model_extra is not None
    return line.response.model_extra["body"]


async def test_the_engines_chat_answers_and_its_own_fields_are_in_the_results(stack: Stack) -> None:
    lines = [chat(f"line-{n}", "x" * n, max_tokens=20, ignore_eos=True) for n in range(1, 31)]
    batch, found = await results(stack, lines, CHAT)
    answers = [Completion.of(line) for line in found.values()]
    assert len(answers) == 30
    for answer in answers:
        assert answer.usage.completion_tokens == answer.timings.predicted_n == 20
        assert answer.usage.prompt_tokens == answer.timings.prompt_n + answer.timings.cache_n
        assert answer.choices[0].finish_reason == "length"
        assert answer.text
    assert batch.usage is not None
    assert batch.usage.output_tokens == 30 * 20
    assert batch.usage.input_tokens_details.cached_tokens == sum(answer.timings.cache_n for answer in answers)


async def test_structured_output_has_the_schema_and_the_grammar_of_its_line(stack: Stack) -> None:
    properties = {"count": {"type": "integer"}, "kind": {"enum": ["cat", "dog"]}}
    schema = {"type": "object", "properties": properties, "required": ["count", "kind"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema}}
    lines = [
        *(chat(f"schema-{n}", f"pet {n}", response_format=response_format) for n in range(8)),
        *(chat(f"grammar-{n}", f"answer {n}", grammar='root ::= ("yes" | "no")') for n in range(8)),
    ]
    _, found = await results(stack, lines, CHAT)
    for number in range(8):
        pet = json.loads(Completion.of(found[f"schema-{number}"]).text)
        assert isinstance(pet["count"], int)
        assert pet["kind"] in ("cat", "dog")
        assert Completion.of(found[f"grammar-{number}"]).text in ("yes", "no")


async def test_lines_that_the_engine_refuses_fail_with_its_words_and_the_others_complete(
    stack: Stack,
) -> None:
    lines = [
        chat("good"),
        chat("too-long", "x" * 5_000),
        chat("bad-grammar", grammar="root ::= ("),
        chat("also-good"),
    ]
    batch, found = await results(stack, lines, CHAT)
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 2)
    assert Completion.of(found["good"]).text
    assert Completion.of(found["also-good"]).text
    too_long = EngineError.model_validate(body_of(found["too-long"], 400)).error
    assert too_long.type == "exceed_context_size_error"
    assert "exceeds the available context size (4096 tokens)" in too_long.message
    assert "grammar" in EngineError.model_validate(body_of(found["bad-grammar"], 400)).error.message


async def test_embeddings_of_the_engine_are_equal_for_equal_texts(stack: Stack) -> None:
    texts: list[str | list[str]] = ["a cat", "a dog", ["a cat", "a dog"], *(f"text {n}" for n in range(20))]
    lines: list[dict[str, object]] = [
        {
            "custom_id": f"line-{n}",
            "method": "POST",
            "url": EMBEDDINGS,
            "body": {"model": MODEL, "input": text},
        }
        for n, text in enumerate(texts)
    ]
    _, found = await results(stack, lines, EMBEDDINGS)
    [cat], [dog], pair = (vectors(found[f"line-{n}"]) for n in range(3))
    assert len(cat) == len(dog) == 128
    assert cat != dog
    assert pair == [pytest.approx(cat, abs=1e-4), pytest.approx(dog, abs=1e-4)]


class Embeddings(BaseModel):
    class Item(BaseModel):
        embedding: list[float]

    data: list[Item]


def vectors(line: ResultLine) -> list[list[float]]:
    return [item.embedding for item in Embeddings.model_validate(body_of(line, 200)).data]


@pytest.mark.parametrize("host_cache_mib", [0, 64], ids=["without host cache", "with host cache"])
async def test_the_engine_computes_few_system_prompts_again_with_and_without_its_host_cache(
    stack: Stack, folder: Path, host_cache_mib: int
) -> None:
    """If lines with the same system prompt are sent to a second slot of the engine, the prompt is computed
    again. This happens with a slice that arrives late, because no permit stays unused.

    On a quiet machine, the engine computes 1.2 times as many tokens as there are distinct ones. In the order
    of the file, it computes 1.5 times as many with the host cache, and 6 times as many without it.
    """
    model = f"tiny-{host_cache_mib}"
    with llamacpp(folder, model, "--host-cache-mib", str(host_cache_mib), slots=SLOTS) as engine:
        engine.wait()
        first = prompts(model, systems=8, each=10, seed=1)
        in_file_order = await computed_in_file_order(engine.url, first.lines, in_flight=SLOTS)
        second = prompts(model, systems=8, each=20, seed=2)
        await register(stack, model, {"url": engine.url, "in_flight": SLOTS})
        batch, _ = await results(stack, second.lines, CHAT)
    assert batch.usage is not None
    ours = batch.usage.input_tokens - batch.usage.input_tokens_details.cached_tokens
    if host_cache_mib:
        assert ours <= 2 * second.distinct_tokens
    else:
        assert ours / second.distinct_tokens <= 0.5 * in_file_order / first.distinct_tokens


async def test_a_batch_survives_the_crash_of_its_engine_and_no_settled_line_is_sent_again(
    stack: Stack, folder: Path
) -> None:
    port, tokens = free_port(), 1_000
    lines = [
        chat(f"line-{n}", f"text {n}", model=MORTAL, max_tokens=tokens, ignore_eos=True) for n in range(150)
    ]
    async with stack.client() as client:
        with llamacpp(folder, MORTAL, port=port, slots=SLOTS) as engine:
            engine.wait()
            await register(stack, MORTAL, {"url": engine.url, "in_flight": SLOTS})
            batch = await submit(client, lines)
            await settled(client, batch.id, least=5)
            engine.kill()
        before = (await client.batches.retrieve(batch.id)).request_counts
        assert before is not None
        assert before.completed < len(lines)
        with llamacpp(folder, MORTAL, port=port, slots=SLOTS) as engine:
            batch = await ended(client, batch.id)
            generated = metric(engine, "tokens_predicted_total")
        await check_conservation(client, batch, lines)
        output = await lines_of(client, batch.output_file_id)
    assert (batch.status, len(output)) == ("completed", len(lines))
    assert {Completion.of(line).usage.completion_tokens for line in output} == {tokens}
    assert generated <= (len(lines) - before.completed) * tokens


def metric(engine: Peer, name: str) -> int:
    found = re.search(rf"^llamacpp:{name} (\d+)$", get(f"{engine.url}/metrics").text, re.MULTILINE)
    assert found is not None
    return int(found[1])
