"""Runs batches against llama.cpp's own server with a tiny random model, on an embedded stack.

`python -m bench.llamacpp` measures calls that are sent directly to the server, first without a batch and then
while a batch runs. With `--interactive`, the calls are sent through the API, which passes them on. For
several values of `in_flight`, it prints the durations of the calls. It also prints which share of the slots
without a call is used by the batch. The machine should have no other load.
`make .venv/.tools/llamacpp/.installed` installs the server.
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import httpx

from batchwright.starter.client import Client
from bench import batches
from bench.stack import running_stack, wait_until_quiet
from tests.guard import start_guard
from tests.peers.servers import Peer, llamacpp

_SLOTS = 8
_BATCH_IN_FLIGHT = (4, 6, 7, 8)
_ARRIVALS = 3.0  # direct calls per second
_DIRECT_TOKENS, _BATCH_TOKENS, _BATCH_LINES = 300, 400, 6_000
_RAMP_SECONDS, _SAMPLE_SECONDS = 5.0, 0.1
_PROCESSING = re.compile(r"^llamacpp:requests_processing (\d+)$", re.MULTILINE)


class _Engine(NamedTuple):
    """A llama.cpp server that serves one model, and the limit on the requests that workers send to it.

    Attributes:
        in_flight: maximum number of requests that all workers together may have in flight to the server. It
            is set in the registry file, and is different for each server of the benchmark.
    """

    model: str
    peer: Peer
    in_flight: int


class _Direct(NamedTuple):
    """Direct calls: their 95th percentile and their sum in seconds, and the mean number of busy slots."""

    p95: float
    total: float
    busy: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=50.0, help="of direct calls in each run")
    parser.add_argument(
        "--interactive", action="store_true", help="send the calls through the API, which passes them on"
    )
    options = parser.parse_args()
    start_guard()  # before the servers start
    with tempfile.TemporaryDirectory(prefix="batchwright-bench-", ignore_cleanup_errors=True) as name:
        _direct(Path(name), options.rounds, options.seconds, interactive=options.interactive)


def _direct(folder: Path, rounds: int, seconds: float, *, interactive: bool) -> None:
    """Print the 95th percentile of the durations of direct calls, and which share of the slots without a
    direct call is used by a batch.

    If `interactive` is True, the calls are sent through the API, and workers leave free what they need.
    """
    print(f"{'interactive' if interactive else 'direct'} calls, {_ARRIVALS:g} a second, {_SLOTS} slots")
    settings = {"BATCHWRIGHT_INTERACTIVE_PASSTHROUGH": str(interactive).lower()}
    with ExitStack() as running:
        engines = [
            _Engine(f"beside-{limit}", _start(running, folder, f"beside-{limit}"), limit)
            for limit in _BATCH_IN_FLIGHT
        ]
        stack = running.enter_context(
            running_stack(folder / "direct", _registry(folder, engines), in_flight=64, settings=settings)
        )
        with Client(stack.api) as client:
            for number in range(1, rounds + 1):
                for engine in engines:
                    url = stack.api if interactive else engine.peer.url
                    wait_until_quiet(stack)
                    alone = asyncio.run(_direct_calls(engine, url, seconds))
                    file_id = _upload(client, folder, _long_lines(engine.model))
                    batch = batches.create(client, file_id)
                    time.sleep(_RAMP_SECONDS)
                    beside = asyncio.run(_direct_calls(engine, url, seconds))
                    client.cancel(batch.id)
                    direct = beside.total / seconds  # mean number of slots with direct calls
                    used = (beside.busy - direct) / (_SLOTS - direct)
                    print(
                        f"round {number} | in_flight {engine.in_flight} | p95 alone {alone.p95:.3f} s, "
                        f"beside {beside.p95:.3f} s | ratio {beside.p95 / alone.p95:.2f} "
                        f"| rest used {used:.2f}",
                        flush=True,
                    )


def _start(running: ExitStack, folder: Path, model: str) -> Peer:
    engine = running.enter_context(llamacpp(folder, model, slots=_SLOTS))
    engine.wait()
    return engine


def _registry(folder: Path, engines: Sequence[_Engine]) -> Path:
    """Write the registry file of a stack with these servers, and return its path."""
    path = folder / "registry.json"
    models = {
        engine.model: {"backends": [{"url": engine.peer.url, "in_flight": engine.in_flight}]}
        for engine in engines
    }
    path.write_text(json.dumps({"models": models}))
    return path


def _upload(client: Client, folder: Path, lines: Sequence[dict[str, object]]) -> str:
    path = folder / "input.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return batches.upload(client, path)


def _long_lines(model: str) -> list[dict[str, object]]:
    bodies = (_body(model, number, _BATCH_TOKENS) for number in range(_BATCH_LINES))
    return [
        {"custom_id": f"line-{number}", "method": "POST", "url": batches.ENDPOINT, "body": body}
        for number, body in enumerate(bodies)
    ]


def _body(model: str, number: int, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"{number} is a question"}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}


async def _direct_calls(engine: _Engine, url: str, seconds: float) -> _Direct:
    """Send calls to `url` at random times with a fixed mean rate. Each run sends the same calls."""
    began = time.perf_counter()
    busy: list[int] = []

    async def call(number: int, due: float) -> float:
        await asyncio.sleep(due)
        response = await http.post(
            f"{url}{batches.ENDPOINT}", json=_body(engine.model, number, _DIRECT_TOKENS)
        )
        response.raise_for_status()
        return time.perf_counter() - began - due

    async def sample() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            found = _PROCESSING.search((await http.get("/metrics")).text)
            assert found is not None
            busy.append(int(found[1]))

    async with httpx.AsyncClient(base_url=engine.peer.url, trust_env=False, timeout=60.0) as http:
        sampling = asyncio.create_task(sample())
        took = sorted(await asyncio.gather(*(call(*due) for due in enumerate(_arrivals(seconds)))))
        sampling.cancel()
    return _Direct(took[int(len(took) * 0.95)], sum(took), mean(busy))


def _arrivals(seconds: float) -> Iterator[float]:
    generator, due = random.Random(7), 0.0
    while (due := due + generator.expovariate(_ARRIVALS)) < seconds:
        yield due


if __name__ == "__main__":
    main()
