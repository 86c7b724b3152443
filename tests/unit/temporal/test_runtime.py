"""The SDK's runtime, and the port at which it serves its metrics."""

import socket
from collections.abc import Iterator

import pytest

from batchwright.telemetry.exposition import LOOPBACK, free_sdk_address
from batchwright.temporal import observed_runtime


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        yield f"{LOOPBACK}:{other.getsockname()[1]}"


def test_a_port_taken_by_another_process_is_replaced_by_a_free_one(
    taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = free_sdk_address()
    found = iter([taken, free])
    monkeypatch.setattr("batchwright.temporal.connection.client.free_sdk_address", lambda: next(found))
    _, address = observed_runtime()
    assert address == free
