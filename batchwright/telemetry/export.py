"""Spans on their way to the collector: a bounded queue and a thread, and a count of what was lost."""

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from threading import Lock, Thread

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from batchwright.settings import Settings, otel
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_MOST_WAITING = 8192  # spans; some 20 MB
_BATCH = 512
_EVERY_MILLISECONDS = 1000.0
_CLOSE_SECONDS = 5.0

Drop = Callable[[str, int], None]  # why, how many


class GivenIds(RandomIdGenerator):
    """Random ids, but where a span must have a certain one so that others could name it before."""

    def __init__(self) -> None:
        self._given: ContextVar[tuple[int, int] | None] = ContextVar("given_ids", default=None)

    @contextmanager
    def giving(self, trace_id: int, span_id: int) -> Generator[None]:
        token = self._given.set((trace_id, span_id))
        try:
            yield
        finally:
            self._given.reset(token)

    def generate_trace_id(self) -> int:
        given = self._given.get()
        return given[0] if given else super().generate_trace_id()

    def generate_span_id(self) -> int:
        given = self._given.get()
        return given[1] if given else super().generate_span_id()


class Room:
    """How many spans wait; more than fit are dropped here, so that the queue behind never overflows."""

    def __init__(self, size: int, drop: Drop) -> None:
        self._free, self._drop, self._lock = size, drop, Lock()

    def take(self) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
        self._drop("queue", 1)
        return False

    def give(self, spans: int) -> None:
        with self._lock:
            self._free += spans


class Entrance(SpanProcessor):
    """Lets spans into the queue while there is room."""

    def __init__(self, queue: SpanProcessor, room: Room) -> None:
        self._queue, self._room = queue, room

    def on_end(self, span: ReadableSpan) -> None:
        if span.context and span.context.trace_flags.sampled and self._room.take():
            self._queue.on_end(span)

    def shutdown(self) -> None:
        self._queue.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._queue.force_flush(timeout_millis)


class Exit(SpanExporter):
    """Sends, counts what could not be sent, and says so once until it can be again."""

    def __init__(self, exporter: SpanExporter, room: Room, drop: Drop, url: str) -> None:
        self._exporter, self._room, self._drop, self._url = exporter, room, drop, url
        self._is_failing = False
        self._words = _LastWords()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._room.give(len(spans))
            self._note(result, len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def _note(self, result: SpanExportResult, spans: int) -> None:
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self._drop("export", spans)
        if failed and not self._is_failing:
            logger.warning("spans cannot be sent", extra={"collector": self._url, "error": self._words.text})
        elif self._is_failing and not failed:
            logger.info("spans are sent again", extra={"collector": self._url})
        self._is_failing = failed


class _LastWords(logging.Handler):
    """Takes what the SDK says of every failure, where once is enough: of the last try, and of the end."""

    def __init__(self) -> None:
        super().__init__()
        self._said = deque[str](maxlen=2)
        source = logging.getLogger("opentelemetry")
        source.handlers, source.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())

    @property
    def text(self) -> str:
        return " ".join(self._said)


class Provider(TracerProvider):
    exporter: SpanExporter

    def close(self) -> None:
        """Sends what waits, for some seconds at most; blocks. After it nothing is tried again."""
        closing = Thread(target=self.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            self.exporter.shutdown()
            logger.warning("the last spans were not sent in time")


def open_provider(settings: Settings, service: str, metrics: Metrics) -> tuple[Provider, GivenIds]:
    def drop(why: str, spans: int) -> None:
        metrics.spans_dropped.labels(why).inc(spans)

    ids = GivenIds()
    provider = Provider(
        sampler=sampler_of(settings),
        resource=_resource(service),
        shutdown_on_exit=False,
        id_generator=ids,
    )
    provider.exporter = exporter = OTLPSpanExporter(settings.traces_url)
    room = Room(_MOST_WAITING, drop)
    queue = BatchSpanProcessor(
        Exit(exporter, room, drop, settings.traces_url),
        max_queue_size=2 * _MOST_WAITING,
        max_export_batch_size=_BATCH,
        schedule_delay_millis=_EVERY_MILLISECONDS,
    )
    provider.add_span_processor(Entrance(queue, room))
    return provider, ids


def sampler_of(settings: Settings) -> sampling.Sampler:
    ratio = settings.otel_traces_sampler_arg
    match settings.otel_traces_sampler:
        case otel.Sampler.ALWAYS_ON:
            return sampling.ALWAYS_ON
        case otel.Sampler.ALWAYS_OFF:
            return sampling.ALWAYS_OFF
        case otel.Sampler.RATIO:
            return sampling.TraceIdRatioBased(ratio)
        case otel.Sampler.PARENT_ALWAYS_ON:
            return sampling.DEFAULT_ON
        case otel.Sampler.PARENT_ALWAYS_OFF:
            return sampling.DEFAULT_OFF
        case otel.Sampler.PARENT_RATIO:
            return sampling.ParentBasedTraceIdRatio(ratio)


def _resource(service: str) -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say wins."""
    ours = {
        "service.name": service,
        "service.namespace": "batchwright",
        "service.version": version("batchwright"),
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
    return Resource.create({}).merge(Resource(ours)).merge(OTELResourceDetector().detect())
