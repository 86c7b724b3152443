"""A circuit breaker that opens after three failures in a row, and its clock."""

import pytest

from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from tests.unit.inference.circuits.failing_requests import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(3, clock=clock)
