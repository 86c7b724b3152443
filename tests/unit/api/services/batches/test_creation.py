"""How API processes start the workflows of batches."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.batches.creation import BatchCreator
from tests.fakes.api import ApiFixture, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_a_rolling_batch_that_another_process_has_started_is_not_read_from_temporal(
    api: ApiFixture,
) -> None:
    """A rolling batch collects calls (single requests). Each API process that adds calls to it starts it, and
    each request to Temporal takes time.
    """
    body = {"model": "llama", "input": "Say hello.", "background": True}
    assert (await api.http.post("/v1/responses", json=body)).status_code == 200
    [order] = api.temporal.orders.values()
    parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
    row = await BatchCreator(ApiDependencies(*parts)).start(order.model_copy())
    assert (row.order, api.temporal.lookups) == (order, [])
