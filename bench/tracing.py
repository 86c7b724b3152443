"""`python -m bench.tracing`: CPU of a request with and without traces, everything else left away."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Answer, Engine, Request, Target
from batchwright.settings import Settings, load
from batchwright.telemetry import tracing
from batchwright.telemetry.context import about
from batchwright.telemetry.metrics import Metrics

_REQUESTS, _ROUNDS = 20_000, 5
_AT_ONCE = 64
_BATCH = "batch_0199a0b0c0d070008000000000000001"
_TARGET = Target.of("http://127.0.0.1:1/v1/chat/completions")


class _Instant(Engine):
    async def exchange(self, request: Request, *, most_bytes: int, seconds: float) -> Answer:
        await asyncio.sleep(0)
        return Answer(200, {}, b'{"choices":[]}')

    async def retire(self) -> None: ...
    async def aclose(self) -> None: ...


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def main() -> None:
    if sys.argv[1:] == ["collector"]:
        return _collect()
    with _collector() as url:
        cases: dict[str, dict[str, object]] = {
            "off": {},
            "on": {"otel_exporter_otlp_endpoint": url},
            "on, a span for 1 request in 100": {
                "otel_exporter_otlp_endpoint": url,
                "trace_request_ratio": 0.01,
            },
            "on, trace not kept": {
                "otel_exporter_otlp_endpoint": url,
                "otel_traces_sampler": "always_off",
            },
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        metrics = {name: Metrics() for name in cases}
        for _ in range(_ROUNDS):  # in turns, so that what else the machine does meets all of them
            for name, overrides in cases.items():
                found[name].append(asyncio.run(_measure(load(**overrides), metrics[name])))
        for name, rounds in found.items():
            print(f"{name:32} {min(rounds):6.1f} us of CPU a request, {_lost(metrics[name])} spans lost")


async def _measure(settings: Settings, metrics: Metrics) -> float:
    """CPU time of all threads of the process, in microseconds a request; sending the spans is part of it."""
    client = InferenceClient(_Instant(), settings)
    async with tracing.tracing(settings, "bench", metrics):
        spans = tracing.spans()
        started = time.process_time()
        with about(batch_id=_BATCH, tenant="t", model="m"):
            if spans is None:
                await _send_all(client)
            else:
                with spans.activity("run_slice", _BATCH, {}):
                    await _send_all(client)
                await asyncio.to_thread(spans.flush)
        return (time.process_time() - started) / _REQUESTS * 1e6


async def _send_all(client: InferenceClient) -> None:
    for _ in range(_REQUESTS // _AT_ONCE):
        await asyncio.gather(*(client.send(_TARGET, b"{}", "batch_req_1") for _ in range(_AT_ONCE)))


def _lost(metrics: Metrics) -> int:
    return round(sum(sample.value for family in metrics.spans_dropped.collect() for sample in family.samples
                     if sample.name.endswith("_total")))  # fmt: skip


@contextmanager
def _collector() -> Generator[str]:
    """In a process of its own, whose CPU does not count."""
    command = [sys.executable, "-m", "bench.tracing", "collector"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _collect() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
