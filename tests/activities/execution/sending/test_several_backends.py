"""A model with several backends, or with fallback models."""

import asyncio
import json
from collections import Counter

import httpx
import pytest

from batchwright.activities.execution.slice_state.line_queue import LineAttempt
from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig, RetryConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.inference.limits.tenant_and_model_limits import Charge, FleetRate, Rates
from batchwright.inference.router import ModelRouter
from batchwright.rules.results.segment_format import RecordKind
from batchwright.settings import load
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.fakes.permit_requests import taken

LINES = 12
ONE, TWO = "http://one", "http://two"


def config_of(*urls: str, **how: object) -> ModelConfig:
    return ModelConfig.model_validate({"backends": [GatewayConfig(url=url) for url in urls], **how})


class SeveralBackends:
    """A fixture with several backends. The host in its URL identifies a backend.

    `refusing` has the responses of hosts. A backend whose host is not in it answers with success.
    """

    def __init__(self, config: ModelConfig, **settings: object) -> None:
        self.execution = ExecutionFixture(ok, config=config, **settings)
        self.execution.answer = self._answer
        self.refusing: dict[str, httpx.Response] = {}
        self.received: list[tuple[str, str]] = []  # host and body's model

    @property
    def hosts(self) -> Counter[str]:
        return Counter(host for host, _ in self.received)

    @property
    def route(self) -> ModelRouter:
        route = self.execution.backends.router_for(MODEL)
        assert route is not None
        return route

    async def plan(self, lines: int = LINES) -> None:
        await plan_slice(self.execution.storage, [line_of(n) for n in range(lines)])

    async def answers(self) -> list[dict[str, object]]:
        """Return the response bodies of the lines."""
        records = await self.execution.settled()
        return [json.loads(records[offset].payload)["response"]["body"] for offset in sorted(records)]

    async def _answer(self, http_request: httpx.Request) -> httpx.Response:
        host, body = http_request.url.host, json.loads(http_request.content)
        self.received.append((host, body["model"]))
        refused = self.refusing.get(host)
        if refused is not None:
            return httpx.Response(refused.status_code, content=refused.content, headers=refused.headers)
        return ok(body["messages"][0]["content"])


@pytest.mark.parametrize("code", [429, 502, 503, 504])
async def test_a_line_refused_by_a_busy_backend_is_sent_to_the_other_at_once_and_uses_no_attempt(
    code: int,
) -> None:
    fleet = SeveralBackends(
        config_of(ONE, TWO), max_attempts=1, initial_backoff_seconds=60, max_backoff_seconds=60
    )
    fleet.refusing["one"] = status(code, **{"retry-after": "60"})
    await fleet.plan()
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=LINES)
    assert fleet.hosts["two"] == LINES
    assert (
        fleet.execution.counted("batchwright_requests_passed_on_total", model=MODEL) == fleet.hosts["one"] > 0
    )
    assert {record.kind for record in await fleet.execution.records()} == {RecordKind.SETTLED}
    assert [lane.outstanding for lane in fleet.route.upstreams] == [0, 0]


async def test_lines_that_another_backend_refused_do_not_exceed_the_share_of_the_fleets_limit() -> None:
    fleet = SeveralBackends(config_of(ONE, TWO), max_attempts=1)
    fleet.refusing["two"] = status(429)
    limits = fleet.execution.context.permits.backends
    limits.set_shares({ONE: 2})
    in_flight, seen = set[httpx.Request](), list[int]()
    answer = fleet.execution.answer

    async def note(asked: httpx.Request) -> httpx.Response:
        if asked.url.host != "one":
            return await answer(asked)
        in_flight.add(asked)
        seen.append(len(in_flight))
        await asyncio.sleep(0)
        try:
            return await answer(asked)
        finally:
            in_flight.remove(asked)

    fleet.execution.answer = note
    await fleet.plan()
    while await fleet.execution.turn(request()) is None:
        fleet.execution.next_attempt()
    assert fleet.hosts["one"] == LINES
    assert max(seen) <= 2


