"""Runs batches against a real inference engine with a small random model, on an embedded stack.

`python -m bench.engines ENGINE` sends direct calls to the engine, first without a batch and then while a
batch runs. A direct call is a request that is not part of the batch. With `--interactive`, the API receives
the calls and forwards them to the engine. With `--clients`, the calls are also measured beside plain clients
in place of the batch. The machine should have no other load.

The program measures several values of the backend's setting `in_flight`. For each value, the program prints
how long the calls take. It also prints which fraction of the slots without direct calls the batch or the
clients use.

ENGINE is `transformers` or `llamacpp`. In `transformers serve`, a step of 16 requests takes nearly as long
as a step of one request, as on a GPU. In llama.cpp's server on a CPU, each request slows the other requests.
`make .venv/.tools/ENGINE/.installed` installs an engine.
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import count, islice
from pathlib import Path
from statistics import mean
from typing import NamedTuple, Protocol

import httpx

from batchwright.starter.client import Client
from bench import batches
from bench.stack import running_stack, wait_until_quiet
from tests.guard import start_guard
from tests.peers.servers import Peer, continuous, llamacpp

_SEED = 7
_BATCH_LINES = 2_000
_SPREAD = 0.5  # sigma of the lognormal lengths of responses
_RAMP_SECONDS, _SAMPLE_SECONDS, _IDLE_SECONDS = 5.0, 0.2, 60.0
_PROCESSING = re.compile(r"^(?:llamacpp:)?requests_processing (\d+)$", re.MULTILINE)


class _Start(Protocol):
    def __call__(self, folder: Path, name: str, *, slots: int) -> AbstractContextManager[Peer]: ...


class _Kind(NamedTuple):
    """An engine that can be measured.

    Attributes:
        start: context manager that runs the engine. Its arguments are a folder and the name of the model.
        slots: number of requests that the engine processes at once.
        in_flight: values to measure of the backend's setting `in_flight` (maximum number of a worker's
            requests in flight).
        arrivals: direct calls per second.
        tokens: median length of a response in tokens.
        options: additional fields of all request bodies. They make each response as long as `max_tokens`.
    """

    start: _Start
    slots: int
    in_flight: Sequence[int]
    arrivals: float
    tokens: int
    options: dict[str, object]


_KINDS = {
    "transformers": _Kind(continuous, 16, (11, 12, 16), 1.75, 40, {}),
    "llamacpp": _Kind(llamacpp, 8, (4, 6, 7, 8), 3.0, 300, {"ignore_eos": True}),
}


class _Engine(NamedTuple):
    """A running engine. `in_flight` is the setting of this backend in the registry file."""

    kind: _Kind
    model: str
    peer: Peer
    in_flight: int


class _Direct(NamedTuple):
    """The measured values of direct calls.

    Attributes:
        p50, p95: percentiles of the durations in seconds.
        at_once: mean number of direct calls in flight.
        busy: mean number of busy slots of the engine.
    """

    p50: float
    p95: float
    at_once: float
    busy: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=_KINDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=50.0, help="of direct calls in each run")
    parser.add_argument(
        "--interactive", action="store_true", help="send the calls through the API, which passes them on"
    )
    parser.add_argument("--clients", type=int, default=0, help="measure beside so many plain clients, too")
    parser.add_argument("--in-flight", type=int, nargs="+", help="measure these values of in_flight")
    options = parser.parse_args()
    start_guard()  # before the servers start
    kind = _KINDS[options.engine]
    if options.in_flight:
        kind = kind._replace(in_flight=options.in_flight)
    with tempfile.TemporaryDirectory(prefix="batchwright-bench-", ignore_cleanup_errors=True) as name:
        _direct(kind, Path(name), options)


def _direct(kind: _Kind, folder: Path, options: argparse.Namespace) -> None:
    """Print how long direct calls take, and which fraction of the slots without direct calls a batch uses.

    If `options.interactive` is True, the calls are sent through the API. The workers then use fewer slots, so
    that the calls find free slots. If `options.clients` is not 0, the calls are also measured beside this
    number of plain clients. Each client sends its next request when it has received a response.
    """
    interactive, seconds = options.interactive, options.seconds
    print(
        f"{'interactive' if interactive else 'direct'} calls, {kind.arrivals:g} a second, {kind.slots} slots"
    )
    settings = {"BATCHWRIGHT_INTERACTIVE_PASSTHROUGH": str(interactive).lower()}
    with ExitStack() as running:
        engines = [_start(running, kind, folder, limit) for limit in kind.in_flight]
        stack = running.enter_context(
            running_stack(folder / "direct", _registry(folder, engines), in_flight=64, settings=settings)
        )
        with Client(stack.api) as client:
            files = [_upload(client, folder, engine) for engine in engines]
            for number in range(1, options.rounds + 1):
                for engine, file_id in zip(engines, files, strict=True):
                    url = stack.api if interactive else engine.peer.url
                    wait_until_quiet(stack)
                    _wait_until_idle(engine)
                    alone = asyncio.run(_direct_calls(engine, url, seconds))
                    batch = batches.create(client, file_id)
                    time.sleep(_RAMP_SECONDS)
                    beside = asyncio.run(_direct_calls(engine, url, seconds))
                    client.cancel(batch.id)
                    begin = f"round {number} | in_flight {engine.in_flight}"
                    print(f"{begin} | a batch | {_compared(engine, alone, beside)}", flush=True)
                    if options.clients:
                        _wait_until_idle(engine)
                        beside = asyncio.run(_direct_calls(engine, url, seconds, clients=options.clients))
                        print(
                            f"{begin} | {options.clients} clients | {_compared(engine, alone, beside)}",
                            flush=True,
                        )


def _compared(engine: _Engine, alone: _Direct, beside: _Direct) -> str:
    used = (beside.busy - beside.at_once) / (engine.kind.slots - beside.at_once)
    return (
        f"p95 alone {alone.p95:.3f} s, beside {beside.p95:.3f} s | ratio {beside.p95 / alone.p95:.2f} "
        f"| of p50 {beside.p50 / alone.p50:.2f} | calls at once {alone.at_once:.1f}, {beside.at_once:.1f} "
        f"| rest used {used:.2f}"
    )


def _start(running: ExitStack, kind: _Kind, folder: Path, in_flight: int) -> _Engine:
    model = f"beside-{in_flight}"
    peer = running.enter_context(kind.start(folder, model, slots=kind.slots))
    peer.wait()
    engine = _Engine(kind, model, peer, in_flight)
    body = _body(engine, 0, tokens=1)  # the first call waits for the engine to prepare itself
    httpx.post(f"{peer.url}{batches.ENDPOINT}", json=body, trust_env=False, timeout=60).raise_for_status()
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


def _upload(client: Client, folder: Path, engine: _Engine) -> str:
    """Upload an input file. Return the id of the file.

    The file has so many lines that its batch runs longer than the direct calls.
    """
    path = folder / "input.jsonl"
    bodies = _bodies(engine, random.Random(_SEED + 1))
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": batches.ENDPOINT, "body": body}
        for number, body in enumerate(islice(bodies, _BATCH_LINES))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return batches.upload(client, path)


def _body(engine: _Engine, number: int, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"{number} is a question"}]
    return {"model": engine.model, "messages": messages, "max_tokens": tokens, **engine.kind.options}


def _bodies(engine: _Engine, lengths: random.Random) -> Iterator[dict[str, object]]:
    for number in count():
        yield _body(engine, number, round(engine.kind.tokens * lengths.lognormvariate(0.0, _SPREAD)))


def _wait_until_idle(engine: _Engine) -> None:
    """Wait until no slot is busy, because an engine can still process requests of a cancelled batch.

    Raises:
        AssertionError: a slot was still busy after a minute.
    """
    until = time.monotonic() + _IDLE_SECONDS
    while _processing(httpx.get(f"{engine.peer.url}/metrics", trust_env=False)):
        assert time.monotonic() < until, f"{engine.model} is busy"
        time.sleep(_SAMPLE_SECONDS)


def _processing(metrics: httpx.Response) -> int:
    found = _PROCESSING.search(metrics.text)
    assert found is not None
    return int(found[1])


async def _direct_calls(engine: _Engine, url: str, seconds: float, *, clients: int = 0) -> _Direct:
    """Send calls to `url` for `seconds`, at random times with a fixed mean rate. Return the measured values.

    Each run for the same kind of engine sends the same calls at the same times.

    Args:
        clients: number of plain clients that send requests directly to the engine, from a few seconds before
            the first call until the last response.
    """
    busy: list[int] = []

    async def call(due: float, body: dict[str, object]) -> float:
        await asyncio.sleep(due)
        response = await http.post(f"{url}{batches.ENDPOINT}", json=body)
        response.raise_for_status()
        return time.perf_counter() - began - due

    async def sample() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            busy.append(_processing(await http.get("/metrics")))

    async def client(bodies: Iterator[dict[str, object]]) -> None:
        while True:
            (await http.post(batches.ENDPOINT, json=next(bodies))).raise_for_status()

    async with httpx.AsyncClient(base_url=engine.peer.url, trust_env=False, timeout=60.0) as http:
        bodies = _bodies(engine, random.Random(_SEED + 1))
        background = [asyncio.create_task(client(bodies)) for _ in range(clients)]
        if clients:
            await asyncio.sleep(_RAMP_SECONDS)
        began = time.perf_counter()
        background.append(asyncio.create_task(sample()))
        calls = zip(
            _arrivals(engine.kind.arrivals, seconds), _bodies(engine, random.Random(_SEED)), strict=False
        )
        took = sorted(await asyncio.gather(*(call(*each) for each in calls)))
        lasted = time.perf_counter() - began
        for task in background:
            task.cancel()
    return _Direct(took[len(took) // 2], took[int(len(took) * 0.95)], sum(took) / lasted, mean(busy))


def _arrivals(rate: float, seconds: float) -> Iterator[float]:
    generator, due = random.Random(_SEED), 0.0
    while (due := due + generator.expovariate(rate)) < seconds:
        yield due


if __name__ == "__main__":
    main()
