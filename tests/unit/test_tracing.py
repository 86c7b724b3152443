"""Traces: what they cost when they are off, and a collector that fails."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Target
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.settings import Settings, SettingsError, load
from batchwright.telemetry import export, tracing
from batchwright.telemetry.context import about
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.spans import Spans
from batchwright.telemetry.tracing import tracing as tracing_on
from tests.fakes.collector import Collector, collector

pytestmark = pytest.mark.integration

BATCH = "batch_0199a0b0c0d070008000000000000001"
TARGET = Target.of("http://gpu:8000/v1/chat/completions?key=in-the-query")


@pytest.fixture
def taken() -> Iterator[Collector]:
    with collector() as taken:
        yield taken


@pytest.fixture(autouse=True)
def _no_sender_is_left() -> Iterator[None]:
    """Once its collector is gone, a thread that sends spans ends, whatever it had not sent."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("OtelBatch"):
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def settings_for(taken: Collector, **more: object) -> Settings:
    return load(otel_exporter_otlp_endpoint=taken.url, backend_api_key="sk-secret-of-ours", **more)


def on() -> Spans:
    spans = tracing.spans()
    assert spans is not None
    return spans


def dropped(metrics: Metrics, reason: str) -> float:
    return metrics.spans_dropped.labels(reason).value


async def test_without_a_collector_there_are_no_spans(metrics: Metrics) -> None:
    async with tracing_on(load(), "test", metrics):
        assert tracing.spans() is None


def test_without_a_collector_the_sdk_is_not_even_imported() -> None:
    # FastAPI brings OpenTelemetry's interface, which does nothing by itself; workers have not even that.
    code = (
        "import sys, worker.main; assert 'opentelemetry' not in sys.modules;"
        "import api.__main__; print('opentelemetry.sdk' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize(("name", "value"), [("otel_sdk_disabled", True), ("otel_traces_exporter", "none")])
def test_the_switches_of_opentelemetry_turn_traces_off(taken: Collector, name: str, value: object) -> None:
    assert settings_for(taken).traces_url == taken.url + "/v1/traces"
    assert settings_for(taken, **{name: value}).traces_url == ""


def test_a_collector_may_have_a_url_for_traces_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://otel/in/v1/traces")
    assert load().traces_url == "https://otel/in/v1/traces"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "otel:4317"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
    ],
)
def test_a_wrong_setting_of_opentelemetry_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=f"^{variable} is wrong"):
        load()


async def test_workers_agree_on_the_trace_of_a_batch_that_nobody_traced_before(
    taken: Collector, metrics: Metrics
) -> None:
    for worker in ("one", "two"):
        async with tracing_on(settings_for(taken), worker, metrics):
            with about(batch_id=BATCH), on().activity("run_slice", BATCH, {}):
                if worker == "two":
                    on().batch_ended("", total=3)
    [root] = taken.named("process-batch")
    assert {span.parent for span in taken.named("run_slice")} == {root.id}
    assert {span.trace for span in taken.named("run_slice")} == {root.trace}
    assert root.parent == ""
    assert root.start == 0x0199A0B0C0D0 * 1_000_000


async def test_a_callers_decision_not_to_trace_holds_on_every_worker(
    taken: Collector, metrics: Metrics
) -> None:
    not_sampled = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
    async with tracing_on(settings_for(taken), "test", metrics):
        with about(batch_id=BATCH), on().activity("run_slice", BATCH, not_sampled):
            with on().request(b"/v1/x", "gpu", 80, "req") as request:
                assert request.headers[0][1].endswith(b"-00")
            on().batch_ended("")
    assert taken.spans == []


async def test_the_share_of_traces_is_the_same_for_all_spans_of_a_batch(
    taken: Collector, metrics: Metrics
) -> None:
    settings = settings_for(
        taken, otel_traces_sampler="parentbased_traceidratio", otel_traces_sampler_arg=0.5
    )
    batches = [f"batch_{number:032x}" for number in range(40)]
    async with tracing_on(settings, "test", metrics):
        for batch in batches:
            with about(batch_id=batch), on().activity("ingest", batch, {}):
                on().batch_ended("")
    roots = {span.id for span in taken.named("process-batch")}
    assert {span.parent for span in taken.named("ingest")} == roots
    assert 5 < len(roots) < 35


