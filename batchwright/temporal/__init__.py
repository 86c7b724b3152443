"""Temporal: the connection, what it is made with, and what a namespace needs."""

from batchwright.temporal.client import (
    DATA_CONVERTER,
    check,
    connect,
    data_converter,
    observed_runtime,
    open_connection,
)
from batchwright.temporal.connection import Connection
from batchwright.temporal.errors import TemporalNotSetUp, TemporalUnavailable

__all__ = [
    "DATA_CONVERTER",
    "Connection",
    "TemporalNotSetUp",
    "TemporalUnavailable",
    "check",
    "connect",
    "data_converter",
    "observed_runtime",
    "open_connection",
]
