"""/admin/rates: what is in effect, its change, and what is refused."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from api.rates import RateList, RateObject
from batchwright.database.errors import DatabaseUnavailable
from tests.fakes.api import House, error_of, open_house, read

QWEN, QWEN_QUEUE = "org/qwen:7b", "inference.org_qwen_7b-"


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house(models={"llama": {"requests_per_second": 20}}) as opened:
        yield opened


async def put(house: House, model: object, rate: object) -> httpx.Response:
    return await house.http.put("/admin/rates", json={"model": model, "requests_per_second": rate})


def rate(
    model: str | None, rate: float, source: str = "change", queue: str = "inference.llama"
) -> RateObject:
    return RateObject.model_validate(
        {"model": model, "requests_per_second": rate, "source": source, "queue": queue}
    )


async def test_the_settings_hold_as_long_as_nothing_was_changed(house: House) -> None:
    found = read(await house.http.get("/admin/rates"), RateList)
    assert found == RateList(data=[rate("llama", 20, "setting")], shared_requests_per_second=None)


async def test_a_change_stands_before_the_setting_until_it_is_taken_back(house: House) -> None:
    assert read(await put(house, "llama", 5), RateList).data == [rate("llama", 5)]
    assert read(await house.http.get("/admin/rates"), RateList).data == [rate("llama", 5)]
    back = await house.http.delete("/admin/rates", params={"model": "llama"})
    assert read(back, RateList).data == [rate("llama", 20, "setting")]
    again = await house.http.delete("/admin/rates", params={"model": "llama"})
    assert read(again, RateList) == read(back, RateList)


async def test_a_rate_over_all_models_leaves_the_rest_to_those_without_one(house: House) -> None:
    found = read(await put(house, None, 50), RateList)
    assert found.data == [rate(None, 50, queue="dispatch"), rate("llama", 20, "setting")]
    assert found.shared_requests_per_second == 30
    found = read(await put(house, QWEN, 10.5), RateList)
    assert found.data[2].queue.startswith(QWEN_QUEUE)
    assert found.shared_requests_per_second == 19.5
    found = read(await house.http.delete("/admin/rates"), RateList)
    assert found.shared_requests_per_second is None


async def test_no_limit_in_place_of_a_setting_puts_the_model_among_the_others(house: House) -> None:
    await put(house, None, 50)
    found = read(await put(house, "llama", 0), RateList)
    assert found.data[1] == rate("llama", 0, queue="dispatch")
    assert found.shared_requests_per_second == 50


@pytest.mark.parametrize("over_all", [20, 15])
async def test_a_change_that_leaves_nothing_is_refused_and_says_why(house: House, over_all: float) -> None:
    error = error_of(refused := await put(house, None, over_all))
    assert (refused.status_code, error.code, error.param) == (400, "invalid_value", "requests_per_second")
    assert f"{over_all} requests/s over all models leave nothing" in error.message
    assert "llama: 20" in error.message
    assert read(await house.http.get("/admin/rates"), RateList).data == [rate("llama", 20, "setting")]


async def test_taking_a_change_back_is_refused_where_it_would_leave_nothing(house: House) -> None:
    await put(house, "llama", 5)
    await put(house, None, 15)
    refused = await house.http.delete("/admin/rates", params={"model": "llama"})
    assert (refused.status_code, error_of(refused).code) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "llama"}, 400, "missing_required_parameter", "requests_per_second"),
        ({"requests_per_second": 1}, 400, "missing_required_parameter", "model"),
        ({"model": "llama", "requests_per_second": 1, "x": 1}, 400, "unknown_parameter", "x"),
        ({"model": "llama", "requests_per_second": "1"}, 400, "invalid_type", "requests_per_second"),
        ({"model": "llama", "requests_per_second": True}, 400, "invalid_type", "requests_per_second"),
        ({"model": "llama", "requests_per_second": -1}, 400, "invalid_value", "requests_per_second"),
        ({"model": "llama", "requests_per_second": 0.0001}, 400, "invalid_value", "requests_per_second"),
        ({"model": "llama", "requests_per_second": 1e7}, 400, "invalid_value", "requests_per_second"),
        ({"model": 1, "requests_per_second": 1}, 400, "invalid_type", "model"),
        ({"model": "", "requests_per_second": 1}, 404, "model_not_found", "model"),
        ({"model": "nobody", "requests_per_second": 1}, 404, "model_not_found", "model"),
    ],
)
async def test_what_is_wrong_is_named(
    house: House, body: dict[str, object], status: int, code: str, param: str
) -> None:
    refused = await house.http.put("/admin/rates", json=body)
    error = error_of(refused)
    assert (refused.status_code, error.code, error.param) == (status, code, param)


async def test_an_empty_model_is_not_taken_for_all_of_them(house: House) -> None:
    refused = await house.http.delete("/admin/rates?model=")
    assert (refused.status_code, error_of(refused).param) == (400, "model")


async def test_a_database_that_is_away_is_a_503(house: House) -> None:
    house.database.rows.failing = DatabaseUnavailable("away")
    assert (await house.http.get("/admin/rates")).status_code == 503


async def test_rates_that_no_longer_fit_the_settings_are_shown_and_can_be_mended() -> None:
    async with open_house() as before, open_house(models={"llama": {"requests_per_second": 20}}) as house:
        await put(before, None, 10)
        house.database.rows.rates = before.database.rows.rates
        assert read(await house.http.get("/admin/rates"), RateList).shared_requests_per_second == 0
        assert read(await put(house, None, 30), RateList).shared_requests_per_second == 10
