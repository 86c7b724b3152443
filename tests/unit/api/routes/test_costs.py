"""Costs of batches: how the batch shows them, caps on them, and estimates."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from batchwright.api.services.batches import cost_estimate_runner as estimates
from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.api_objects.openai import BatchCost, BatchObject, ModelCost
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import Usage
from batchwright.database.records import SliceProgress
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.rules.forecast.model_queue import ModelSpeed
from batchwright.rules.token_costs import amount_of
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api, read
from tests.fakes.small_memory import small_memory

PRICES = {"llama": PriceConfig(currency="EUR", input="2", request="0.01")}
NOW = datetime.now(UTC)


def a_line(custom_id: str, model: str = "llama") -> dict[str, object]:
    return {"custom_id": custom_id, "body": {"model": model, "messages": [], "max_tokens": 100}}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def running(
    api: ApiFixture,
    *others: ModelCounts,
    prices: dict[str, PriceConfig] = PRICES,
    max_cost: object = None,
) -> str:
    """Create a batch in progress with two results of the model llama, and return its id."""
    batch = await api.create(x_batchwright={"max_cost": max_cost})
    counts = [ModelCounts(model="llama", lines=10), *others]
    await api.database.batches.start("default", batch.id, total=10, models=counts, at=NOW, prices=prices)
    progress = SliceProgress(
        tenant="default",
        batch_id=batch.id,
        model="llama",
        number=0,
        generation=0,
        attempt=1,
        completed=2,
        failed=0,
        usage=Usage(input_tokens=1000),
    )
    await api.database.progress.record([progress])
    return batch.id


async def shown(api: ApiFixture, batch_id: str) -> BatchObject:
    return read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject)


async def change(api: ApiFixture, batch_id: str, max_cost: object) -> httpx.Response:
    return await api.http.post(f"/v1/batches/{batch_id}/x/max_cost", json={"max_cost": max_cost})


async def estimate(api: ApiFixture, *lines: object) -> EstimateObject:
    file = await api.upload("\n".join(map(json.dumps, lines)).encode())
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
    return read(await api.http.post("/v1/batches/x/estimate", json=body), EstimateObject)


async def test_a_batch_shows_what_it_has_cost_so_far_by_model(api: ApiFixture) -> None:
    batch = await shown(api, await running(api, max_cost=5))
    assert batch.x_batchwright.cost == BatchCost(
        amount="0.022", currency="EUR", final=False, models=[ModelCost(model="llama", amount="0.022")]
    )
    assert batch.x_batchwright.max_cost == "5"


async def test_a_batch_without_prices_has_no_cost(api: ApiFixture) -> None:
    assert (await shown(api, await running(api, prices={}))).x_batchwright.cost is None


@pytest.mark.parametrize("max_cost", [0, -1, "0.00", "x", True, "1.1234567", [], float("1e300")])
async def test_a_cap_that_is_no_positive_decimal_is_rejected(api: ApiFixture, max_cost: object) -> None:
    file = await api.upload()
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "x_batchwright": {"max_cost": max_cost},
    }
    answer = await api.post(body)
    assert answer.status_code == 400
    assert error_of(answer).param == "x_batchwright.max_cost"


async def test_a_cap_can_be_raised_and_removed_while_the_batch_runs(api: ApiFixture) -> None:
    batch_id = await running(api, max_cost="1")
    assert read(await change(api, batch_id, 2.5), BatchObject).x_batchwright.max_cost == "2.5"
    assert read(await change(api, batch_id, None), BatchObject).x_batchwright.max_cost is None
    assert (await shown(api, batch_id)).x_batchwright.max_cost is None


async def test_a_cap_below_what_is_spent_is_rejected_with_both_values(api: ApiFixture) -> None:
    batch_id = await running(api, max_cost="1")
    answer = await change(api, batch_id, "0.02")
    assert answer.status_code == 400
    message = error_of(answer).message
    assert "0.022 EUR" in message
    assert "more than 0.02." in message
    assert (await shown(api, batch_id)).x_batchwright.max_cost == "1"
    assert (await change(api, batch_id, "0.022")).status_code == 200


async def test_a_cap_that_is_reached_cannot_be_changed_any_more(api: ApiFixture) -> None:
    batch_id = await running(api, max_cost="0.02")
    assert await api.database.progress.reach_cap(BatchKey("default", batch_id), amount_of("0.022"))
    for max_cost in ("5", None):
        answer = await change(api, batch_id, max_cost)
        assert answer.status_code == 409
        assert error_of(answer).message.startswith(
            "Cannot change the cap on the cost: the batch has reached its cap of 0.02 and ends."
        )
    assert (await shown(api, batch_id)).x_batchwright.max_cost == "0.02"


async def test_the_page_of_a_batch_shows_its_cost_and_its_cap_without_rounding(api: ApiFixture) -> None:
    prices = {"llama": PriceConfig(currency="EUR", input="2.3456", request="1234")}
    batch_id = await running(api, prices=prices, max_cost="12345.678")
    page = (await api.http.get(f"/ui/batches/{batch_id}")).text
    assert "2,468.0023456 EUR so far, at most 12,345.678<" in page
    assert '<td data-name="Cost">2,468.0023456 EUR</td>' in page


async def test_a_cap_needs_prices_of_all_models_and_a_batch_in_progress(api: ApiFixture) -> None:
    qwen = ModelCounts(model="qwen", lines=3, completed=1, failed=1)
    answer = await change(api, await running(api, qwen), "9")
    assert answer.status_code == 400
    assert "'qwen' of the batch had no prices" in error_of(answer).message
    validating = await api.create()
    assert (await change(api, validating.id, "9")).status_code == 409
    assert (await api.http.post(f"/v1/batches/{validating.id}/x/max_cost", json={})).status_code == 400


async def test_a_cap_needs_no_prices_of_models_that_have_no_lines_to_send(api: ApiFixture) -> None:
    unknown = ModelCounts(model="nope", lines=2, failed=2)
    resumed = ModelCounts(model="qwen", lines=3, completed=2, failed=1)
    repeated = ModelCounts(model="qwen-2", lines=5, completed=1, failed=1, duplicates=3)
    changed = await change(api, await running(api, unknown, resumed, repeated), "9")
    assert read(changed, BatchObject).x_batchwright.max_cost == "9"


async def test_an_estimate_tells_lines_tokens_and_cost_without_creating_a_batch(api: ApiFixture) -> None:
    api.served.prices = PRICES
    found = await estimate(api, a_line("a"), a_line("b", "nope"))
    assert (found.lines, found.max_output_tokens) == (2, 200)
    priced, unserved = found.models
    assert priced.cost is not None
    assert priced.cost.at_most == priced.cost.expected == "0.010002"
    assert (unserved.model, unserved.error, unserved.cost) == ("nope", "model_not_found", None)
    assert found.cost == priced.cost
    assert (await api.http.get("/v1/batches")).json()["data"] == []


async def test_an_estimate_forecasts_the_time_if_the_speed_of_every_model_is_known(api: ApiFixture) -> None:
    lines = [a_line(f"line-{number}") for number in range(100)]
    assert (await estimate(api, *lines)).forecast is None
    speed = ModelSpeed(lines_per_second=10, lines_measured=1000, pending=10, mean=1, variation=1)
    await api.database.forecasts.publish_speeds({"llama": speed}, datetime.now(UTC))
    alone = (await estimate(api, *lines)).forecast
    assert alone is not None
    assert alone.lines_ahead == 0
    assert 8 <= alone.seconds_p50 <= 12
    assert alone.seconds_p90 > alone.seconds_p50
    await running(api)
    behind = (await estimate(api, *lines)).forecast
    assert behind is not None
    assert behind.seconds_p50 > alone.seconds_p50
    assert (await estimate(api, *lines, a_line("last", "org/qwen:7b"))).forecast is None


async def test_an_estimate_lists_the_errors_of_the_input(api: ApiFixture) -> None:
    found = await estimate(api, a_line("a"), {"custom_id": "a", "body": {}})
    assert found.errors is not None
    assert "duplicate_custom_id" in {error.code for error in found.errors.data}


async def test_the_ids_of_an_input_beyond_a_million_lines_are_on_disk_during_its_estimate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = small_memory(monkeypatch)
    lines = [a_line(f"line-{number}") for number in range(200)]
    async with open_api(spool_dir=str(tmp_path)) as api:
        found = await estimate(api, *lines, a_line("line-150"))
    assert found.errors is not None
    assert [(error.code, error.line) for error in found.errors.data] == [("duplicate_custom_id", 201)]
    assert [(file.directory, file.file.closed) for file in files] == [(tmp_path, True)]


async def test_only_one_estimate_at_a_time_takes_the_memory_of_a_large_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimates, "_LARGE_LINES", 2)
    monkeypatch.setattr(estimates, "_WAIT_SECONDS", 0.0)
    is_large, go_on = asyncio.Event(), asyncio.Event()
    async with open_own_api() as api:

        async def read_slowly(key: str) -> AsyncGenerator[bytes]:
            lines = api.storage.objects[key].splitlines(keepends=True)
            for line in lines:
                yield line
            if len(lines) > 2:
                is_large.set()
                await go_on.wait()

        monkeypatch.setattr(api.storage, "read", read_slowly)

        async def answer(tenant: str, lines: int) -> httpx.Response:
            content = "\n".join(json.dumps(a_line(str(number))) for number in range(lines))
            file = await api.upload(content.encode(), tenant=tenant)
            body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
            return await api.http.post("/v1/batches/x/estimate", json=body, headers={"X-Tenant": tenant})

        first = asyncio.create_task(answer("red", 3))
        await is_large.wait()
        is_large.clear()
        second = asyncio.create_task(answer("green", 3))
        done, _ = await asyncio.wait(
            [second, asyncio.create_task(is_large.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        assert done == {second}
        refused = second.result()
        assert (refused.status_code, "more than" in error_of(refused).message) == (429, True)
        assert read(await answer("blue", 2), EstimateObject).lines == 2
        go_on.set()
        assert read(await first, EstimateObject).lines == 3
        assert read(await answer("green", 3), EstimateObject).lines == 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"input_file_id": "file-x"}, 400),
        ({"input_file_id": "file-x", "endpoint": "/v1/nope"}, 400),
        ({"input_file_id": "file-x", "endpoint": "/v1/embeddings", "more": 1}, 400),
        ({"input_file_id": "file-x", "endpoint": "/v1/embeddings"}, 404),
    ],
)
async def test_an_estimate_of_nothing_is_refused(api: ApiFixture, body: object, status: int) -> None:
    assert (await api.http.post("/v1/batches/x/estimate", json=body)).status_code == status
