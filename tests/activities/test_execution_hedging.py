"""A line that waits long for its answer, of a model that says so, is asked of a second backend too."""

import asyncio
import json
from collections import Counter

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from activities.slices import hedging
from batchwright.contracts.execution import SliceResult
from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.inference.limits import Permit
from batchwright.inference.routes import Route
from batchwright.rules.segments import Kind
from tests.activities.execution_house import MODEL, House, line_of, ok, plan_slice, request, status

LINES = 6
SOON = 0.05


class Fleet:
    """Two backends, `one` and `two`: those that are `slow` answer as soon as they may."""

    def __init__(self, *slow: str, hedge_after: float | None = SOON, **settings: object) -> None:
        backends = [BackendConfig(url=url) for url in ("http://one", "http://two")]
        config = ModelConfig(backends=backends, hedge_after=hedge_after)
        self.house = House(ok, config=config, **{"max_attempts": 1, **settings})
        self.house.answer = self._answer
        self.has_asked, self.may_answer_of, self.has_answered = (
            {host: asyncio.Event() for host in ("one", "two")} for _ in range(3)
        )
        for host in self.may_answer_of.keys() - set(slow):
            self.may_answer_of[host].set()
        self.codes: dict[str, int] = {}
        self.heard: list[tuple[str, str]] = []  # host and line
        self.answered: list[str] = []

    @property
    def route(self) -> Route:
        route = self.house.backends.route_of(MODEL)
        assert route is not None
        return route

    @property
    def asked(self) -> Counter[str]:
        return Counter(host for host, _ in self.heard)

    def hedged(self, result: str) -> float:
        return self.house.counted("batchwright_requests_hedged_total", model=MODEL, result=result)

    async def run(self, lines: int = LINES, prefer: str = "one") -> SliceResult:
        await plan_slice(self.house.storage, [line_of(n) for n in range(lines)])
        for lane in self.route.lanes:
            lane.outstanding = 0 if prefer in lane.backend.url else 100
        result = await self.house.run(request())
        for lane in self.route.lanes:
            lane.outstanding -= 0 if prefer in lane.backend.url else 100
        return result

    def is_idle(self) -> bool:
        """Nothing is held any more of what lines need."""
        tools = self.house.tools
        urls = ["http://one", "http://two"]
        in_flight = [tools.permits.backends.in_flight(url) for url in urls]
        outstanding = [lane.outstanding for lane in self.route.lanes]
        unplaced = tools.permits.backends.unplaced
        return not any([*in_flight, *outstanding, tools.permits.used, tools.budget.answers, unplaced])

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        host, line = asked.url.host, json.loads(asked.content)["messages"][0]["content"]
        self.heard.append((host, line))
        self.has_asked[host].set()
        await self.may_answer_of[host].wait()
        self.answered.append(host)
        self.has_answered[host].set()
        code = self.codes.get(host, 200)
        return ok(line) if code == 200 else status(code)


async def test_lines_of_a_backend_that_never_answers_are_answered_by_the_other() -> None:
    fleet = Fleet("one", global_in_flight=64)
    assert await fleet.run() == SliceResult(finished=True, completed=LINES)
    assert fleet.asked == {"one": LINES, "two": LINES}
    assert fleet.answered == ["two"] * LINES
    assert fleet.hedged("won") == LINES
    assert {record.kind for record in await fleet.house.records()} == {Kind.SETTLED}
    assert fleet.is_idle()


async def test_each_line_has_one_result_and_its_usage_counts_once() -> None:
    fleet = Fleet("one", global_in_flight=64)
    await fleet.run()
    records = [record for record in await fleet.house.records() if record.kind is Kind.SETTLED]
    assert len({record.offset for record in records}) == len(records) == LINES
    assert sum(record.usage.output_tokens for record in records if record.usage) == 2 * LINES


async def test_a_line_whose_first_backend_answers_after_all_has_that_answer() -> None:
    fleet = Fleet("one", "two")
    running = asyncio.create_task(fleet.run(1))
    await fleet.has_asked["two"].wait()
    fleet.may_answer_of["one"].set()
    assert await running == SliceResult(finished=True, completed=1)
    assert fleet.answered == ["one"]
    assert fleet.hedged("lost") == 1
    assert fleet.is_idle()


@pytest.mark.parametrize("hedge_after", [None, 60.0])
async def test_a_line_is_asked_once_where_its_model_does_not_say_so_or_it_has_not_waited_so_long(
    hedge_after: float | None,
) -> None:
    fleet = Fleet(hedge_after=hedge_after)
    assert await fleet.run() == SliceResult(finished=True, completed=LINES)
    assert sum(fleet.asked.values()) == LINES
    assert fleet.hedged("won") == fleet.hedged("lost") == 0


async def test_a_second_backend_that_refuses_changes_nothing_for_the_line() -> None:
    fleet = Fleet("one")
    fleet.codes["two"] = 503
    running = asyncio.create_task(fleet.run(1))
    await fleet.has_answered["two"].wait()
    fleet.may_answer_of["one"].set()
    assert await running == SliceResult(finished=True, completed=1)
    assert fleet.asked == {"one": 1, "two": 1}
    assert fleet.hedged("lost") == 1
    assert fleet.is_idle()


async def test_a_first_backend_that_fails_meanwhile_costs_the_line_nothing_where_the_second_answers() -> None:
    fleet = Fleet("one", "two")
    fleet.codes["one"] = 500
    running = asyncio.create_task(fleet.run(1))
    await fleet.has_asked["two"].wait()
    fleet.may_answer_of["one"].set()
    await fleet.has_answered["one"].wait()
    fleet.may_answer_of["two"].set()
    assert await running == SliceResult(finished=True, completed=1)
    assert fleet.hedged("won") == 1
    assert fleet.is_idle()


async def test_a_refusal_of_the_line_itself_counts_as_its_answer() -> None:
    fleet = Fleet("one")
    fleet.codes["two"] = 400
    assert await fleet.run(1) == SliceResult(finished=True, failed=1)
    assert fleet.hedged("won") == 1


async def test_no_second_backend_is_asked_while_other_lines_need_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hedging, "_LOOK_AGAIN_SECONDS", 0.001)
    fleet = Fleet("one", model_in_flight=1)
    permits, looked = fleet.house.tools.permits, list[Permit | None]()
    look, has_looked = permits.spare, asyncio.Event()

    def spare(name: str, url: str) -> Permit | None:
        looked.append(look(name, url))
        if len(looked) == 3:
            has_looked.set()
        return looked[-1]

    monkeypatch.setattr(permits, "spare", spare)
    running = asyncio.create_task(fleet.run(2))
    await has_looked.wait()
    assert looked == [None] * len(looked)
    assert fleet.asked == {"one": 1}
    fleet.may_answer_of["one"].set()
    assert await running == SliceResult(finished=True, completed=2)
    assert fleet.is_idle()


async def test_a_slice_that_is_stopped_calls_both_requests_off() -> None:
    fleet = Fleet("one", "two")
    running = asyncio.create_task(fleet.run(1))
    await fleet.has_asked["two"].wait()
    running.cancel()
    with pytest.raises(ApplicationError):
        await running
    assert fleet.answered == []
    assert fleet.house.tools.permits.used == fleet.house.tools.budget.answers == 0
