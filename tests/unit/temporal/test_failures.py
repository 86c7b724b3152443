"""The errors of activities stay so small that Temporal's server shows them. With payload keys, they are
encrypted.
"""

from pathlib import Path

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from batchwright.settings import load
from batchwright.temporal.connection.client import data_converter

_SERVER_LIMIT = 4096  # limit.mutableStateActivityFailureSize.error


def write(depth: int) -> None:
    if depth == 0:
        raise OSError(28, "No space left on device")
    write_again(depth)


def write_again(depth: int) -> None:
    write(depth - 1)  # two functions in turn, because Python shortens tracebacks of one


def failed(message: str) -> None:
    """Raise an exception with three causes and a long traceback."""
    try:
        try:
            write(10)
        except OSError as error:
            raise ValueError(message) from error
    except ValueError as error:
        try:
            raise RuntimeError(message) from error
        except RuntimeError as cause:
            raise ApplicationError(message, type="StorageUnavailable") from cause


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_failure_is_small_enough_to_be_shown_and_keeps_its_message(
    *, encrypted: bool, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("11" * 32)
    converter = data_converter(load(payload_keys=[f"a=file:{key}"] if encrypted else []))
    message = f"Cannot write '/objects/{'d' * 300}': No space left on device."
    failure = Failure()
    with pytest.raises(ApplicationError) as raised:
        failed(message)
    await converter.encode_failure(raised.value, failure)
    assert failure.ByteSize() <= _SERVER_LIMIT
    assert (b"Cannot write" in failure.SerializeToString()) != encrypted
    shown = await converter.decode_failure(failure)
    assert isinstance(shown, ApplicationError)
    assert (shown.message, shown.type, str(shown.cause)) == (
        message,
        "StorageUnavailable",
        f"RuntimeError: {message}",
    )


async def test_a_long_message_is_cut() -> None:
    converter, failure = data_converter(load()), Failure()
    await converter.encode_failure(ApplicationError("x" * 5000), failure)
    assert failure.message == "x" * 597 + "..."
