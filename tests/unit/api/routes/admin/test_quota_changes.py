"""Quotas: how operators change, list and remove them."""

import pytest

from batchwright.contracts.api_objects.quotas import LimitsObject, QuotaList
from batchwright.contracts.terms import OverQuota, WindowTooShort
from tests.fakes.api import error_of, open_api, read
from tests.unit.api.routes.admin.quota_requests import put


@pytest.mark.parametrize("wrong", [-1, "-0.5", "much", "1e-7", 1_000_000_001, True, [1]])
async def test_a_budget_of_cost_that_is_negative_or_no_number_is_refused_with_its_value(
    wrong: object,
) -> None:
    async with open_api() as api:
        refused = await api.http.put("/admin/quotas", json={"tenant": "default", "cost_per_day": wrong})
        assert (refused.status_code, error_of(refused).param) == (400, "cost_per_day")
        assert f"but it is {wrong!r}" in error_of(refused).message


async def test_quotas_are_changed_field_by_field_listed_and_removed() -> None:
    async with open_api(max_enqueued_tokens=7) as api:
        await put(api, live_batches=3, models=["b", "a"])
        page = read(await put(api, enqueued_lines=0), QuotaList)
        assert page.defaults.enqueued_tokens == 7
        [own] = page.data
        assert (own.tenant, own.live_batches, own.enqueued_lines, own.models) == ("default", 3, 0, ["a", "b"])
        assert read(await api.http.get("/admin/quotas"), QuotaList) == page
        shown = read(await api.http.get("/admin/quotas/default"), LimitsObject)
        assert [(one.quota.value, one.limit) for one in shown.data][:3] == [
            ("live_batches", 3),
            ("stored_bytes", None),
            ("enqueued_lines", None),
        ]
        assert read(await put(api, live_batches=None), QuotaList).data[0].live_batches is None
        assert read(await api.http.delete("/admin/quotas?tenant=default"), QuotaList).data == []
        assert (await api.http.delete("/admin/quotas?tenant=default")).status_code == 200


async def test_a_weight_and_a_cap_are_set_shown_to_operator_and_tenant_and_taken_back() -> None:
    async with open_api(tenant_weights={"default": 4.0}) as api:
        before = read(await api.http.get("/v1/x/limits"), LimitsObject)
        assert (before.weight, before.max_in_flight) == (4.0, None)
        [own] = read(await put(api, weight=2.5, max_in_flight=16), QuotaList).data
        assert (own.weight, own.max_in_flight, own.live_batches) == (2.5, 16, None)
        for path in ("/v1/x/limits", "/admin/quotas/default"):
            shown = read(await api.http.get(path), LimitsObject)
            assert (shown.weight, shown.max_in_flight) == (2.5, 16)
        [own] = read(await put(api, weight=None), QuotaList).data
        assert (own.weight, own.max_in_flight) == (None, 16)
        await api.http.delete("/admin/quotas?tenant=default")
        assert read(await api.http.get("/v1/x/limits"), LimitsObject) == before


async def test_batches_over_a_quota_wait_or_fail_as_the_operator_says() -> None:
    async with open_api() as api:
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).over_quota is OverQuota.FAIL
        [own] = read(await put(api, over_quota="wait"), QuotaList).data
        assert own.over_quota is OverQuota.WAIT
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).over_quota is OverQuota.WAIT
        await put(api, over_quota=None)
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).over_quota is OverQuota.FAIL


async def test_batches_that_cannot_be_done_in_time_are_refused_or_not_as_the_operator_says() -> None:
    async with open_api() as api:

        async def shown() -> WindowTooShort:
            return read(await api.http.get("/v1/x/limits"), LimitsObject).window_too_short

        assert await shown() is WindowTooShort.ACCEPT
        [own] = read(await put(api, window_too_short="refuse"), QuotaList).data
        assert (own.window_too_short, await shown()) == (WindowTooShort.REFUSE, WindowTooShort.REFUSE)
        await put(api, window_too_short=None)
        assert await shown() is WindowTooShort.ACCEPT


