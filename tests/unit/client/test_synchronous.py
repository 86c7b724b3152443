"""The synchronous client is exactly what the program writes from the asynchronous client."""

from pathlib import Path

import pytest

from tests.unit.client.synchronous import SOURCES, result_of, synchronous


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_synchronous_client_is_the_asynchronous_one_without_await(source: Path) -> None:
    written = result_of(source).read_text("utf-8")
    assert written == synchronous(source), "run python -m tests.unit.client.synchronous"
