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

from batchwright.settings import Settings
from batchwright.telemetry.interceptor import TelemetryInterceptor
from batchwright.temporal import credentials
from batchwright.temporal.codec import codec_of
from batchwright.temporal.connection import Connection

DATA_CONVERTER = pydantic_data_converter


def runtime(metrics_address: str | None = None) -> Runtime:
    """The SDK's runtime, made once and before the first client; its metrics at `metrics_address`.

    What it logs goes where our own entries go.
    """
    prometheus = _prometheus(metrics_address) if metrics_address else None
    logging = LoggingConfig(
        filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            getLogger("temporalio"), append_target_to_name=False, prepend_target_on_message=False
        ),
    )
    return Runtime(
        telemetry=TelemetryConfig(logging=logging, metrics=prometheus),
        worker_heartbeat_interval=timedelta(seconds=30),
    )


def _prometheus(address: str) -> PrometheusConfig:
    """Seconds, and units and `_total` in the names: as all other metrics are."""
    return PrometheusConfig(
        bind_address=address, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
    )


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