async def test_requests_without_a_span_of_their_own_name_the_slices(
    taken: Collector, metrics: Metrics
) -> None:
    async with tracing_on(settings_for(taken, trace_request_ratio=0.0), "test", metrics):
        with about(batch_id=BATCH), on().activity("run_slice", BATCH, {}):
            slice_id = on().ids()["span_id"]
            with on().request(b"/v1/x", "gpu", 80, "req") as request:
                assert slice_id.encode() in request.headers[0][1]
    assert [span.name for span in taken.spans] == ["run_slice"]


def backend() -> HttpxEngine:
    def answer(request: httpx.Request) -> httpx.Response:
        match request.headers["x-request-id"]:
            case "refused":
                raise httpx.ConnectError("no route with sk-secret-of-ours")
            case "busy":
                return httpx.Response(503, text="body-of-the-answer")
            case _:
                return httpx.Response(200, json={"of": "body-of-the-answer"})

    return HttpxEngine(httpx.MockTransport(answer), connect_seconds=1)


async def test_requests_tell_their_outcome_and_neither_bodies_nor_secrets(
    taken: Collector, metrics: Metrics
) -> None:
    settings = settings_for(taken)
    client = InferenceClient(backend(), settings)
    async with tracing_on(settings, "test", metrics):
        with about(batch_id=BATCH, model="m"), on().activity("run_slice", BATCH, {}):
            for request_id in ("fine", "busy", "refused"):
                await client.send(TARGET, b"body-of-the-request", request_id)
    requests = taken.named("POST /v1/chat/completions")
    told = {
        str(span.attributes["batchwright.request.id"]): (
            span.attributes.get("http.response.status_code"),
            span.attributes.get("error.type"),
            span.error,
        )
        for span in requests
    }
    assert told == {
        "fine": (200, None, ""),
        "busy": (503, "503", "The backend answered 503."),
        "refused": (None, "transport", "The backend could not be reached: no route with ***"),
    }
    for secret in ("sk-secret-of-ours", "body-of-the", "in-the-query"):
        assert secret not in repr(taken.spans)


async def test_what_an_activity_raises_is_on_its_span_without_secrets(
    taken: Collector, metrics: Metrics
) -> None:
    async with tracing_on(settings_for(taken), "test", metrics):
        with about(batch_id=BATCH), on().activity("ingest", BATCH, {}) as span:
            on().failed(OSError("postgresql://user:hunter22@db is away"), span)
    [span] = taken.named("ingest")
    [event] = span.events
    assert event.attributes == {
        "exception.type": "OSError",
        "exception.message": "postgresql://user:***@db is away",
    }
    assert span.error == "OSError: postgresql://user:***@db is away"


async def test_a_collector_that_refuses_costs_spans_and_one_warning(
    taken: Collector, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    taken.status = 400
    async with tracing_on(settings_for(taken), "test", metrics):
        for _ in range(3):
            with on().activity("ingest", BATCH, {}):
                pass
            await asyncio.to_thread(on().flush)
    assert dropped(metrics, "export") == 3
    assert [record.getMessage() for record in caplog.records] == ["spans cannot be sent"]
    assert "400" in vars(caplog.records[0])["error"]


async def test_spans_that_come_too_fast_are_dropped_and_counted(
    taken: Collector, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_MOST_WAITING", 10)
    monkeypatch.setattr(export, "_BATCH", 5)
    async with tracing_on(settings_for(taken), "test", metrics):
        for _ in range(25):
            with on().activity("ingest", BATCH, {}):
                pass
    assert len(taken.spans) + dropped(metrics, "queue") == 25
    assert len(taken.spans) >= 10


async def test_the_end_of_a_process_does_not_wait_for_a_collector_that_is_away(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(export, "_CLOSE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with tracing_on(load(otel_exporter_otlp_endpoint=url), "test", metrics):
            with on().activity("ingest", BATCH, {}):
                pass
    assert "the last spans were not sent in time" in caplog.text
