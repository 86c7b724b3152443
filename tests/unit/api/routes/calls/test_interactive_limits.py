"""Holds by operators and rate limits, as they apply to interactive calls."""

import asyncio

import httpx
import pytest
from openai import InternalServerError, RateLimitError

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import BackendConfig
from batchwright.contracts.terms import HoldKind
from batchwright.database.records import InteractiveRate
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.rules.token_costs import amount_of
from tests.fakes.api import error_of
from tests.fakes.routing import Clock
from tests.fakes.token_usage import publish_usage
from tests.unit.api.routes.calls.interactive_api import (
    ANSWER,
    ASK,
    CHAT,
    MESSAGES,
    MINUTE,
    NOW,
    A,
    B,
    Fixture,
    Pieces,
    answered,
    during_hooks,
)

STREAM = {**ASK, "stream": True}


@pytest.mark.parametrize(
    ("kind", "name", "code", "text"),
    [
        (HoldKind.TENANT, "default", "tenant_hold", "An operator holds your tenant"),
        (HoldKind.MODEL, "llama", "model_hold", "An operator holds the model 'llama'"),
    ],
)
async def test_a_hold_stops_interactive_calls_until_it_is_released(
    api: Fixture, kind: HoldKind, name: str, code: str, text: str
) -> None:
    await api.database.holds.put(kind, name, NOW)
    with pytest.raises(InternalServerError, match=text) as held:
        await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert (held.value.status_code, held.value.code) == (503, code)
    assert int(held.value.response.headers["retry-after"]) > 0
    assert (await api.http.post(CHAT, json=STREAM)).status_code == 503
    assert api.requests == []
    other = await api.http.post(CHAT, json=ASK, headers={"X-Tenant": "other"})
    assert other.status_code == (200 if kind is HoldKind.TENANT else 503)
    await api.database.holds.remove(kind, name)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_call_is_not_sent_if_a_hold_begins_while_hooks_check_it(api: Fixture) -> None:
    async def hold() -> None:
        await api.database.holds.put(HoldKind.TENANT, "default", NOW)
        assert (await api.http.post(CHAT, json=ASK)).status_code == 503  # reads the holds

    during_hooks.append(hold)
    answer = await api.http.post(CHAT, json=ASK)
    assert (answer.status_code, error_of(answer).code) == (503, "tenant_hold")
    assert api.requests == []


async def test_a_tenants_rate_of_requests_bounds_its_interactive_calls(
    api: Fixture, stopped_clock: Clock
) -> None:
    await api.database.quotas.change("default", {"backend_requests_per_minute": 60}, NOW)
    for _ in range(3):
        assert [(await api.http.post(CHAT, json=ASK)).status_code for _ in range(3)] == [200, 429, 429]
        stopped_clock.now += 1.2
    assert len(api.requests) == 3
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    with pytest.raises(RateLimitError, match="the tenant's rate of 60 requests per minute") as limited:
        await api.openai.chat.completions.create(model="llama", messages=MESSAGES)
    assert (limited.value.code, limited.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "1")
    other = await api.http.post(CHAT, json=ASK, headers={"X-Tenant": "other"})
    assert other.status_code == 200
    await api.database.quotas.change("default", {"backend_requests_per_minute": None}, NOW)
    assert {(await api.http.post(CHAT, json=ASK)).status_code for _ in range(10)} == {200}


