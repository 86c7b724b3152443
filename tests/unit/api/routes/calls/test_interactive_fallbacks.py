"""Fallback models of interactive calls, and what is recorded if a call is sent to another backend."""

import json
from collections.abc import Callable

import httpx
import pytest

from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import BackendConfig, LimitConfig
from batchwright.contracts.terms import HoldKind
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.transport.httpx_transport import HttpxTransport
from tests.fakes.api import error_of
from tests.fakes.routing import Clock
from tests.unit.api.routes.calls.interactive_api import (
    ANSWER,
    ASK,
    CHAT,
    MINUTE,
    NOW,
    A,
    B,
    Fixture,
    answered,
)
from tests.unit.api.routes.calls.test_interactive_circuits import (
    STREAM,
    calls_to,
    check_that_tenants_take_turns,
    cut,
    events,
    opened,
    page,
    status,
    stream_of,
    unreachable,
)

NO_MODEL = {name: value for name, value in ANSWER.items() if name != "model"}
NO_USAGE = {name: value for name, value in ANSWER.items() if name != "usage"}


async def test_a_fallback_model_answers_while_all_circuits_of_the_model_are_open(api: Fixture) -> None:
    assert api.router is not None
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=B, model="org/qwen"))]
    api.handlers |= {A: unreachable, B: answered}
    await opened(api, A)
    assert (await api.http.post(CHAT, json=ASK)).json() == ANSWER
    assert json.loads(api.requests[-1].content) == {**ASK, "model": "org/qwen"}
    answers = calls_to(api, B)
    assert answers == 2  # also to the call whose failure has opened the circuit
    assert api.counted("fallbacks_total", from_model="llama", to_model="qwen") == answers
    assert await api.used_tokens() == 30 * answers


def without_usage(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=NO_USAGE)


def fall_back_to_jobs(api: Fixture) -> None:
    assert api.router is not None
    jobs = JobConfig(poll_endpoint_template="/status/{id}")
    api.router.fallbacks = [api.router_to("video", BackendConfig(url=B), kind="poll", jobs=jobs)]


async def test_a_fallback_model_that_runs_jobs_gets_no_calls(api: Fixture) -> None:
    fall_back_to_jobs(api)
    api.handlers |= {A: lambda _: httpx.Response(429, headers={"Retry-After": "20"}), B: answered}
    await opened(api, A)
    refused = await api.http.post(CHAT, json=ASK)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "20")
    assert calls_to(api, B) == 0


async def test_a_fallback_model_that_runs_jobs_does_not_let_a_tenant_take_every_trial(api: Fixture) -> None:
    fall_back_to_jobs(api)
    api.handlers[A] = unreachable
    await opened(api, A)
    assert api.router is not None
    api.clock.now += api.router.upstreams[0].circuit.wait_seconds()
    await check_that_tenants_take_turns(api)


async def fall_back(api: Fixture, handler: Callable[[httpx.Request], httpx.Response]) -> None:
    """Give the model a fallback model `qwen` at B. Open the circuit breaker of A until the clock moves.

    `handler` answers the requests of the fallback model.
    """
    assert api.router is not None
    api.router.fallbacks = [api.router_to("qwen", BackendConfig(url=B, model="org/qwen"))]
    api.handlers |= {A: status(503), B: answered}
    await opened(api, A)
    api.metrics.remove_series("model", "llama")
    api.handlers[B] = handler


async def try_again(api: Fixture) -> None:
    """Let the next call try A again. A refuses it, so it is sent to the fallback model at B."""
    assert api.router is not None
    api.clock.now += api.router.upstreams[0].circuit.wait_seconds()


@pytest.mark.parametrize(
    ("handler", "body", "count"),
    [
        (answered, ASK, 1),
        (events, STREAM, 1),
        (page, ASK, 0),
        (cut, STREAM, 0),
        (stream_of(b'data: {"error": {"message": "no"}}\n\n'), STREAM, 0),
    ],
)
async def test_only_a_whole_answer_of_a_fallback_model_counts_as_a_fallback(
    api: Fixture, handler: Callable[[httpx.Request], httpx.Response], body: object, count: int
) -> None:
    await fall_back(api, handler)
    await api.http.post(CHAT, json=body)
    assert api.counted("fallbacks_total", from_model="llama", to_model="qwen") == count


