"""Temporal: the connection, what it is made with, and what a namespace needs."""

from batchwright.temporal.client import DATA_CONVERTER, TemporalUnavailable, connect, runtime

__all__ = ["DATA_CONVERTER", "TemporalUnavailable", "connect", "runtime"]
