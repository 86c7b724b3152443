"""Creates clients of Temporal. All other code gets its clients from `connect` or `open_connection`."""

from dataclasses import replace
from datetime import timedelta
from logging import getLogger

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from batchwright.settings import Settings
from batchwright.telemetry.exposition import free_sdk_address
from batchwright.telemetry.trace_interceptor import TelemetryInterceptor
from batchwright.temporal.codec import build_codec
from batchwright.temporal.connection import credentials
from batchwright.temporal.connection.temporal_connection import TemporalConnection
from batchwright.temporal.failures import ShortEncodedFailureConverter, ShortFailureConverter

DATA_CONVERTER = replace(pydantic_data_converter, failure_converter_class=ShortFailureConverter)


@retry(retry=retry_if_exception_type(ValueError), stop=stop_after_attempt(5), reraise=True)
def observed_runtime() -> tuple[Runtime, str]:
    """Create a `Runtime` of Temporal's SDK that serves the SDK's metrics over HTTP.

    Return the runtime, and the address `host:port` of the metrics. Call this once in a process, before the
    first client is created.
    """
    address = free_sdk_address()
    # As in Batchwright's own metrics, durations are in seconds, and names contain units and `_total`.
    prometheus = PrometheusConfig(
        bind_address=address, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
    )
    logging = LoggingConfig(
        filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            getLogger("temporalio"), append_target_to_name=False, prepend_target_on_message=False
        ),
    )
    runtime = Runtime(
        telemetry=TelemetryConfig(logging=logging, metrics=prometheus),
        worker_heartbeat_interval=timedelta(seconds=30),
    )
    return runtime, address


async def connect(settings: Settings) -> Client:
    """Connect to Temporal, and return a client for the namespace in the settings.

    If credential files change, the client keeps its old credentials. If a process needs the new credentials
    without a restart, use `open_connection`.

    Raises:
        TemporalUnavailable: Temporal does not answer.
        SettingsError: a certificate or key file cannot be read or is invalid.
    """
    client, _ = await open_connection(settings)
    return client


async def open_connection(
    settings: Settings, *, runtime: Runtime | None = None, lazy: bool = False
) -> tuple[Client, TemporalConnection]:
    """Return a Temporal client and its connection, which can follow changes of the credential files.

    The caller must run `TemporalConnection.run`. It reads the credential files every few seconds, and applies
    changes to the client.

    Args:
        runtime: the SDK's runtime; None for the default runtime.
        lazy: True to connect only at the first call.

    Raises:
        TemporalUnavailable: Temporal does not answer. This is not raised if `lazy` is True.
        SettingsError: a certificate or key file cannot be read or is invalid.
    """
    converter = data_converter(settings)
    connection = await TemporalConnection.open(settings, runtime=runtime, lazy=lazy)
    client = Client(
        connection.service,
        namespace=settings.temporal_namespace,
        data_converter=converter,
        interceptors=[TelemetryInterceptor()],
    )
    return client, connection


def data_converter(settings: Settings) -> DataConverter:
    """Return the converter for payloads in Temporal: arguments and results of workflows and activities.

    If payload keys are configured, the converter encrypts payloads and failure messages. Raises SettingsError
    if a payload key cannot be read or is invalid.
    """
    codec = build_codec(settings)
    if not settings.payload_keys:
        return replace(DATA_CONVERTER, payload_codec=codec)
    return replace(
        DATA_CONVERTER,
        payload_codec=codec,
        failure_converter_class=ShortEncodedFailureConverter,
    )


def check(settings: Settings) -> None:
    """Check all files and keys that `connect` needs. Raise SettingsError if one of them cannot be used."""
    credentials.read(settings)
    build_codec(settings)
