"""A slice whose model has several backends, or models to fall back on."""

import json
from collections import Counter

import httpx
import pytest

from activities.slices.work import Attempt
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.contracts.registry import GatewayConfig, ModelConfig, RetryConfig
from batchwright.inference.routes import Route
from batchwright.rules.segments import Kind
from batchwright.settings import load
from tests.activities.execution_house import MODEL, House, line_of, ok, plan_slice, request, status
from tests.fakes.waiters import taken

LINES = 12
ONE, TWO = "http://one", "http://two"


def config_of(*urls: str, **how: object) -> ModelConfig:
    return ModelConfig.model_validate({"backends": [GatewayConfig(url=url) for url in urls], **how})


class Fleet:
    """A house before several backends, by host; those that are not told of answer every line."""

    def __init__(self, config: ModelConfig, **settings: object) -> None:
        self.house = House(ok, config=config, **settings)
        self.house.answer = self._answer
        self.refusing: dict[str, httpx.Response] = {}
        self.heard: list[tuple[str, str]] = []  # host and body's model

    @property
    def hosts(self) -> Counter[str]:
        return Counter(host for host, _ in self.heard)

    @property
    def route(self) -> Route:
        route = self.house.backends.route_of(MODEL)
        assert route is not None
        return route

    async def plan(self, lines: int = LINES) -> None:
        await plan_slice(self.house.storage, [line_of(n) for n in range(lines)])

    async def answers(self) -> list[dict[str, object]]:
        """The bodies that the lines ended with."""
        records = await self.house.settled()
        return [json.loads(records[offset].payload)["response"]["body"] for offset in sorted(records)]

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        host, body = asked.url.host, json.loads(asked.content)
        self.heard.append((host, body["model"]))
        refused = self.refusing.get(host)
        if refused is not None:
            return httpx.Response(refused.status_code, content=refused.content, headers=refused.headers)
        return ok(body["messages"][0]["content"])


@pytest.mark.parametrize("code", [429, 502, 503, 504])
async def test_what_a_busy_backend_refuses_goes_to_the_other_at_once_and_uses_no_attempt(code: int) -> None:
    fleet = Fleet(config_of(ONE, TWO), max_attempts=1, initial_backoff_seconds=60, max_backoff_seconds=60)
    fleet.refusing["one"] = status(code, **{"retry-after": "60"})
    await fleet.plan()
    assert await fleet.house.run(request()) == SliceResult(finished=True, completed=LINES)
    assert fleet.hosts["two"] == LINES
    assert fleet.house.counted("batchwright_requests_passed_on_total", model=MODEL) == fleet.hosts["one"] > 0
    assert {record.kind for record in await fleet.house.records()} == {Kind.SETTLED}
    assert [lane.outstanding for lane in fleet.route.lanes] == [0, 0]


async def test_a_backend_that_cannot_be_reached_is_passed_over_until_it_is_tried_again() -> None:
    fleet = Fleet(config_of(ONE, TWO), circuit_failures=1, model_in_flight=1)
    fleet.refusing["one"] = status(503)
    await fleet.plan()
    fleet.route.lanes[1].outstanding = 100  # so that the first is chosen
    assert await fleet.house.run(request()) == SliceResult(finished=True, completed=LINES)
    assert fleet.heard[0][0] == "one"
    assert [lane.circuit.is_open for lane in fleet.route.lanes] == [True, False]


async def test_while_all_backends_take_nothing_the_slice_is_put_off_and_no_line_has_lost_an_attempt() -> None:
    fleet = Fleet(config_of(ONE, TWO), circuit_failures=1, model_in_flight=1)
    fleet.refusing = {host: status(503, **{"retry-after": "30"}) for host in ("one", "two")}
    await fleet.plan()
    error = await fleet.house.failure(request())
    assert error.type == Failure.DEFERRED
    assert fleet.hosts == {"one": 1, "two": 1}
    assert all(lane.circuit.is_open for lane in fleet.route.lanes)
    kept = [Attempt.model_validate_json(record.payload) for record in await fleet.house.records()]
    assert [attempt.count for attempt in kept] == [0] * len(kept)
    assert await fleet.house.settled() == {}


async def test_a_refused_key_blocks_only_the_backend_that_refused_it() -> None:
    fleet = Fleet(config_of(ONE, TWO), max_attempts=1, model_in_flight=1)
    fleet.refusing["one"] = status(401)
    await fleet.plan()
    fleet.route.lanes[1].outstanding = 100  # so that the first is chosen
    assert await fleet.house.run(request()) == SliceResult(finished=True, completed=LINES)
    assert [lane.circuit.reason for lane in fleet.route.lanes] == ["authentication", ""]
    assert fleet.hosts["two"] == LINES
    assert fleet.house.told == []


