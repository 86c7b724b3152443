"""Every span of ours: calls to the API, batches, activities, requests, the storage (S0-50 to S0-54)."""

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
from batchwright.telemetry.batch_trace import ROOT, BatchTrace, batch_trace, started_at
from batchwright.telemetry.context import Fact, facts
from batchwright.telemetry.export import GivenIds, Provider
from batchwright.telemetry.secrets import Redactor, redactor_of

_W3C = TraceContextTextMapPropagator()
_NAMES = {
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
_MOST_CHARACTERS = 500  # of an error's message
Headers = list[tuple[bytes, bytes]]


class _Activity(NamedTuple):
    """Where requests find what they hang on: OpenTelemetry's own context costs them 4 us at every look."""

    batch: BatchTrace
    span: Span
    inside: Context
    headers: Headers


_activity: ContextVar[_Activity | None] = ContextVar("activity", default=None)


class Spans:
    """Of one process; used through `batchwright.telemetry.tracing.spans`."""

    def __init__(self, provider: Provider, ids: GivenIds, settings: Settings) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("batchwright")
        self._sampler = provider.sampler
        self._given = ids
        self._redact = redactor_of(settings)
        self._request_ratio = settings.trace_request_ratio

    # Of what is going on

    def ids(self) -> Mapping[str, str]:
        """The current trace and span, as logs name them; empty outside of one."""
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }

    def carrier(self) -> dict[str, str]:
        """W3C headers that lead to the current span; empty outside of one."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier

    def note(self, **found: Fact) -> None:
        """Attributes of the current span."""
        trace.get_current_span().set_attributes(attributes(found))

    def failed(self, error: BaseException, span: Span | None = None) -> None:
        """An error of `span`, or the current one: its type and message, without secrets (S0-54)."""
        span = span or trace.get_current_span()
        if span.is_recording():
            name, message = type(error).__name__, self._redact(str(error))[:_MOST_CHARACTERS]
            span.add_event("exception", {"exception.type": name, "exception.message": message})
            span.set_status(StatusCode.ERROR, f"{name}: {message}")

    def flush(self) -> None:
        """Sends what waits; blocks."""
        self._provider.force_flush()

    # What is done

    @contextmanager
    def call(self, method: str, path: str, headers: Mapping[str, str]) -> Generator["Call"]:
        """A call to the API, in the caller's trace where it came with one.

        Callers put keys into paths, too: what looks like one is struck.
        """
        with self._tracer.start_as_current_span(
            method,
            context=_W3C.extract(headers, Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": self._redact(path)},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield Call(span, method)
            told = attributes(facts())
            span.set_attributes({k: self._redact(v) if isinstance(v, str) else v for k, v in told.items()})

    @contextmanager
    def activity(self, name: str, batch_id: str, carrier: Mapping[str, str]) -> Generator[Span]:
        """An attempt of an activity, below its batch's span; `carrier` came with the workflow."""
        batch = batch_trace(batch_id, _W3C.extract(carrier, Context()), self._sampler)
        with self._tracer.start_as_current_span(
            name,
            context=batch.inside,
            kind=SpanKind.CONSUMER,
            attributes=attributes(facts()),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            inside = trace.set_span_in_context(span, Context())
            token = _activity.set(_Activity(batch, span, inside, _headers(span)))
            try:
                yield span
            finally:
                _activity.reset(token)

    def given_back(self, reason: str) -> None:
        """A slice that goes on in a later turn: a trace of its own, linked to the turn that ends (S0-52)."""
        turn = trace.get_current_span()
        if turn.is_recording():
            known = attributes({**facts(), "reason": reason})
            links = [Link(turn.get_span_context())]
            self._tracer.start_span("re-enqueue", Context(), attributes=known, links=links).end()

    def batch_ended(self, error: str, **found: Fact) -> None:
        """The root of the current activity's batch, over all of its life (S0-50, S0-53)."""
        current = _activity.get()
        if current is None:
            return
        batch = current.batch
        known = attributes({**facts(), **found})
        start = started_at(str(facts().get("batch_id", "")))
        with self._given.giving(batch.root.trace_id, batch.root.span_id):
            span = self._tracer.start_span(ROOT, batch.around, attributes=known, start_time=start)
        if error:
            span.set_status(StatusCode.ERROR, self._redact(error)[:_MOST_CHARACTERS])
        span.end()

    def request(self, path: bytes, host: str, port: int, request_id: str) -> "Request":
        """One request to a backend; to be entered."""
        current = _activity.get()
        if current is None:
            return Request(None, [], self._redact)
        if not current.span.is_recording() or random.random() >= self._request_ratio:
            return Request(None, current.headers, self._redact)
        known = facts()
        span = self._tracer.start_span(
            _name_of(path),
            current.inside,
            kind=SpanKind.CLIENT,
            attributes={
                "http.request.method": "POST",
                "server.address": host,
                "server.port": port,
                "batch.id": known.get("batch_id", ""),
                "gen_ai.request.model": known.get("model", ""),
                "batchwright.request.id": request_id,
            },
        )
        return Request(span, _headers(span), self._redact)

    def storage(self, operation: str, component: str, key: str) -> Span | None:
        """An operation on the storage, to be ended; None outside of a trace. It is never current (S0-51)."""
        if not trace.get_current_span().is_recording():
            return None
        known = {"batchwright.component": component, "batchwright.storage.key": key}
        name = f"storage.{operation.capitalize()}"
        return self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=known)


class Call:
    """A call to the API while it is answered."""

    def __init__(self, span: Span, method: str) -> None:
        self._span, self._method = span, method

    def answered(self, status: int, route: str) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes({"http.response.status_code": status, "http.route": route})
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)


class Request:
    """A request on its way; `headers` tell the backend of its span, or of the slice's where it has none."""

    __slots__ = ("_redact", "_span", "headers")

    def __init__(self, span: Span | None, headers: Headers, redact: Redactor) -> None:
        self._span, self.headers, self._redact = span, headers, redact

    def answered(self, status: int, outcome: str, error: str) -> None:
        """`error` is empty where the line has its answer; status 0: none came."""
        if self._span is None:
            return
        found: dict[str, Fact] = {"batchwright.request.outcome": outcome}
        if status:
            found["http.response.status_code"] = status
        if error or status >= 400:
            found["error.type"] = str(status or outcome)
            self._span.set_status(StatusCode.ERROR, self._redact(error)[:_MOST_CHARACTERS])
        self._span.set_attributes(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._span is not None:
            if kind is not None:  # given up by us: the turn, the window or the batch has ended
                self._span.set_attribute("batchwright.request.outcome", "aborted")
            self._span.end()


def attributes(known: Mapping[str, Fact]) -> dict[str, Fact]:
    """Facts by the names that spans have for them."""
    return {_NAMES.get(name) or f"batchwright.{name}": value for name, value in known.items()}


def _headers(span: Span) -> Headers:
    """As W3C's trace context has them; by hand, for this is done for every request."""
    context = span.get_span_context()
    value = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
    headers = [(b"traceparent", value)]
    if context.trace_state:
        headers.append((b"tracestate", context.trace_state.to_header().encode()))
    return headers


@lru_cache(maxsize=64)
def _name_of(path: bytes) -> str:
    return "POST " + path.partition(b"?")[0].decode(errors="replace")
