"""The API processes the largest message batch, 256 MiB, without holding it in memory as a whole."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchwright.contracts.api_objects.anthropic import MessageErrorObject
from tests.forked_process import ForkedProcess
from tests.integration.api.test_process import MIB, objects, running

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
REQUESTS, BODY_BYTES, MOST_MIB = 100_000, 255 * MIB, 64


def body() -> Iterator[bytes]:
    """Yield a body with 100,000 requests and 255 MiB. Its last request is invalid."""
    params = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 2576)
    yield b'{"requests":['
    for start in range(0, REQUESTS, 100):
        numbers = range(start, start + 100)
        yield b"".join(b'{"custom_id":"r%d","params":%b},' % (number, params) for number in numbers)
    yield b'{"custom_id":"r0","params":{}}]}'


def peak_mib(process: ForkedProcess) -> float:
    """Return the peak memory of the process in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def test_the_largest_message_batch_is_received_in_bounded_memory(tmp_path: Path, database_url: str) -> None:
    with running(tmp_path, database_url=database_url, max_message_requests=str(REQUESTS + 1)) as (
        api,
        client,
    ):
        assert client.get("/healthz").status_code == 200
        before = peak_mib(api)
        headers = {"anthropic-version": "2023-06-01"}
        assert BODY_BYTES <= sum(map(len, body())) <= 256 * MIB
        answer = client.post("/v1/messages/batches", content=body(), headers=headers)
        grown = peak_mib(api) - before
    error = MessageErrorObject.model_validate_json(answer.content).error
    assert (answer.status_code, error.type) == (400, "invalid_request_error")
    assert (
        error.message == f"requests.{REQUESTS}.custom_id: 'r0' is repeated. It must be unique in the batch."
    )
    assert grown < MOST_MIB
    assert objects(tmp_path) == []
