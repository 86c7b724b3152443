"""Access to Temporal: connection, credentials, encryption of payloads, and setup of a namespace."""

from batchwright.temporal.connection.client import (
    DATA_CONVERTER,
    check,
    connect,
    data_converter,
    observed_runtime,
    open_connection,
)
from batchwright.temporal.connection.temporal_connection import TemporalConnection
from batchwright.temporal.errors import TemporalNotSetUp, TemporalUnavailable

__all__ = [
    "DATA_CONVERTER",
    "TemporalConnection",
    "TemporalNotSetUp",
    "TemporalUnavailable",
    "check",
    "connect",
    "data_converter",
    "observed_runtime",
    "open_connection",
]
