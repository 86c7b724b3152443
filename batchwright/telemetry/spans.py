"""Creates all spans of a trace: API calls, batches, activities, requests to backends, storage operations."""

import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from batchwright.settings import Settings
from batchwright.telemetry.context import FieldValue, current_fields
from batchwright.telemetry.redaction import Redactor, redactor_for
from batchwright.telemetry.span_export import PresetIdGenerator, SpanProvider
from batchwright.telemetry.trace_ids import ROOT_SPAN_NAME, BatchTrace, batch_created_ns, batch_trace

_W3C = TraceContextTextMapPropagator()
_ATTRIBUTE_NAMES = {
    "batch_id": "batch.id",
    "tenant": "tenant.id",
    "file_id": "file.id",
    "output_file_id": "batch.output_file.id",
    "error_file_id": "batch.error_file.id",
    "total": "batch.request.total",
    "completed": "batch.request.completed",
    "failed": "batch.request.failed",
    "model": "gen_ai.request.model",
}
_MAX_ERROR_CHARACTERS = 500
TraceHeaders = list[tuple[bytes, bytes]]


class _ActivityTrace(NamedTuple):
    """The trace of the current activity. The spans of requests are children of the activity's span.

    The trace is stored here, because finding the current span through OpenTelemetry is slow.
    """

    batch: BatchTrace
    span: Span
    context: Context
    headers: TraceHeaders


_activity: ContextVar[_ActivityTrace | None] = ContextVar("activity", default=None)


