"""Metrics that every process has: API responses, object storage, background tasks, lost trace spans."""

from importlib.metadata import version

from batchwright.telemetry.families.factory import SHORT_SECONDS, MetricFactory

_VERSION = version("batchwright")


class ApiMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.api_requests = create.counter(
            "api_requests_total", "API responses by method, route and status", ["method", "route", "status"]
        )
        self.api_refusals = create.counter(
            "api_refusals_total",
            "API requests that failed authentication or authorization, by reason: `no_key`, `wrong_key`, "
            "`wrong_token`, `expired_token`, `claim`, `attempts`, `scope`, `tenant`, `header`, `session`. "
            "Sign-ins to the pages and checks of open streams count, too",
            ["reason"],
        )
        self.api_seconds = create.histogram(
            "api_request_duration_seconds",
            "Time from the headers of an API request to the headers of its response, including uploads",
            ["method", "route"],
            buckets=SHORT_SECONDS,
        )
        self.event_streams = create.gauge(
            "api_event_streams", "Open event streams of batches (`/v1/batches/{id}/x/events`)"
        )


class StorageMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.storage_operations = create.counter(
            "file_storage_operations_total",
            "Object storage operations and their retries, by outcome",
            ["operation", "component", "status"],
        )
        self.storage_seconds = create.histogram(
            "file_storage_operation_duration_seconds",
            "Time of one object storage operation including its retries, without the time that its caller "
            "spends between two chunks",
            ["operation", "component"],
            buckets=SHORT_SECONDS,
        )
        self.storage_bytes = create.counter(
            "file_storage_bytes_total", "Bytes written to and read from storage", ["operation", "component"]
        )


class RuntimeMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.build = create.gauge("build_info", "Always 1; the label is the running version", ["version"])
        self.build.labels(_VERSION).set(1)
        self.settings_info = create.gauge(
            "settings_info",
            "Always 1; the label is the fingerprint of the settings, as `batchwright config show` prints it. "
            "It is equal in all worker and API processes whose settings agree where they must",
            ["fingerprint"],
        )
        self.background_failures = create.counter(
            "background_task_failures_total",
            "Unexpected ends of background tasks; the process restarts each of them",
            ["task"],
        )
        self.spans_dropped = create.counter(
            "trace_spans_dropped_total",
            "Spans lost because the queue was full (`queue`) or the collector did not accept them (`export`)",
            ["reason"],
        )
