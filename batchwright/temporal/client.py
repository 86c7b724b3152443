"""connect(): the only way to Temporal."""

from dataclasses import replace
from datetime import timedelta
from logging import getLogger

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes
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
from batchwright.telemetry.exposition import sdk_address
from batchwright.telemetry.interceptor import TelemetryInterceptor
from batchwright.temporal import credentials
from batchwright.temporal.codec import codec_of
from batchwright.temporal.connection import Connection

DATA_CONVERTER = pydantic_data_converter


@retry(retry=retry_if_exception_type(ValueError), stop=stop_after_attempt(5), reraise=True)
def observed_runtime() -> tuple[Runtime, str]:
    """The SDK's runtime, made once and before the first client, and where it serves its metrics.

    Another process may take the port that was free a moment ago: then it is another port. What the SDK
    logs goes where our own entries go.
    """
    address = sdk_address()
    # Seconds, and units and `_total` in the names: as all other metrics are.
    prometheus = PrometheusConfig(
        bind_address=address, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
    )
    logging = LoggingConfig(
        filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            getLogger("temporalio"), append_target_to_name=False, prepend_target_on_message=False
        ),
    )
    made = Runtime(
        telemetry=TelemetryConfig(logging=logging, metrics=prometheus),
        worker_heartbeat_interval=timedelta(seconds=30),
    )
    return made, address


async def connect(settings: Settings, *, runtime: Runtime | None = None, lazy: bool = False) -> Client:
    """A client of the configured namespace, with our data converter; it follows no changed credentials.

    Raises:
        TemporalUnavailable: no answer (not with `lazy`, which connects at the first call).
        SettingsError: a file of certificates or keys is not what it should be.
    """
    client, _ = await open_connection(settings, runtime=runtime, lazy=lazy)
    return client


async def open_connection(
    settings: Settings, *, runtime: Runtime | None = None, lazy: bool = False
) -> tuple[Client, Connection]:
    """The same, and what keeps the client's connection at the credentials of the moment. Raises the same."""
    converter = data_converter(settings)
    connection = await Connection.open(settings, runtime=runtime, lazy=lazy)
    client = Client(
        connection.service,
        namespace=settings.temporal_namespace,
        data_converter=converter,
        interceptors=[TelemetryInterceptor()],
    )
    return client, connection


def data_converter(settings: Settings) -> DataConverter:
    """With keys, also what failures say is encrypted. Raises SettingsError."""
    codec = codec_of(settings)
    if not settings.payload_keys:
        return replace(DATA_CONVERTER, payload_codec=codec)
    return replace(
        DATA_CONVERTER,
        payload_codec=codec,
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


def check(settings: Settings) -> None:
    """That everything `connect` reads can be read. Raises SettingsError."""
    credentials.read(settings)
    codec_of(settings)
