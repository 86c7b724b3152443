"""The workflow of the consistency check."""

import pytest

from tests.workflows.fixture import WorkflowFixture

pytestmark = pytest.mark.integration


async def test_differences_are_the_result_and_not_a_failure(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        assert await fixture.checked() == fixture.consistency.result


async def test_an_unavailable_dependency_is_retried(fixture: WorkflowFixture) -> None:
    fixture.consistency.failures = 2
    async with fixture.workers():
        assert await fixture.checked() == fixture.consistency.result
    assert fixture.consistency.failures == 0