@pytest.mark.parametrize("extra", [{}, {"padding": "p" * 200_000}])
@pytest.mark.parametrize(("answer", "model"), [(NO_MODEL, "qwen"), (ANSWER, "llama")])
async def test_an_answer_of_a_fallback_model_that_names_no_model_gets_its_name(
    api: Fixture, answer: dict[str, object], model: str, extra: dict[str, object]
) -> None:
    await fall_back(api, lambda _: httpx.Response(200, json={**answer, **extra}))
    assert (await api.http.post(CHAT, json=ASK)).json() == {**answer, **extra, "model": model}


async def test_an_answer_of_the_model_itself_stays_as_it_is(api: Fixture) -> None:
    api.handlers[A] = lambda _: httpx.Response(200, json=NO_MODEL)
    assert (await api.http.post(CHAT, json=ASK)).json() == NO_MODEL


@pytest.mark.usefixtures("stopped_clock")
async def test_a_call_goes_to_a_fallback_model_only_if_a_rate_allows_another_request(api: Fixture) -> None:
    await fall_back(api, answered)
    assert api.router is not None
    api.router.limits = LimitConfig(requests_per_minute=60)
    await try_again(api)
    before = calls_to(api, B)
    refused = await api.http.post(CHAT, json=ASK)
    assert (refused.status_code, error_of(refused).message) == (503, "The backend answered 503.")
    assert calls_to(api, B) == before


async def test_a_call_is_not_sent_to_a_fallback_model_after_a_hold_has_begun(api: Fixture) -> None:
    await fall_back(api, answered)
    assert api.router is not None

    async def held_meanwhile(_: httpx.Request) -> httpx.Response:
        await api.database.holds.put(HoldKind.TENANT, "default", NOW)
        return httpx.Response(503)

    transport = HttpxTransport(httpx.MockTransport(held_meanwhile), connect_seconds=1)
    api.router.upstreams[0].backend.client.set_transport(transport)
    await try_again(api)
    before = calls_to(api, B)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 503
    assert calls_to(api, B) == before


@pytest.mark.parametrize("falls_back", [True, False])
async def test_without_the_database_the_answer_of_the_last_backend_is_passed_on(
    api: Fixture, falls_back: bool
) -> None:
    if falls_back:
        await fall_back(api, answered)
        await try_again(api)

    def refused_without_a_database(_: httpx.Request) -> httpx.Response:
        api.database.rows.failing = DatabaseUnavailable("gone")
        return httpx.Response(503)

    api.handlers[A] = refused_without_a_database
    before = calls_to(api, B)
    refused = await api.http.post(CHAT, json=ASK)
    assert (refused.status_code, error_of(refused).message) == (503, "The backend answered 503.")
    assert calls_to(api, B) == before
    assert api.counted("interactive_requests_total", model="llama", result="503") == 1


@pytest.mark.parametrize(("first", "requests"), [(status(503), 2), (unreachable, 1)])
async def test_each_backend_that_gets_a_call_takes_a_request_of_a_rate(
    api: Fixture, first: Callable[[httpx.Request], httpx.Response], requests: int
) -> None:
    await fall_back(api, answered)
    await api.database.quotas.change("default", {"backend_requests_per_minute": 600_000}, NOW)
    api.handlers[A] = first
    await try_again(api)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200
    await api.calls.publish()
    for each in await api.database.workers.interactive_rates(MINUTE):
        assert each.tokens / each.requests == pytest.approx(30 / requests)


async def test_an_answer_without_usage_keeps_its_estimate_in_a_rate_of_tokens(
    api: Fixture, stopped_clock: Clock
) -> None:
    api.register(BackendConfig(url=A), limits={"tokens_per_minute": 60_000})
    api.handlers[A] = without_usage
    assert 429 in [(await api.http.post(CHAT, json=ASK)).status_code for _ in range(10)]
    await api.calls.publish()
    for each in await api.database.workers.interactive_rates(MINUTE):
        assert each.tokens / each.requests > len(json.dumps(ASK)) / 4
    assert await api.used_tokens() == 0  # a budget counts what backends report
    stopped_clock.now += 2
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_successful_answer_without_usage_costs_the_price_of_a_request(api: Fixture) -> None:
    api.served.prices["llama"] = PriceConfig(input="1", output="2", request="0.5", currency="EUR")
    for handler, cost in ((status(400), 0), (without_usage, 0.5), (status(500), 0.5)):
        api.handlers[A] = handler
        await api.http.post(CHAT, json=ASK)
        assert api.counted("interactive_cost_total", model="llama", currency="EUR") == cost