class Spans:
    """The creator of all trace spans of one process. `tracing.spans()` returns the instance."""

    def __init__(self, provider: SpanProvider, ids: PresetIdGenerator, settings: Settings) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("batchwright")
        self._sampler = provider.sampler
        self._ids = ids
        self._redact = redactor_for(settings)
        self._request_ratio = settings.trace_request_ratio

    # The current span

    def current_ids(self) -> Mapping[str, str]:
        """Return `trace_id` and `span_id` of the current span as log fields; empty if there is no span."""
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }

    def carrier(self) -> dict[str, str]:
        """Return HTTP headers that identify the current span (W3C Trace Context).

        The result is empty if there is no current span.
        """
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier

    def set_attributes(self, **fields: FieldValue) -> None:
        """Set attributes of the current span.

        The keys of `fields` are names of log fields. They are translated to attribute names.
        """
        trace.get_current_span().set_attributes(span_attributes(fields))

    def record_error(self, error: BaseException, span: Span | None = None) -> None:
        """Record the type and the redacted message of an error on a span.

        If `span` is None, use the current span.
        """
        span = span or trace.get_current_span()
        if span.is_recording():
            name, message = type(error).__name__, self._redact(str(error))[:_MAX_ERROR_CHARACTERS]
            span.add_event("exception", {"exception.type": name, "exception.message": message})
            span.set_status(StatusCode.ERROR, f"{name}: {message}")

    def flush(self) -> None:
        """Send the spans that wait to be sent, and block until they are sent."""
        self._provider.force_flush()

    # New spans

    @contextmanager
    def api_call(self, method: str, path: str, headers: Mapping[str, str]) -> Generator["ApiCallSpan"]:
        """Context manager that creates the trace span of an API request. Yields the span.

        The caller records the response in the span. If `headers` identify a trace of the client, the span
        belongs to this trace. Secrets in the path are replaced.
        """
        with self._tracer.start_as_current_span(
            method,
            context=_W3C.extract(headers, Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": self._redact(path)},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield ApiCallSpan(span, method)
            fields = span_attributes(current_fields())
            span.set_attributes({k: self._redact(v) if isinstance(v, str) else v for k, v in fields.items()})

    @contextmanager
    def activity(self, name: str, batch_id: str, carrier: Mapping[str, str]) -> Generator[Span]:
        """Context manager that creates the trace span of one attempt of an activity, as a child of the
        batch's span.

        Args:
            name: type of the activity.
            carrier: trace headers that came with the workflow; empty if the request that created the batch
                was not traced.
        """
        batch = batch_trace(batch_id, _W3C.extract(carrier, Context()), self._sampler)
        with self._tracer.start_as_current_span(
            name,
            context=batch.context,
            kind=SpanKind.CONSUMER,
            attributes=span_attributes(current_fields()),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            context = trace.set_span_in_context(span, Context())
            token = _activity.set(_ActivityTrace(batch, span, context, _trace_headers(span)))
            try:
                yield span
            finally:
                _activity.reset(token)

    def record_reenqueue(self, reason: str) -> None:
        """Record that the current attempt to send a slice (a part of a batch) has ended, but another follows.

        The record is a span in a new trace. This span has a link to the current span.

        Args:
            reason: why the current attempt has ended.
        """
        turn = trace.get_current_span()
        if turn.is_recording():
            attributes = span_attributes({**current_fields(), "reason": reason})
            links = [Link(turn.get_span_context())]
            self._tracer.start_span("re-enqueue", Context(), attributes=attributes, links=links).end()

    def record_batch(self, error: str, **fields: FieldValue) -> None:
        """Record the root span of the current batch, from the creation of the batch until now.

        Outside of an activity, nothing is recorded.

        Args:
            error: error message if the batch failed; empty if it did not.
            fields: attributes of the span, in addition to the current log fields.
        """
        current = _activity.get()
        if current is None:
            return
        batch = current.batch
        attributes = span_attributes({**current_fields(), **fields})
        created_ns = batch_created_ns(str(current_fields().get("batch_id", "")))
        with self._ids.preset(batch.root.trace_id, batch.root.span_id):
            span = self._tracer.start_span(
                ROOT_SPAN_NAME, batch.caller, attributes=attributes, start_time=created_ns
            )
        if error:
            span.set_status(StatusCode.ERROR, self._redact(error)[:_MAX_ERROR_CHARACTERS])
        span.end()

    def request(self, path: bytes, host: str, port: int, request_id: str) -> "RequestSpan":
        """Return the span of a request to a backend. It is a context manager to use around the request."""
        current = _activity.get()
        if current is None:
            return RequestSpan(None, [], self._redact)
        if not current.span.is_recording() or random.random() >= self._request_ratio:
            return RequestSpan(None, current.headers, self._redact)
        fields = current_fields()
        span = self._tracer.start_span(
            _span_name(path),
            current.context,
            kind=SpanKind.CLIENT,
            attributes={
                "http.request.method": "POST",
                "server.address": host,
                "server.port": port,
                "batch.id": fields.get("batch_id", ""),
                "gen_ai.request.model": fields.get("model", ""),
                "batchwright.request.id": request_id,
            },
        )
        return RequestSpan(span, _trace_headers(span), self._redact)

    def storage_operation(self, operation: str, component: str, key: str) -> Span | None:
        """Start the span of a storage operation and return it. The caller must end it.

        Return None if there is no current span, or if the current span is not recorded.

        Args:
            operation: kind of operation, such as `store`, for the name of the span.
            component: part of Batchwright that uses the storage.
            key: key of the object, or a prefix of keys.
        """
        if not trace.get_current_span().is_recording():
            return None
        attributes = {"batchwright.component": component, "batchwright.storage.key": key}
        name = f"storage.{operation.capitalize()}"
        return self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)


class ApiCallSpan:
    """The trace span of an API request. `record_response` adds the status and the route of the request."""

    def __init__(self, span: Span, method: str) -> None:
        self._span, self._method = span, method

    def record_response(self, status: int, route: str) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes({"http.response.status_code": status, "http.route": route})
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)


class RequestSpan:
    """Context manager for the trace span of a request to a backend.

    If sampling has not selected the request, there is no span.

    Attributes:
        headers: HTTP headers that identify the trace to the backend; empty if there is no trace.
    """

    __slots__ = ("_redact", "_span", "headers")

    def __init__(self, span: Span | None, headers: TraceHeaders, redact: Redactor) -> None:
        self._span, self.headers, self._redact = span, headers, redact

    def record_outcome(self, status: int, outcome: str, error: str) -> None:
        """Record how the request ended.

        Args:
            status: HTTP status; 0 if there was no usable response.
            outcome: kind of failure; `none` if the request succeeded.
            error: error message, which is recorded without secrets; empty if there is none.
        """
        if self._span is None:
            return
        found: dict[str, FieldValue] = {"batchwright.request.outcome": outcome}
        if status:
            found["http.response.status_code"] = status
        if error or status >= 400:
            found["error.type"] = str(status or outcome)
            self._span.set_status(StatusCode.ERROR, self._redact(error)[:_MAX_ERROR_CHARACTERS])
        self._span.set_attributes(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._span is not None:
            if kind is not None:  # the worker aborted it: the turn or the batch ended, or the deadline passed
                self._span.set_attribute("batchwright.request.outcome", "aborted")
            self._span.end()


def span_attributes(fields: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """Return log fields as span attributes. Their names are translated to attribute names."""
    return {_ATTRIBUTE_NAMES.get(name) or f"batchwright.{name}": value for name, value in fields.items()}


def _trace_headers(span: Span) -> TraceHeaders:
    """Return the HTTP headers that identify a span to another process (W3C Trace Context)."""
    context = span.get_span_context()
    value = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
    headers = [(b"traceparent", value)]
    if context.trace_state:
        headers.append((b"tracestate", context.trace_state.to_header().encode()))
    return headers


@lru_cache(maxsize=64)
def _span_name(path: bytes) -> str:
    return "POST " + path.partition(b"?")[0].decode(errors="replace")
