"""connect(): the only way to Temporal."""

from datetime import timedelta

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import LoggingConfig, PrometheusConfig, Runtime, TelemetryConfig, TelemetryFilter

from batchwright.settings import Settings

DATA_CONVERTER = pydantic_data_converter


class TemporalUnavailable(Exception):
    """Temporal did not answer; the message names the address."""


def runtime(metrics_address: str | None = None) -> Runtime:
    """The SDK's runtime, made once and before the first client; its metrics at `metrics_address`."""
    prometheus = PrometheusConfig(bind_address=metrics_address) if metrics_address else None
    logging = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    return Runtime(
        telemetry=TelemetryConfig(logging=logging, metrics=prometheus),
        worker_heartbeat_interval=timedelta(seconds=30),
    )


async def connect(settings: Settings, *, runtime: Runtime | None = None, lazy: bool = False) -> Client:
    """A client of the configured namespace, with our data converter.

    Raises:
        TemporalUnavailable: no answer (not with `lazy`, which connects at the first call).
    """
    try:
        return await Client.connect(
            settings.temporal_address,
            namespace=settings.temporal_namespace,
            data_converter=DATA_CONVERTER,
            runtime=runtime,
            lazy=lazy,
        )
    except RuntimeError as error:
        raise TemporalUnavailable(
            f"Temporal does not answer at {settings.temporal_address} (BATCHWRIGHT_TEMPORAL_ADDRESS): {error}"
        ) from error