async def test_a_line_that_is_passed_on_when_its_turn_is_over_is_charged_with_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = SeveralBackends(config_of(ONE, TWO))
    fleet.refusing["one"], refuse = status(503), asyncio.Event()
    fleet.route.upstreams[1].outstanding = 100  # so that the first is chosen
    worker, answer, charged = fleet.execution.context, fleet.execution.answer, list[int]()
    limits = worker.permits.limits
    limits.model_rates, charge = {MODEL: Rates(tokens=FleetRate(1_000_000, 1_000_000))}, limits.charge

    async def refuse_late(received: httpx.Request) -> httpx.Response:
        if received.url.host == "one":
            await refuse.wait()
        return await answer(received)

    def record(model: str, tenant: str, line_bytes: int, now: float) -> Charge | None:
        charged.append(line_bytes)
        return charge(model, tenant, line_bytes, now)

    monkeypatch.setattr(limits, "charge", record)
    fleet.execution.answer = refuse_late
    await fleet.plan(1)
    fleet.execution.occupy_all_places()
    running = fleet.execution.start(request(slice_seconds=0))
    # When its time is over, the turn frees the memory of its lines.
    await eventually(lambda: bool(charged) and worker.budget.held == worker.budget.response_bytes)
    refuse.set()
    assert await running == SliceResult(finished=True, completed=1)
    assert charged == [len(line_of(0))] * 2


async def test_a_line_that_did_not_reach_a_backend_uses_no_tokens_of_a_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = SeveralBackends(config_of(ONE, TWO))
    fleet.route.upstreams[1].outstanding = 100  # so that the first is chosen
    limits, answer, used = fleet.execution.context.permits.limits, fleet.execution.answer, list[int]()
    limits.model_rates, correct = {MODEL: Rates(tokens=FleetRate(10**9, 10**9))}, limits.correct

    async def reach_only_two(received: httpx.Request) -> httpx.Response:
        if received.url.host == "one":
            raise httpx.ConnectError("refused")
        return await answer(received)

    def record(charge: Charge, tokens: int) -> None:
        used.append(tokens)
        correct(charge, tokens)

    monkeypatch.setattr(limits, "correct", record)
    fleet.execution.answer = reach_only_two
    await fleet.plan(1)
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=1)
    assert used == [0, 5]


async def test_a_backend_that_cannot_be_reached_is_passed_over_until_it_is_tried_again() -> None:
    fleet = SeveralBackends(config_of(ONE, TWO), circuit_failures=1, model_in_flight=1)
    fleet.refusing["one"] = status(503)
    await fleet.plan()
    fleet.route.upstreams[1].outstanding = 100  # so that the first is chosen
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=LINES)
    assert fleet.received[0][0] == "one"
    assert [lane.circuit.is_open for lane in fleet.route.upstreams] == [True, False]


async def test_while_all_circuits_are_open_the_slice_is_deferred_and_no_line_loses_an_attempt() -> None:
    fleet = SeveralBackends(config_of(ONE, TWO), circuit_failures=1, model_in_flight=1)
    fleet.refusing = {host: status(503, **{"retry-after": "30"}) for host in ("one", "two")}
    await fleet.plan()
    error = await fleet.execution.failure(request())
    assert error.type == Failure.DEFERRED
    assert fleet.hosts == {"one": 1, "two": 1}
    assert all(lane.circuit.is_open for lane in fleet.route.upstreams)
    attempts = [LineAttempt.model_validate_json(record.payload) for record in await fleet.execution.records()]
    assert [attempt.count for attempt in attempts] == [0] * len(attempts)
    assert await fleet.execution.settled() == {}


async def test_a_refused_key_blocks_only_the_backend_that_refused_it() -> None:
    fleet = SeveralBackends(config_of(ONE, TWO), max_attempts=1, model_in_flight=1)
    fleet.refusing["one"] = status(401)
    await fleet.plan()
    fleet.route.upstreams[1].outstanding = 100  # so that the first is chosen
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=LINES)
    assert [lane.circuit.reason for lane in fleet.route.upstreams] == ["authentication", ""]
    assert fleet.hosts["two"] == LINES
    assert fleet.execution.reported_reasons == []


async def test_an_error_that_the_line_may_have_caused_is_retried_at_the_other_backend() -> None:
    fleet = SeveralBackends(config_of(ONE, TWO), model_in_flight=1)
    fleet.refusing["one"] = status(500)
    await fleet.plan(1)
    fleet.route.upstreams[1].outstanding = 100  # so that the first is chosen
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=1)
    assert [host for host, _ in fleet.received] == ["one", "two"]
    assert (
        fleet.execution.counted("batchwright_request_retries_total", model=MODEL, category="upstream_5xx")
        == 1
    )


async def test_a_fallback_model_answers_and_the_output_names_it() -> None:
    fleet = SeveralBackends(config_of(ONE), circuit_failures=1, model_in_flight=1)
    fleet.execution.backends.add_fallback(MODEL, "spare", config_of(TWO))
    fleet.refusing["one"] = status(503)
    await fleet.plan()
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=LINES)
    assert Counter(fleet.received) == {("one", MODEL): 1, ("two", "spare"): LINES}
    assert [answer["model"] for answer in await fleet.answers()] == ["spare"] * LINES
    assert fleet.execution.counted("batchwright_fallbacks_total", from_model=MODEL, to_model="spare") == LINES


