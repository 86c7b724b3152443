"""Fake OpenTelemetry collector. It receives spans over HTTP and keeps them in memory."""

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Event:
    name: str
    attributes: dict[str, str | int]


@dataclass(frozen=True)
class Spanned:
    """A span that the collector received. Ids are hexadecimal. `parent` is empty for a root span."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, str | int]
    error: str
    events: list[Event]
    links: list[str]  # ids of spans
    has_failed: bool


@dataclass
class Collector:
    url: str
    status: int = 200  # of its answers
    headers: dict[str, str] = field(default_factory=dict[str, str])  # of the last request
    spans: list[Spanned] = field(default_factory=list[Spanned])

    def named(self, name: str) -> list[Spanned]:
        return [span for span in self.spans if span.name == name]

    def of(self, batch_id: str) -> list[Spanned]:
        """Return the received spans that belong to this batch (their attribute is `batch.id`)."""
        return [span for span in self.spans if span.attributes.get("batch.id") == batch_id]

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = str(_attributes(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [_spanned(service, span) for span in scope.spans]


@contextmanager
def collector() -> Generator[Collector]:
    """Context manager that runs a collector on a free port, yields it, and stops it at the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            running.headers = {name.lower(): value for name, value in self.headers.items()}
            if running.status == 200 and self.path == "/v1/traces":
                running.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(running.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()


def _spanned(service: str, span: trace_pb2.Span) -> Spanned:
    return Spanned(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        error=span.status.message,
        events=[Event(event.name, _attributes(event.attributes)) for event in span.events],
        links=[link.span_id.hex() for link in span.links],
        has_failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, str | int]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in pairs}
