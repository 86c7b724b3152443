"""Finalization frees its memory when it ends, without the garbage collector."""

import gc
from collections.abc import Iterator

import pytest

from batchwright.activities.stored_results.input_order_index import ResultIndex
from batchwright.storage.local import LocalStorage
from tests.activities.finalization.settled_batch import a_batch


@pytest.fixture(autouse=True)
def without_the_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_memory_of_settled_lines_is_released_after_an_object_was_missing(storage: LocalStorage) -> None:
    batch = await a_batch(lines=4, storage=storage)
    await batch.put([batch.success(number) for number in range(4)])
    await batch.finalize()
    assert not [found for found in gc.get_objects() if type(found) is ResultIndex]
