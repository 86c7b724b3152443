"""The registry in effect: a file's models, changed at run time, beside what backends list themselves."""

import math
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.backends import Registry
from batchwright.inference.clients import Clients
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.inference.routes import Route
from batchwright.settings import Settings, load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase
from worker.backends import follow_backends

FILE = """
models:
  big:
    backends: [{url: "http://one"}, {url: "http://two", weight: 2}]
    aliases: [large]
    fallbacks: [small]
    retries: {max_attempts: 2}
  small:
    backends: [{url: "http://two"}]
"""


class World:
    """Processes that read one file and one table; backends list `listed`."""

    def __init__(self, **settings: object) -> None:
        self.settings = load(**settings)
        self.database = MemoryDatabase()
        self.listed: list[str] = []
        self.asked: list[httpx.Request] = []

    def process(self, settings: Settings | None = None) -> Registry:
        engine = HttpxEngine(httpx.MockTransport(self._answer), connect_seconds=1)
        chosen = settings or self.settings
        clients = Clients(chosen, lambda settings, tls, connect: engine)
        tables = (self.database.models, self.database.model_changes)
        return Registry(chosen, *tables, clients, unavailable=DatabaseUnavailable)

    async def change(self, model: str, config: ModelConfig | None) -> None:
        await self.database.model_changes.put(model, config, datetime.now(UTC), lambda rows: None)

    async def revert(self, model: str) -> None:
        await self.database.model_changes.revert(model, lambda rows: None)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return httpx.Response(200, json={"data": [{"id": name} for name in self.listed]})


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "models.yaml").write_text(FILE)
    return World(registry=tmp_path / "models.yaml")


def at(*urls: str, **how: object) -> ModelConfig:
    return ModelConfig.model_validate({"backends": [BackendConfig(url=url) for url in urls]} | how)


def route_of(registry: Registry, model: str) -> Route:
    route = registry.route_of(model)
    assert route is not None
    return route


async def test_models_of_the_file_are_served_as_it_says(world: World) -> None:
    registry = world.process()
    assert await registry.served() == {"big", "large", "small"}
    assert (registry.canonical("large"), registry.canonical("small")) == ("big", "small")
    big = route_of(registry, "big")
    assert [(lane.backend.url, lane.weight) for lane in big.lanes] == [("http://one", 1), ("http://two", 2)]
    assert (big.fallbacks, big.retries.max_attempts) == ([route_of(registry, "small")], 2)
    assert registry.route_of("large") is None


async def test_models_with_a_backend_in_common_share_it_but_not_its_circuit(world: World) -> None:
    registry = world.process()
    await registry.served()
    ours, theirs = route_of(registry, "big").lanes[1], route_of(registry, "small").lanes[0]
    assert ours.backend is theirs.backend
    assert ours.circuit is not theirs.circuit


async def test_a_change_is_followed_without_asking_backends_and_what_stays_keeps_its_state(
    world: World,
) -> None:
    registry = world.process()
    await registry.served()
    big = route_of(registry, "big")
    stays = big.lanes[0]
    stays.circuit.failed(stays.circuit.begin(), "503", at_once=True)
    await world.change("big", at("http://one", "http://three", aliases=["huge"]))
    await registry.look()
    assert route_of(registry, "big") is big
    assert [lane.backend.url for lane in big.lanes] == ["http://one", "http://three"]
    assert (big.lanes[0], stays.circuit.is_open, big.fallbacks) == (stays, True, [])
    assert await registry.served() == {"big", "huge", "small"}


async def test_what_was_registered_before_clashes_were_refused_takes_nothing_of_ours_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    registry, metrics = world.process(), Metrics()
    follow_backends(registry, metrics)
    headers = {"x-hook": "http://theirs", "Traceparent": "00-theirs", "X-Team": "research"}
    backend = BackendConfig(url="http://one", headers=headers)
    await world.change("voice", at(kind="callback", jobs={"callback_header": "X-Hook"}, backends=[backend]))
    await registry.served()
    await registry.look()
    [lane] = route_of(registry, "voice").lanes
    await lane.backend.client.models("http://one")
    assert {*world.asked[-1].headers} >= {"x-team"}
    assert not {"x-hook", "traceparent"} & {*world.asked[-1].headers}
    by_header, by_trace = registry.problems["voice"]
    assert "'x-hook' of the backend http://one of 'voice' would stand for the URL to call" in by_header
    assert by_trace.endswith("the trace of its request: take it away; until then it is not sent")
    assert [record.message for record in caplog.records] == ["not all of a registered model is heeded"]
    assert b'batchwright_registry_problems{model="voice"} 2.0\n' in metrics.shown()
    await world.change("voice", at("http://one"))
    await registry.look()
    assert registry.problems == {}


