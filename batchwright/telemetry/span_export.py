"""Exports trace spans in the background, and counts the spans that are lost."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from batchwright.process_name import process_name
from batchwright.settings import Settings, observability_settings
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_MAX_QUEUED_SPANS = 8192  # about 20 MB
_EXPORT_BATCH_SIZE = 512
_EXPORT_INTERVAL_MILLISECONDS = 1000.0
_CLOSE_SECONDS = 5.0

OnSpansDropped = Callable[[str, int], None]  # reason, number of spans


class PresetIdGenerator(RandomIdGenerator):
    """A generator of random ids for trace spans. Inside of a `preset` block, it returns the given ids.

    The root span of a batch needs given ids. This span is created at the end of the batch, but the spans that
    were created earlier already contain its ids.
    """

    def __init__(self) -> None:
        self._preset: ContextVar[tuple[int, int] | None] = ContextVar("preset_ids", default=None)

    @contextmanager
    def preset(self, trace_id: int, span_id: int) -> Generator[None]:
        token = self._preset.set((trace_id, span_id))
        try:
            yield
        finally:
            self._preset.reset(token)

    def generate_trace_id(self) -> int:
        preset = self._preset.get()
        return preset[0] if preset else super().generate_trace_id()

    def generate_span_id(self) -> int:
        preset = self._preset.get()
        return preset[1] if preset else super().generate_span_id()


class CountingSpanExporter(OTLPSpanExporter):
    """An exporter that counts spans that could not be sent.

    It logs a warning when exports begin to fail, and an entry when they succeed again.
    """

    def __init__(self, url: str, on_dropped: OnSpansDropped) -> None:
        super().__init__(url)
        self.finished_spans = 0  # exported or lost
        self._collector, self._on_dropped = url, on_dropped
        self._is_failing, self._errors = False, _LastErrors()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        was_failing, self._is_failing = self._is_failing, True
        try:
            result = super().export(spans)
            self._is_failing = result is not SpanExportResult.SUCCESS
            return result
        finally:
            self.finished_spans += len(spans)
            if self._is_failing:
                self._on_dropped("export", len(spans))
            if self._is_failing and not was_failing:
                extra = {"collector": self._collector, "error": self._errors.text}
                logger.warning("spans cannot be exported", extra=extra)
            elif was_failing and not self._is_failing:
                logger.info("spans are exported again", extra={"collector": self._collector})


class CountingSpanProcessor(BatchSpanProcessor):
    """A span processor with a limited queue. It counts the spans that are lost because the queue is full.

    The base class provides the queue and the thread that exports the spans.
    """

    def __init__(self, exporter: CountingSpanExporter, on_dropped: OnSpansDropped) -> None:
        super().__init__(
            exporter,
            max_queue_size=_MAX_QUEUED_SPANS,
            max_export_batch_size=_EXPORT_BATCH_SIZE,
            schedule_delay_millis=_EXPORT_INTERVAL_MILLISECONDS,
        )
        self._counting_exporter, self._on_dropped = exporter, on_dropped
        self._accepted_spans = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._accepted_spans - self._counting_exporter.finished_spans >= _MAX_QUEUED_SPANS:
            self._on_dropped("queue", 1)
            return
        self._accepted_spans += 1
        super().on_end(span)


class _LastErrors(logging.Handler):
    """A log handler that keeps the last two messages of OpenTelemetry instead of printing them.

    If an export fails, OpenTelemetry logs two messages: one about the last attempt, and one about the final
    failure.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages = deque[str](maxlen=2)
        source = logging.getLogger("opentelemetry")
        source.handlers, source.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())

    @property
    def text(self) -> str:
        return " ".join(self._messages)


class SpanProvider(TracerProvider):
    exporter: CountingSpanExporter

    def close(self) -> None:
        """Send the spans that wait to be sent, and close the provider. This takes at most a few seconds.

        Spans that were not sent within this time are lost.
        """
        closing = Thread(target=self.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            self.exporter.shutdown()
            logger.warning("the last spans were not exported in time")


def open_provider(
    settings: Settings, service: str, metrics: Metrics
) -> tuple[SpanProvider, PresetIdGenerator]:
    def on_dropped(reason: str, spans: int) -> None:
        metrics.spans_dropped.labels(reason).inc(spans)

    ids = PresetIdGenerator()
    provider = SpanProvider(
        sampler=build_sampler(settings),
        resource=_resource(service),
        shutdown_on_exit=False,
        id_generator=ids,
    )
    provider.exporter = CountingSpanExporter(settings.traces_url, on_dropped)
    provider.add_span_processor(CountingSpanProcessor(provider.exporter, on_dropped))
    return provider, ids


def build_sampler(settings: Settings) -> sampling.Sampler:
    ratio = settings.otel_traces_sampler_arg
    match settings.otel_traces_sampler:
        case observability_settings.Sampler.ALWAYS_ON:
            return sampling.ALWAYS_ON
        case observability_settings.Sampler.ALWAYS_OFF:
            return sampling.ALWAYS_OFF
        case observability_settings.Sampler.RATIO:
            return sampling.TraceIdRatioBased(ratio)
        case observability_settings.Sampler.PARENT_ALWAYS_ON:
            return sampling.DEFAULT_ON
        case observability_settings.Sampler.PARENT_ALWAYS_OFF:
            return sampling.DEFAULT_OFF
        case observability_settings.Sampler.PARENT_RATIO:
            return sampling.ParentBasedTraceIdRatio(ratio)


def _resource(service: str) -> Resource:
    """Return the attributes that every span of this process has.

    Values in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES replace Batchwright's own values.
    """
    ours = {
        "service.name": service,
        "service.namespace": "batchwright",
        "service.version": version("batchwright"),
        "service.instance.id": process_name(),
    }
    return Resource.create({}).merge(Resource(ours)).merge(OTELResourceDetector().detect())
