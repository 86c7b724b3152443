"""Runs of the scheduled audit."""

import pytest

from tests.workflows.house import House

pytestmark = pytest.mark.integration


async def test_what_differs_is_the_result_and_no_failure(house: House) -> None:
    async with house.workers():
        assert await house.audited() == house.auditing.result


async def test_what_cannot_be_looked_at_now_is_looked_at_again(house: House) -> None:
    house.auditing.failures = 2
    async with house.workers():
        assert await house.audited() == house.auditing.result
    assert house.auditing.failures == 0