async def test_a_callback_header_that_stands_for_one_of_ours_is_the_usual_one(world: World) -> None:
    registry = world.process()
    await world.change("voice", at("http://one", kind="callback", jobs={"callback_header": "TraceParent"}))
    await registry.served()
    [lane] = route_of(registry, "voice").lanes
    assert lane.jobs is not None
    assert lane.jobs.callback_header == "X-Callback-Url"
    assert registry.problems["voice"][0].endswith("choose another; until then it is X-Callback-Url")


async def test_what_another_process_knows_is_served_before_the_next_look(world: World) -> None:
    world.settings = load(backends=["http://one"])
    one, two = world.process(), world.process()
    world.listed = ["first"]
    await one.refresh()
    await two.refresh()
    await world.change("new", at("http://four", aliases=["newest"]))
    world.listed = ["first", "listed"]
    await one.refresh()
    assert await two.served() == {"first"}
    assert await two.served_now() == {"first", "listed", "new", "newest"}
    assert two.canonical("newest") == "new"


async def test_a_model_taken_away_is_gone_from_fallbacks_too_until_that_is_reverted(world: World) -> None:
    registry = world.process()
    await registry.served()
    await world.change("small", None)
    await registry.look()
    assert await registry.served() == {"big", "large"}
    assert route_of(registry, "big").fallbacks == []
    await world.revert("small")
    await registry.look()
    assert route_of(registry, "big").fallbacks == [route_of(registry, "small")]


async def test_who_still_sends_for_a_model_that_is_taken_away_sends_nothing_more(world: World) -> None:
    registry = world.process()
    await registry.served()
    held = route_of(registry, "small")
    under_way = held.begin()
    assert under_way is not None
    await world.change("small", None)
    await registry.look()
    assert held.begin() is None
    assert held.wait() == math.inf
    assert list(held.urls) == []
    under_way.end()
    await world.revert("small")
    await registry.look()
    assert route_of(registry, "small").begin() is not None


async def test_a_backend_that_no_model_uses_any_more_is_let_go(world: World) -> None:
    registry = world.process()
    await registry.served()
    assert {backend.url for backend in registry.backends} == {"http://one", "http://two"}
    await world.change("big", at("http://three"))
    await registry.look()
    assert {backend.url for backend in registry.backends} == {"http://two", "http://three"}


async def test_processes_agree_by_their_fingerprints_that_they_follow_the_same(world: World) -> None:
    one, two = world.process(), world.process()
    await one.served()
    await two.served()
    assert one.fingerprint == two.fingerprint != ""
    await world.change("new", at("http://four"))
    await one.look()
    assert one.fingerprint != two.fingerprint
    await two.look()
    assert one.fingerprint == two.fingerprint


async def test_what_a_backend_lists_beside_its_configuration_is_no_model_of_the_file(world: World) -> None:
    world.listed = ["secret"]
    registry = world.process()
    await registry.refresh()
    await registry.refresh()
    assert registry.known == {"big", "small"}


async def test_a_listed_model_can_be_configured_taken_away_and_reverted() -> None:
    world = World(backends=["http://gateway"])
    world.listed = ["a", "b"]
    registry = world.process()
    assert await registry.served() == {"a", "b"}
    before = registry.fingerprint
    await world.change("a", at("http://own"))
    await world.change("b", None)
    await registry.look()
    assert [lane.backend.url for lane in route_of(registry, "a").lanes] == ["http://own"]
    assert registry.known == {"a"}
    await world.revert("a")
    await world.revert("b")
    await registry.look()
    assert [lane.backend.url for lane in route_of(registry, "a").lanes] == ["http://gateway"]
    assert (registry.known, registry.fingerprint) == ({"a", "b"}, before)


async def test_a_model_that_is_listed_wins_over_an_alias_of_its_name() -> None:
    world = World(backends=["http://gateway"])
    world.listed = ["a", "short"]
    registry = world.process()
    await world.change("own", at("http://own", aliases=["short"], fallbacks=["a"]))
    await registry.refresh()
    assert registry.canonical("short") == "short"
    assert route_of(registry, "own").fallbacks == [route_of(registry, "a")]
    world.listed = ["a"]
    await registry.refresh()
    assert registry.canonical("short") == "own"


async def test_a_model_taken_away_between_two_looks_is_told_to_those_who_wait() -> None:
    world = World(backends=["http://gateway"])
    world.listed = ["a", "b"]
    registry = world.process()
    await registry.refresh()
    assert await registry.changed() == {"a", "b"}
    await world.change("b", None)
    await registry.look()
    assert await registry.changed() == {"a"}
