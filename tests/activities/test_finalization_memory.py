"""What finalization held is gone when it has ended, without the garbage collector."""

import gc
from collections.abc import Iterator

import pytest

from activities.finalize.settled import Settled
from batchwright.storage.local import LocalStorage
from tests.activities.settled_batch import a_batch


@pytest.fixture(autouse=True)
def without_the_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_settled_lines_are_forgotten_where_an_object_was_missing_on_disk(storage: LocalStorage) -> None:
    batch = await a_batch(lines=4, storage=storage)
    await batch.put([batch.success(number) for number in range(4)])
    await batch.finalize()
    assert not [found for found in gc.get_objects() if type(found) is Settled]
