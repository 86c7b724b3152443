"""Section of the benchmark: CPU time of a request with and without tracing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.transport.base import BackendRequest, BackendResponse, TargetUrl, Transport
from batchwright.settings import Settings, load
from batchwright.telemetry import tracing
from batchwright.telemetry.context import bind_fields
from batchwright.telemetry.metrics import Metrics
from bench.results import Figure
from bench.section import Section, SectionOptions

_REQUESTS, _AT_ONCE = 20_000, 64
_SECONDS = 45.0
_BATCH = "batch_0199a0b0c0d070008000000000000001"
_TARGET = TargetUrl.of("http://127.0.0.1:1/v1/chat/completions")


class _Instant(Transport):
    async def exchange(self, request: BackendRequest, *, max_bytes: int, seconds: float) -> BackendResponse:
        await asyncio.sleep(0)
        return BackendResponse(200, {}, b'{"choices":[]}')

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


def measure(options: SectionOptions) -> list[Figure]:
    """Measure the CPU time of a request with four settings for tracing.

    The settings are measured alternately, so that other load on the machine affects all of them in the same
    way.
    """
    requests = options.size(_REQUESTS, 1_000)
    with _collector() as url:
        cases: dict[str, tuple[str, dict[str, object]]] = {
            "off": ("tracing off", {}),
            "on": ("a span for each request", {"otel_exporter_otlp_endpoint": url}),
            "hundredth": (
                "a span for 1 request in 100",
                {"otel_exporter_otlp_endpoint": url, "trace_request_ratio": 0.01},
            ),
            "unsampled": (
                "a trace that is not kept",
                {"otel_exporter_otlp_endpoint": url, "otel_traces_sampler": "always_off"},
            ),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        metrics = {name: Metrics() for name in cases}
        for number in options.turns(_SECONDS):
            for name, (_, overrides) in cases.items():
                found[name].append(asyncio.run(_measure(load(**overrides), metrics[name], requests)))
            last = {name: round(rounds[-1], 1) for name, rounds in found.items()}
            options.report(f"round {number}: {last} us of CPU a request")
    lost = sum(_lost(metrics[name]) for name in cases)
    figures = [
        Figure(f"tracing.{name}", f"CPU a request, {what}", found[name], "us")
        for name, (what, _) in cases.items()
    ]
    return [*figures, Figure("tracing.lost", "spans lost", [lost])]


async def _measure(settings: Settings, metrics: Metrics, requests: int) -> float:
    """Send `requests` requests. Return the CPU time of all threads per request, in microseconds.

    The time includes the export of the trace spans.
    """
    client = InferenceClient(_Instant(), settings)
    async with tracing.open_tracing(settings, "bench", metrics):
        spans = tracing.spans()
        started = time.process_time()
        with bind_fields(batch_id=_BATCH, tenant="t", model="m"):
            if spans is None:
                await _send_all(client, requests)
            else:
                with spans.activity("run_slice", _BATCH, {}):
                    await _send_all(client, requests)
                await asyncio.to_thread(spans.flush)
        return (time.process_time() - started) / requests * 1e6


async def _send_all(client: InferenceClient, requests: int) -> None:
    for _ in range(requests // _AT_ONCE):
        await asyncio.gather(*(client.send(_TARGET, b"{}", "batch_req_1") for _ in range(_AT_ONCE)))


def _lost(metrics: Metrics) -> int:
    return round(sum(sample.value for family in metrics.spans_dropped.collect() for sample in family.samples
                     if sample.name.endswith("_total")))  # fmt: skip


@contextmanager
def _collector() -> Generator[str]:
    """Context manager that starts a trace collector in its own process, and yields the URL of the collector.

    The CPU time of the collector is therefore not measured.
    """
    command = [sys.executable, "-c", "from bench.sections.tracing import collect; collect()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def collect() -> None:
    """Serve a trace collector that accepts everything, until the process is ended. Print its URL first."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


SECTION = Section(
    "tracing",
    "What traces cost",
    "20,000 requests through the HTTP client over a transport that answers at once, 64 at a time, spans sent "
    "to a collector on this machine; CPU time of all threads.",
    0.8,
    measure,
    on_the_page=False,
)
