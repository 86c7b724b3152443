"""Traces: their ids, their cost if tracing is off, and a collector that fails."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.transport.base import TargetUrl
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.settings import Settings, SettingsError, load
from batchwright.telemetry import span_export, tracing
from batchwright.telemetry.context import bind_fields
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.spans import Spans
from batchwright.telemetry.tracing import open_tracing as tracing_on
from tests.fakes.collector import Collector, collector

pytestmark = pytest.mark.integration

BATCH = "batch_0199a0b0c0d070008000000000000001"
TARGET = TargetUrl.of("http://gpu:8000/v1/chat/completions?key=in-the-query")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that receives all spans, even on a busy machine."""
    monkeypatch.setattr(span_export, "_CLOSE_SECONDS", 240.0)
    with collector() as taken:
        yield taken


@pytest.fixture(autouse=True)
def _no_sender_is_left() -> Iterator[None]:
    """Wait until the export thread has ended. It ends when the collector is closed."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("OtelBatch"):
            thread.join(240)
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
    # FastAPI imports OpenTelemetry's API, which does nothing by itself; workers do not even import that.
    code = (
        "import sys, batchwright.worker.main; assert 'opentelemetry' not in sys.modules;"
        "import batchwright.api.main; print('opentelemetry.sdk' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize(("name", "value"), [("otel_sdk_disabled", True), ("otel_traces_exporter", "none")])
def test_the_switches_of_opentelemetry_turn_traces_off(taken: Collector, name: str, value: object) -> None:
    assert settings_for(taken).traces_url == taken.url + "/v1/traces"
    assert settings_for(taken, **{name: value}).traces_url == ""


def test_a_collector_may_have_a_separate_url_for_traces(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_workers_use_the_same_trace_for_a_batch_without_one(taken: Collector, metrics: Metrics) -> None:
    for worker in ("one", "two"):
        async with tracing_on(settings_for(taken), worker, metrics):
            with bind_fields(batch_id=BATCH), on().activity("run_slice", BATCH, {}):
                if worker == "two":
                    on().record_batch("", total=3)
    [root] = taken.named("process-batch")
    assert {span.parent for span in taken.named("run_slice")} == {root.id}
    assert {span.trace for span in taken.named("run_slice")} == {root.trace}
    assert root.parent == ""
    assert root.start == 0x0199A0B0C0D0 * 1_000_000


async def test_the_sampling_decision_of_the_caller_applies_on_every_worker(
    taken: Collector, metrics: Metrics
) -> None:
    not_sampled = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
    async with tracing_on(settings_for(taken), "test", metrics):
        with bind_fields(batch_id=BATCH), on().activity("run_slice", BATCH, not_sampled):
            with on().request(b"/v1/x", "gpu", 80, "req") as request:
                assert request.headers[0][1].endswith(b"-00")
            on().record_batch("")
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
            with bind_fields(batch_id=batch), on().activity("ingest", batch, {}):
                on().record_batch("")
    roots = {span.id for span in taken.named("process-batch")}
    assert {span.parent for span in taken.named("ingest")} == roots
    assert 5 < len(roots) < 35


async def test_requests_without_a_span_of_their_own_name_the_slices(
    taken: Collector, metrics: Metrics
) -> None:
    async with tracing_on(settings_for(taken, trace_request_ratio=0.0), "test", metrics):
        with bind_fields(batch_id=BATCH), on().activity("run_slice", BATCH, {}):
            slice_id = on().current_ids()["span_id"]
            with on().request(b"/v1/x", "gpu", 80, "req") as request:
                assert slice_id.encode() in request.headers[0][1]
    assert [span.name for span in taken.spans] == ["run_slice"]


def backend() -> HttpxTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        match request.headers["x-request-id"]:
            case "refused":
                raise httpx.ConnectError("no route with sk-secret-of-ours")
            case "busy":
                return httpx.Response(503, text="body-of-the-answer")
            case _:
                return httpx.Response(200, json={"of": "body-of-the-answer"})

    return HttpxTransport(httpx.MockTransport(answer), connect_seconds=1)


async def test_spans_of_requests_have_the_outcome_and_neither_bodies_nor_secrets(
    taken: Collector, metrics: Metrics
) -> None:
    settings = settings_for(taken)
    client = InferenceClient(backend(), settings)
    async with tracing_on(settings, "test", metrics):
        with bind_fields(batch_id=BATCH, model="m"), on().activity("run_slice", BATCH, {}):
            for request_id in ("fine", "busy", "refused"):
                await client.send(TARGET, b"body-of-the-request", request_id)
    requests = taken.named("POST /v1/chat/completions")
    outcomes = {
        str(span.attributes["batchwright.request.id"]): (
            span.attributes.get("http.response.status_code"),
            span.attributes.get("error.type"),
            span.error,
        )
        for span in requests
    }
    assert outcomes == {
        "fine": (200, None, ""),
        "busy": (503, "503", "The backend answered 503."),
        "refused": (None, "transport", "The backend could not be reached: no route with ***"),
    }
    for secret in ("sk-secret-of-ours", "body-of-the", "in-the-query"):
        assert secret not in repr(taken.spans)


async def test_an_error_of_an_activity_is_on_its_span_without_secrets(
    taken: Collector, metrics: Metrics
) -> None:
    async with tracing_on(settings_for(taken), "test", metrics):
        with bind_fields(batch_id=BATCH), on().activity("ingest", BATCH, {}) as span:
            on().record_error(OSError("postgresql://user:hunter22@db is away"), span)
    [span] = taken.named("ingest")
    [event] = span.events
    assert event.attributes == {
        "exception.type": "OSError",
        "exception.message": "postgresql://user:***@db is away",
    }
    assert span.error == "OSError: postgresql://user:***@db is away"


async def test_spans_that_a_collector_refuses_are_dropped_with_one_warning(
    taken: Collector, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    taken.status = 400
    async with tracing_on(settings_for(taken), "test", metrics):
        for _ in range(3):
            with on().activity("ingest", BATCH, {}):
                pass
            await asyncio.to_thread(on().flush)
    assert dropped(metrics, "export") == 3
    assert [record.getMessage() for record in caplog.records] == ["spans cannot be exported"]
    assert "400" in vars(caplog.records[0])["error"]


async def test_spans_above_the_queue_size_are_dropped_and_counted(
    taken: Collector, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "_MAX_QUEUED_SPANS", 10)
    monkeypatch.setattr(span_export, "_EXPORT_BATCH_SIZE", 5)
    async with tracing_on(settings_for(taken), "test", metrics):
        for _ in range(25):
            with on().activity("ingest", BATCH, {}):
                pass
    assert len(taken.spans) + dropped(metrics, "queue") == 25
    assert len(taken.spans) >= 10


async def test_an_unresponsive_collector_delays_neither_spans_nor_the_end_of_a_process(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(span_export, "_CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(span_export, "_MAX_QUEUED_SPANS", 10)
    monkeypatch.setattr(span_export, "_EXPORT_BATCH_SIZE", 5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with tracing_on(load(otel_exporter_otlp_endpoint=url), "test", metrics):
            for _ in range(1000):
                with on().activity("ingest", BATCH, {}):
                    pass
            assert dropped(metrics, "queue") == 990
    assert "the last spans were not exported in time" in caplog.text
