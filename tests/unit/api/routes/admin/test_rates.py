"""/admin/rates: rate limits in effect, changes of rate limits, and rejected changes."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from batchwright.contracts.api_objects.quotas import RateList, RateObject
from batchwright.database.errors import DatabaseUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read

QWEN, QWEN_QUEUE = "org/qwen:7b", "inference.org_qwen_7b-"


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(models={"llama": {"requests_per_second": 20}}) as opened:
        yield opened


async def put(api: ApiFixture, model: object, rate: object) -> httpx.Response:
    return await api.http.put("/admin/rates", json={"model": model, "requests_per_second": rate})


def rate(
    model: str | None, rate: float, source: str = "change", queue: str = "inference.llama"
) -> RateObject:
    return RateObject.model_validate(
        {"model": model, "requests_per_second": rate, "source": source, "queue": queue}
    )


async def test_without_changes_the_settings_are_in_effect(api: ApiFixture) -> None:
    found = read(await api.http.get("/admin/rates"), RateList)
    assert found == RateList(data=[rate("llama", 20, "setting")], shared_requests_per_second=None)


async def test_a_change_overrides_the_setting_until_it_is_reverted(api: ApiFixture) -> None:
    assert read(await put(api, "llama", 5), RateList).data == [rate("llama", 5)]
    assert read(await api.http.get("/admin/rates"), RateList).data == [rate("llama", 5)]
    back = await api.http.delete("/admin/rates", params={"model": "llama"})
    assert read(back, RateList).data == [rate("llama", 20, "setting")]
    again = await api.http.delete("/admin/rates", params={"model": "llama"})
    assert read(again, RateList) == read(back, RateList)


async def test_a_rate_over_all_models_leaves_the_rest_to_those_without_one(api: ApiFixture) -> None:
    found = read(await put(api, None, 50), RateList)
    assert found.data == [rate(None, 50, queue="dispatch"), rate("llama", 20, "setting")]
    assert found.shared_requests_per_second == 30
    found = read(await put(api, QWEN, 10.5), RateList)
    assert found.data[2].queue.startswith(QWEN_QUEUE)
    assert found.shared_requests_per_second == 19.5
    found = read(await api.http.delete("/admin/rates"), RateList)
    assert found.shared_requests_per_second is None


async def test_a_change_to_no_limit_makes_the_model_share_what_is_left(api: ApiFixture) -> None:
    await put(api, None, 50)
    found = read(await put(api, "llama", 0), RateList)
    assert found.data[1] == rate("llama", 0, queue="dispatch")
    assert found.shared_requests_per_second == 50


@pytest.mark.parametrize("over_all", [20, 15])
async def test_a_change_that_leaves_nothing_for_other_models_is_refused_with_the_reason(
    api: ApiFixture, over_all: float
) -> None:
    error = error_of(refused := await put(api, None, over_all))
    assert (refused.status_code, error.code, error.param) == (400, "invalid_value", "requests_per_second")
    assert f"{over_all} requests/s over all models leave nothing" in error.message
    assert "llama: 20" in error.message
    assert read(await api.http.get("/admin/rates"), RateList).data == [rate("llama", 20, "setting")]


async def test_reverting_a_change_is_refused_if_it_would_leave_nothing_for_other_models(
    api: ApiFixture,
) -> None:
    await put(api, "llama", 5)
    await put(api, None, 15)
    refused = await api.http.delete("/admin/rates", params={"model": "llama"})
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
async def test_an_invalid_rate_is_refused_and_named(
    api: ApiFixture, body: dict[str, object], status: int, code: str, param: str
) -> None:
    refused = await api.http.put("/admin/rates", json=body)
    error = error_of(refused)
    assert (refused.status_code, error.code, error.param) == (status, code, param)


async def test_an_empty_model_is_not_taken_for_all_of_them(api: ApiFixture) -> None:
    refused = await api.http.delete("/admin/rates?model=")
    assert (refused.status_code, error_of(refused).param) == (400, "model")


async def test_an_unavailable_database_is_a_503(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("away")
    assert (await api.http.get("/admin/rates")).status_code == 503


async def test_rates_that_no_longer_fit_the_settings_are_shown_and_can_be_corrected() -> None:
    async with open_api() as before, open_api(models={"llama": {"requests_per_second": 20}}) as api:
        await put(before, None, 10)
        api.database.rows.rates = before.database.rows.rates
        assert read(await api.http.get("/admin/rates"), RateList).shared_requests_per_second == 0
        assert read(await put(api, None, 30), RateList).shared_requests_per_second == 10