async def test_what_may_be_the_lines_fault_is_asked_of_the_other_backend_next() -> None:
    fleet = Fleet(config_of(ONE, TWO), model_in_flight=1)
    fleet.refusing["one"] = status(500)
    await fleet.plan(1)
    fleet.route.lanes[1].outstanding = 100  # so that the first is chosen
    assert await fleet.house.run(request()) == SliceResult(finished=True, completed=1)
    assert [host for host, _ in fleet.heard] == ["one", "two"]
    assert fleet.house.counted("batchwright_request_retries_total", model=MODEL, category="upstream_5xx") == 1


async def test_a_model_that_is_fallen_back_on_answers_and_the_output_names_it() -> None:
    fleet = Fleet(config_of(ONE), circuit_failures=1, model_in_flight=1)
    fleet.house.backends.add_fallback(MODEL, "spare", config_of(TWO))
    fleet.refusing["one"] = status(503)
    await fleet.plan()
    assert await fleet.house.run(request()) == SliceResult(finished=True, completed=LINES)
    assert Counter(fleet.heard) == {("one", MODEL): 1, ("two", "spare"): LINES}
    assert [answer["model"] for answer in await fleet.answers()] == ["spare"] * LINES
    assert fleet.house.counted("batchwright_fallbacks_total", from_model=MODEL, to_model="spare") == LINES


async def test_a_model_whose_fallbacks_take_nothing_either_is_put_off() -> None:
    fleet = Fleet(config_of(ONE), circuit_failures=1, model_in_flight=1)
    spare = fleet.house.backends.add_fallback(MODEL, "spare", config_of(TWO))
    fleet.refusing = {"one": status(503, **{"retry-after": "30"}), "two": status(401)}
    await fleet.plan()
    spare.lanes[0].circuit.failed(spare.lanes[0].circuit.begin(), "503", at_once=True, pause=30)
    assert (await fleet.house.failure(request())).type == Failure.DEFERRED
    assert fleet.hosts == {"one": 1}


async def test_the_attempts_of_a_model_are_its_own() -> None:
    fleet = Fleet(config_of(ONE, TWO, retries=RetryConfig(max_attempts=2)), max_attempts=9)
    fleet.refusing = {host: status(500) for host in ("one", "two")}
    await fleet.plan(1)
    assert await fleet.house.run(request()) == SliceResult(finished=True, failed=1)
    assert fleet.hosts == {"one": 1, "two": 1}


async def test_lines_that_ask_by_an_alias_reach_the_backend_under_the_models_name() -> None:
    fleet = Fleet(config_of(ONE, aliases=["short"]))
    lines = [line_of(0).replace(b'"model":"m"', b'"model":"short"'), line_of(1)]
    await plan_slice(fleet.house.storage, lines)
    assert await fleet.house.run(request()) == SliceResult(finished=True, completed=2)
    assert fleet.heard == [("one", MODEL)] * 2


async def test_the_registrys_limit_of_requests_at_once_holds_and_follows_changes() -> None:
    fleet = Fleet(config_of(ONE, limits={"in_flight": 2}), model_in_flight=50)
    permits = fleet.house.tools.permits
    assert permits.limit_of(MODEL) == 2
    held = [taken(permits, MODEL) for _ in range(4)]
    assert [permit is not None for permit in held] == [True, True, False, False]
    changed = config_of(ONE, limits={"in_flight": 3})
    fleet.route.follow(changed, [lane.backend for lane in fleet.route.lanes], fleet.route.retries)
    assert taken(permits, MODEL) is not None
    assert taken(permits, MODEL) is None


def test_a_registered_limit_leaves_the_share_of_interactive_traffic() -> None:
    assert load(capacity_fraction=0.5, model_in_flight=10).in_flight_of(MODEL, 40) == 20
    assert load(models={MODEL: {"in_flight": 7}}).in_flight_of(MODEL, 3) == 3
    assert load(models={MODEL: {"in_flight": 7}}).in_flight_of(MODEL) == 7


async def test_a_model_that_is_taken_away_within_a_turn_is_asked_no_more() -> None:
    fleet = Fleet(config_of(ONE), model_in_flight=1)
    answer = fleet.house.answer

    async def taking_away(asked: httpx.Request) -> httpx.Response:
        fleet.route.close()
        fleet.house.backends.is_served = False
        return await answer(asked)  # pyright: ignore[reportGeneralTypeIssues]

    fleet.house.answer = taking_away
    await fleet.plan()
    error = await fleet.house.failure(request())
    assert error.type == Failure.DEFERRED
    assert str(error).endswith("no backend serves this model")
    assert fleet.hosts == {"one": 1}
    assert len(await fleet.house.settled()) == 1