async def test_a_daily_budget_of_costs_applies_to_the_first_call_of_a_process(
    api: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process knows the prices of a model only after it has read the models."""

    async def read() -> frozenset[str]:
        api.served.prices["llama"] = PriceConfig(currency="EUR", input="2")
        return api.served.names

    monkeypatch.setattr(api.served, "served", read)
    await api.database.quotas.change("default", {"cost_per_day": "0.5"}, NOW)
    await publish_usage(api.database.quotas, "worker", DailyUsage("default", "", 0, amount_of("0.5")))
    labels = {"tenant": "default", "quota": "cost_per_day"}
    before = api.counted("quota_refusals_total", **labels)
    refused = await api.http.post(CHAT, json=ASK)
    assert (refused.status_code, error_of(refused).code) == (429, "insufficient_quota")
    assert "budget of 0.5 EUR a day is used up" in error_of(refused).message
    assert api.counted("quota_refusals_total", **labels) == before + 1
    assert api.requests == []


async def test_a_models_rate_of_tokens_counts_what_answers_have_used(api: Fixture) -> None:
    used = {**ANSWER, "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}}
    api.handlers[A] = lambda _: httpx.Response(200, json=used)
    api.register(BackendConfig(url=A), limits={"tokens_per_minute": 1_000_000})
    assert {(await api.http.post(CHAT, json=ASK)).status_code for _ in range(20)} == {200}
    used["usage"] = {"prompt_tokens": 1_000_000, "completion_tokens": 0, "total_tokens": 1_000_000}
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    limited = await api.http.post(CHAT, json=STREAM, headers={"X-Tenant": "other"})
    assert limited.status_code == 429
    assert "the model's rate of 1,000,000 tokens per minute" in error_of(limited).message


async def test_a_call_that_no_backend_has_processed_uses_no_tokens_of_a_rate(api: Fixture) -> None:
    api.register(BackendConfig(url=A), limits={"tokens_per_minute": 1_000})

    def refused(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429)

    api.handlers[A] = refused
    large = {**ASK, "user": "u" * 100_000}
    assert error_of(await api.http.post(CHAT, json=large)).message == "The backend answered 429."
    api.handlers[A] = lambda _: httpx.Response(200, json=ANSWER)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_the_backend_gets_no_header_of_batches(api: Fixture) -> None:
    api.register(
        BackendConfig(
            url=A,
            headers={"X-Team": "red", "X-Lane": "people", "X-Source": "batch"},
            batch_headers={"X-Priority": "batch", "x-lane": "batches"},
        )
    )
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    [sent] = api.requests
    assert (sent.headers["x-team"], sent.headers.get_list("x-lane")) == ("red", ["people"])
    assert "x-priority" not in sent.headers
    assert "x-source" not in sent.headers


async def accepted(api: Fixture, tenant: str) -> int:
    """Send ten calls of a tenant without a pause. Return how many of them its rate limit allows."""
    await api.database.quotas.change(tenant, {"backend_requests_per_minute": 1_200}, NOW)
    answers = [await api.http.post(CHAT, json=ASK, headers={"X-Tenant": tenant}) for _ in range(10)]
    return [answer.status_code for answer in answers].count(200)


@pytest.mark.usefixtures("stopped_clock")
async def test_the_processes_of_the_api_share_a_rate_and_leave_a_tenth_to_batches(api: Fixture) -> None:
    report = api.database.workers.report_interactive_rates
    api.database.rows.clock = lambda: NOW
    assert await accepted(api, "blue") == 9  # half a second of 1,080 requests per minute
    await report("api:2", [InteractiveRate(True, "red", 360.0, 0.0)])
    assert await accepted(api, "red") == 6
    await report("api:2", [InteractiveRate(True, "green", 1_080.0, 0.0)])
    assert await accepted(api, "green") == 5  # half of what both may use


@pytest.mark.usefixtures("stopped_clock")
async def test_the_processes_of_the_api_share_the_rate_of_a_model(api: Fixture) -> None:
    """The other process also reports calls of a tenant with the name of the model. They do not count for the
    model.
    """
    api.database.rows.clock = lambda: NOW
    used = [InteractiveRate(False, "llama", 360.0, 0.0), InteractiveRate(True, "llama", 1_080.0, 0.0)]
    await api.database.workers.report_interactive_rates("api:2", used)
    api.register(BackendConfig(url=A), limits={"requests_per_minute": 1_200})
    answers = [(await api.http.post(CHAT, json=ASK)).status_code for _ in range(10)]
    assert answers == [200] * 6 + [429] * 4


@pytest.mark.usefixtures("stopped_clock")
async def test_a_rate_that_a_model_no_longer_has_limits_no_call(api: Fixture) -> None:
    api.register(BackendConfig(url=A), limits={"requests_per_minute": 60})
    assert [(await api.http.post(CHAT, json=ASK)).status_code for _ in range(2)] == [200, 429]
    api.register(BackendConfig(url=A))
    assert {(await api.http.post(CHAT, json=ASK)).status_code for _ in range(3)} == {200}


async def test_a_process_reports_what_its_calls_use_of_rates(api: Fixture) -> None:
    assert await accepted(api, "blue") > 0
    await api.calls.publish()
    reported = await api.database.workers.interactive_rates(MINUTE)
    assert [(each.of_tenant, each.name) for each in reported] == [(False, "llama"), (True, "blue")]
    for each in reported:
        assert each.requests > 0
        assert each.tokens == pytest.approx(30 * each.requests)


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_large_call_whose_client_leaves_does_not_use_up_the_rate_of_a_model_for_others(
    api: Fixture, stopped_clock: Clock, has_begun: bool
) -> None:
    api.register(BackendConfig(url=A), limits={"tokens_per_minute": 60_000})
    body, waits = Pieces(b"{", hangs=True), asyncio.Event()

    async def hangs(_: httpx.Request) -> httpx.Response:
        if has_begun:
            return httpx.Response(200, stream=body)
        waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    assert api.router is not None
    client = api.router.upstreams[0].backend.client
    client.set_transport(HttpxTransport(httpx.MockTransport(hangs), connect_seconds=1))
    leaving = asyncio.create_task(api.http.post(CHAT, json={**ASK, "user": "u" * 2_000_000}))
    await (body.is_hanging if has_begun else waits).wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    client.set_transport(HttpxTransport(httpx.MockTransport(answered), connect_seconds=1))
    stopped_clock.now += 6
    other = await api.http.post(CHAT, json=ASK, headers={"X-Tenant": "other"})
    assert other.status_code == 200
    await api.calls.publish()
    reported = await api.database.workers.interactive_rates(MINUTE)
    of_model, of_tenant = reported[0], reported[1]
    assert (of_model.of_tenant, of_tenant.name) == (False, "default")
    assert of_model.tokens < of_tenant.tokens / 10


@pytest.mark.usefixtures("stopped_clock")
async def test_large_calls_at_the_same_time_do_not_exceed_a_rate_together(api: Fixture) -> None:
    api.register(BackendConfig(url=A, model="meta/llama"), limits={"requests_per_minute": 60})
    large = {**ASK, "user": "u" * 200_000}
    answers = await asyncio.gather(*(api.http.post(CHAT, json=large) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] + [429] * 19
    assert len(api.requests) == 1


@pytest.mark.usefixtures("stopped_clock")
async def test_a_call_takes_one_request_of_a_rate_however_many_backends_cannot_be_reached(
    api: Fixture,
) -> None:
    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    urls = ["http://c", "http://d", "http://e", "http://f", A, B]
    api.register(*(BackendConfig(url=url) for url in urls), limits={"requests_per_minute": 240})
    api.handlers = dict.fromkeys(urls, unreachable)
    assert {(await api.http.post(CHAT, json=ASK)).status_code for _ in range(3)} == {503}
    api.handlers[B] = answered
    answers = [(await api.http.post(CHAT, json=ASK)).status_code for _ in range(3)]
    assert answers == [200, 200, 429]


async def test_a_rate_of_requests_is_told_to_others_only_for_calls_that_were_sent(api: Fixture) -> None:
    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    api.handlers[A] = unreachable
    await api.database.quotas.change("default", {"backend_requests_per_minute": 60_000}, NOW)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 503
    await api.calls.publish()
    assert await api.database.workers.interactive_rates(MINUTE) == []
