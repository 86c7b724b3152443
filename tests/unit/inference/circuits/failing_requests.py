"""Requests that fail, and a clock that the test sets."""

from batchwright.inference.circuits.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(circuit: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        circuit.record_failure(circuit.begin(), "503")