async def test_rates_of_a_tenant_are_set_shown_and_taken_back() -> None:
    rates = {"backend_requests_per_minute": 600, "backend_tokens_per_minute": 90_000}
    async with open_api() as api:
        for changes in (rates, dict.fromkeys(rates)):
            changed = await api.http.put("/admin/quotas", json={"tenant": "default", **changes})
            [own] = read(changed, QuotaList).data
            assert own.model_dump(include=set(rates)) == changes
            limits = read(await api.http.get("/v1/x/limits"), LimitsObject)
            assert limits.model_dump(include=set(rates)) == changes


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("weight", "0", "a number from 0.001 to 1000, or null for the weight of the settings, but got 0."),
        ("weight", "-1", "but got -1."),
        ("weight", "0.0001", "but got 0.0001."),
        ("weight", "1000.0001", "but got 1000.0001."),
        ("weight", "123456789012345678901234567890", "but got 1.2345678901234568e+29."),
        ("max_in_flight", "0", "expected 1 to 9007199254740991, or null for no cap, but got 0."),
        ("max_in_flight", "-1", "but got -1."),
        ("backend_requests_per_minute", "0", "expected 1 to 9007199254740991, or null for no limit, but got"),
        ("backend_tokens_per_minute", "-1", "but got -1."),
        ("backend_tokens_per_minute", "9007199254740992", "but got 9007199254740992."),
        ("max_priority", "0", "expected 1 to 5, or null for all priorities, but got 0."),
        ("max_priority", "6", "but got 6."),
        ("max_in_flight", "9007199254740992", "but got 9007199254740992."),
    ],
)
async def test_a_weight_or_cap_outside_its_range_is_refused_with_the_range(
    field: str, value: str, said: str
) -> None:
    async with open_api() as api:
        body = f'{{"tenant": "t", "{field}": {value}}}'
        refused = await api.http.put("/admin/quotas", content=body)
        assert (refused.status_code, error_of(refused).code) == (400, "invalid_value")
        assert error_of(refused).param == field
        assert said in error_of(refused).message
        assert api.database.rows.quotas == {}


@pytest.mark.parametrize("field", ["weight", "backend_requests_per_minute", "backend_tokens_per_minute"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a_number_that_json_cannot_hold_is_refused(value: str, field: str) -> None:
    async with open_api() as api:
        refused = await api.http.put("/admin/quotas", content=f'{{"tenant": "t", "{field}": {value}}}')
        assert refused.status_code == 400
        assert error_of(refused).message
        assert api.database.rows.quotas == {}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "tenant"),
        ({"tenant": "a/b"}, "invalid_value", "tenant"),
        ({"tenant": 1}, "invalid_type", "tenant"),
        ({"tenant": "t", "lines": 1}, "unknown_parameter", "lines"),
        ({"tenant": "t", "enqueued_lines": -1}, "invalid_value", "enqueued_lines"),
        ({"tenant": "t", "enqueued_lines": 2**53}, "invalid_value", "enqueued_lines"),
        ({"tenant": "t", "enqueued_lines": 2**70}, "invalid_value", "enqueued_lines"),
        ({"tenant": "t", "stored_bytes": "1"}, "invalid_type", "stored_bytes"),
        ({"tenant": "t", "stored_bytes": 1.5}, "invalid_type", "stored_bytes"),
        ({"tenant": "t", "stored_bytes": True}, "invalid_type", "stored_bytes"),
        ({"tenant": "t", "weight": "1"}, "invalid_type", "weight"),
        ({"tenant": "t", "weight": True}, "invalid_type", "weight"),
        ({"tenant": "t", "weight": [1]}, "invalid_type", "weight"),
        ({"tenant": "t", "max_in_flight": "1"}, "invalid_type", "max_in_flight"),
        ({"tenant": "t", "max_in_flight": 1.5}, "invalid_type", "max_in_flight"),
        ({"tenant": "t", "max_in_flight": True}, "invalid_type", "max_in_flight"),
        (
            {"tenant": "t", "backend_requests_per_minute": 1.5},
            "invalid_type",
            "backend_requests_per_minute",
        ),
        ({"tenant": "t", "backend_tokens_per_minute": "1"}, "invalid_type", "backend_tokens_per_minute"),
        ({"tenant": "t", "max_priority": "1"}, "invalid_type", "max_priority"),
        ({"tenant": "t", "max_priority": True}, "invalid_type", "max_priority"),
        ({"tenant": "t", "over_quota": True}, "invalid_type", "over_quota"),
        ({"tenant": "t", "over_quota": "queue"}, "invalid_value", "over_quota"),
        ({"tenant": "t", "window_too_short": True}, "invalid_type", "window_too_short"),
        ({"tenant": "t", "window_too_short": "maybe"}, "invalid_value", "window_too_short"),
        ({"tenant": "t", "models": "a"}, "invalid_type", "models"),
        ({"tenant": "t", "models": [1]}, "invalid_type", "models[0]"),
        ({"tenant": "t", "models": ["a\x00"]}, "invalid_value", "models[0]"),
        ({"tenant": "t", "models": [""]}, "invalid_value", "models"),
        ({"tenant": "t", "models": ["a" * 257]}, "invalid_value", "models"),
        ({"tenant": "t", "models": ["a"] * 1001}, "invalid_value", "models"),
    ],
)
async def test_an_invalid_quota_is_refused_and_named(body: dict[str, object], code: str, param: str) -> None:
    async with open_api() as api:
        refused = await api.http.put("/admin/quotas", json=body)
        assert (refused.status_code, error_of(refused).code, error_of(refused).param) == (400, code, param)
        assert api.database.rows.quotas == {}


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/admin/quotas"), ("GET", "/admin/quotas/a%20b")])
async def test_an_invalid_tenant_name_is_refused(method: str, path: str) -> None:
    async with open_api() as api:
        refused = await api.http.request(method, path)
    assert (refused.status_code, error_of(refused).param) == (400, "tenant")
