"""What a slice held in memory goes with it, not when the garbage collector comes round."""

import gc
from collections.abc import Iterator

import pytest

from activities.slices.work import SliceWork
from tests.activities.execution_house import House, line_of, ok, plan_slice, request


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def works() -> int:
    return sum(type(found) is SliceWork for found in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
async def test_a_slices_lines_are_let_go_as_it_ends() -> None:
    before = works()  # of slices that tests left hanging, as a worker does that dies
    house = House(ok)
    await plan_slice(house.storage, [line_of(number) for number in range(5)])
    await house.run(request())
    assert house.sent
    assert works() == before