async def test_a_model_whose_fallbacks_are_unavailable_too_is_deferred() -> None:
    fleet = SeveralBackends(config_of(ONE), circuit_failures=1, model_in_flight=1)
    spare = fleet.execution.backends.add_fallback(MODEL, "spare", config_of(TWO))
    fleet.refusing = {"one": status(503, **{"retry-after": "30"}), "two": status(401)}
    await fleet.plan()
    spare.upstreams[0].circuit.record_failure(
        spare.upstreams[0].circuit.begin(), "503", at_once=True, pause=30
    )
    assert (await fleet.execution.failure(request())).type == Failure.DEFERRED
    assert fleet.hosts == {"one": 1}


async def test_a_model_can_override_the_number_of_attempts() -> None:
    fleet = SeveralBackends(config_of(ONE, TWO, retries=RetryConfig(max_attempts=2)), max_attempts=9)
    fleet.refusing = {host: status(500) for host in ("one", "two")}
    await fleet.plan(1)
    assert await fleet.execution.run(request()) == SliceResult(finished=True, failed=1)
    assert fleet.hosts == {"one": 1, "two": 1}


async def test_lines_with_an_alias_are_sent_under_the_name_of_the_model() -> None:
    fleet = SeveralBackends(config_of(ONE, aliases=["short"]))
    lines = [line_of(0).replace(b'"model":"m"', b'"model":"short"'), line_of(1)]
    await plan_slice(fleet.execution.storage, lines)
    assert await fleet.execution.run(request()) == SliceResult(finished=True, completed=2)
    assert fleet.received == [("one", MODEL)] * 2


async def test_the_registrys_share_for_batches_holds_and_follows_changes() -> None:
    fleet = SeveralBackends(
        config_of(ONE, limits={"in_flight": 20, "capacity_fraction": 0.5}), capacity_fraction=0.1
    )
    worker, route = fleet.execution.context, fleet.route
    assert worker.permits.limit_of(MODEL) == 10
    backends = [lane.backend for lane in route.upstreams]
    url = backends[0].url
    worker.retain({MODEL}, {url})
    assert url in worker.permits.backends.interactive
    route.update(config_of(ONE, limits={"in_flight": 20, "capacity_fraction": 1}), backends, route.retries)
    worker.retain({MODEL}, {url})
    assert (worker.permits.limit_of(MODEL), worker.permits.backends.interactive) == (20, frozenset())


async def test_the_registrys_limit_of_requests_at_once_holds_and_follows_changes() -> None:
    fleet = SeveralBackends(config_of(ONE, limits={"in_flight": 2}), model_in_flight=50)
    permits = fleet.execution.context.permits
    assert permits.limit_of(MODEL) == 2
    held = [taken(permits, MODEL) for _ in range(4)]
    assert [permit is not None for permit in held] == [True, True, False, False]
    changed = config_of(ONE, limits={"in_flight": 3})
    fleet.route.update(changed, [lane.backend for lane in fleet.route.upstreams], fleet.route.retries)
    assert taken(permits, MODEL) is not None
    assert taken(permits, MODEL) is None


def test_a_registered_limit_leaves_the_share_of_interactive_traffic() -> None:
    assert load(capacity_fraction=0.5, model_in_flight=10).in_flight_of(MODEL, 40) == 20
    assert load(models={MODEL: {"in_flight": 7}}).in_flight_of(MODEL, 3) == 3
    assert load(models={MODEL: {"in_flight": 7}}).in_flight_of(MODEL) == 7


def test_a_small_share_of_interactive_traffic_is_one_request_at_once() -> None:
    assert load(capacity_fraction=0.1, model_in_flight=4).in_flight_of(MODEL) == 1


async def test_a_model_removed_during_a_turn_gets_no_more_requests() -> None:
    fleet = SeveralBackends(config_of(ONE), model_in_flight=1)
    answer = fleet.execution.answer

    async def remove_model(http_request: httpx.Request) -> httpx.Response:
        fleet.route.close()
        fleet.execution.backends.is_served = False
        return await answer(http_request)

    fleet.execution.answer = remove_model
    await fleet.plan()
    error = await fleet.execution.failure(request())
    assert error.type == Failure.DEFERRED
    assert str(error).endswith("no backend serves this model")
    assert fleet.hosts == {"one": 1}
    assert len(await fleet.execution.settled()) == 1
