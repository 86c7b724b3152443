"""The effective registry: models in the file, run-time changes, and models that backends list."""

import asyncio
import math
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from pydantic import JsonValue

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.inference.router import ModelRouter
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.settings import Settings, load
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.backend_metrics import register_backend_metrics
from tests.fakes.memory_database import MemoryDatabase

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
    """Several processes with the same registry file and the same table.

    All backends list the models in `listed`.
    """

    def __init__(self, **settings: object) -> None:
        self.settings = load(**settings)
        self.database = MemoryDatabase()
        self.listed: list[str] = []
        self.requests: list[httpx.Request] = []

    def process(self, settings: Settings | None = None) -> BackendRegistry:
        engine = HttpxTransport(httpx.MockTransport(self._answer), connect_seconds=1)
        chosen = settings or self.settings
        clients = ClientPool(chosen, lambda settings, tls, connect: engine)
        tables = (self.database.models, self.database.model_changes)
        return BackendRegistry(chosen, *tables, clients, unavailable=DatabaseUnavailable)

    async def change(self, model: str, config: ModelConfig | None) -> None:
        await self.database.model_changes.put(model, config, datetime.now(UTC), lambda rows: None)

    async def patch(self, model: str, patch: dict[str, JsonValue]) -> None:
        await self.database.model_changes.patch(
            model, lambda present: patch, datetime.now(UTC), lambda rows: None
        )

    async def revert(self, model: str) -> None:
        await self.database.model_changes.revert(model, lambda rows: None)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, json={"data": [{"id": name} for name in self.listed]})


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "models.yaml").write_text(FILE)
    return World(registry=tmp_path / "models.yaml")


def at(*urls: str, **how: object) -> ModelConfig:
    return ModelConfig.model_validate({"backends": [BackendConfig(url=url) for url in urls]} | how)


def route_of(registry: BackendRegistry, model: str) -> ModelRouter:
    route = registry.router_for(model)
    assert route is not None
    return route


async def test_models_of_the_file_are_served_as_it_says(world: World) -> None:
    registry = world.process()
    assert await registry.served() == {"big", "large", "small"}
    assert (registry.canonical("large"), registry.canonical("small")) == ("big", "small")
    big = route_of(registry, "big")
    assert [(lane.backend.url, lane.weight) for lane in big.upstreams] == [
        ("http://one", 1),
        ("http://two", 2),
    ]
    assert (big.fallbacks, big.retries.max_attempts) == ([route_of(registry, "small")], 2)
    assert registry.router_for("large") is None


async def test_models_with_a_backend_in_common_share_it_but_not_its_circuit(world: World) -> None:
    registry = world.process()
    await registry.served()
    ours, theirs = route_of(registry, "big").upstreams[1], route_of(registry, "small").upstreams[0]
    assert ours.backend is theirs.backend
    assert ours.circuit is not theirs.circuit


async def test_a_change_is_followed_without_probing_backends_and_unchanged_ones_keep_their_state(
    world: World,
) -> None:
    registry = world.process()
    await registry.served()
    big = route_of(registry, "big")
    stays = big.upstreams[0]
    stays.circuit.record_failure(stays.circuit.begin(), "503", at_once=True)
    await world.change("big", at("http://one", "http://three", aliases=["huge"]))
    await registry.refresh_changes()
    assert route_of(registry, "big") is big
    assert [lane.backend.url for lane in big.upstreams] == ["http://one", "http://three"]
    assert (big.upstreams[0], stays.circuit.is_open, big.fallbacks) == (stays, True, [])
    assert await registry.served() == {"big", "huge", "small"}


async def test_registered_headers_with_reserved_names_are_not_sent(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    registry, metrics = world.process(), Metrics()
    register_backend_metrics(registry, metrics)
    headers = {"x-hook": "http://theirs", "Traceparent": "00-theirs", "X-Team": "research"}
    backend = BackendConfig(url="http://one", headers=headers)
    await world.change("voice", at(kind="callback", jobs={"callback_header": "X-Hook"}, backends=[backend]))
    await registry.served()
    await registry.refresh_changes()
    [lane] = route_of(registry, "voice").upstreams
    await lane.backend.client.models("http://one")
    assert {*world.requests[-1].headers} >= {"x-team"}
    assert not {"x-hook", "traceparent"} & {*world.requests[-1].headers}
    by_header, by_trace = registry.problems["voice"]
    assert "'x-hook' of the backend http://one of 'voice' would replace the URL to call" in by_header
    assert by_trace.endswith("the trace context of its request: remove it; until then it is not sent")
    assert [record.message for record in caplog.records] == ["part of a model's change is not applied"]
    assert b'batchwright_registry_problems{model="voice"} 2.0\n' in metrics.render()
    await world.change("voice", at("http://one"))
    await registry.refresh_changes()
    assert registry.problems == {}


async def test_a_callback_header_with_a_reserved_name_is_replaced_by_the_default(world: World) -> None:
    registry = world.process()
    await world.change("voice", at("http://one", kind="callback", jobs={"callback_header": "TraceParent"}))
    await registry.served()
    [lane] = route_of(registry, "voice").upstreams
    assert lane.jobs is not None
    assert lane.jobs.callback_header == "X-Callback-Url"
    assert registry.problems["voice"][0].endswith("choose another; until then it is X-Callback-Url")


async def test_models_known_to_another_process_are_served_before_the_next_poll(world: World) -> None:
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


async def test_a_removed_model_is_removed_from_fallbacks_too_until_reverted(world: World) -> None:
    registry = world.process()
    await registry.served()
    await world.change("small", None)
    await registry.refresh_changes()
    assert await registry.served() == {"big", "large"}
    assert route_of(registry, "big").fallbacks == []
    await world.revert("small")
    await registry.refresh_changes()
    assert route_of(registry, "big").fallbacks == [route_of(registry, "small")]


async def test_slices_of_a_removed_model_send_nothing_more(world: World) -> None:
    registry = world.process()
    await registry.served()
    held = route_of(registry, "small")
    under_way = held.select()
    assert under_way is not None
    await world.change("small", None)
    await registry.refresh_changes()
    assert held.select() is None
    assert held.wait_seconds() == math.inf
    assert list(held.urls) == []
    under_way.end()
    await world.revert("small")
    await registry.refresh_changes()
    assert route_of(registry, "small").select() is not None


async def test_a_backend_that_no_model_uses_is_closed(world: World) -> None:
    registry = world.process()
    await registry.served()
    assert {backend.url for backend in registry.backends} == {"http://one", "http://two"}
    await world.change("big", at("http://three"))
    await registry.refresh_changes()
    assert {backend.url for backend in registry.backends} == {"http://two", "http://three"}


async def test_limits_of_new_backends_can_be_set_before_other_tasks_see_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, seen, told = world.process(), list[bool](), asyncio.Event()
    registry.on_refresh.append(told.set)

    async def retire(pool: ClientPool, keys: Collection[str]) -> None:
        seen.append(told.is_set())  # other tasks may run here

    monkeypatch.setattr(ClientPool, "retain_only", retire)
    assert "big" in await registry.served()
    assert seen == [True]


async def test_processes_with_the_same_registry_have_the_same_fingerprint(world: World) -> None:
    one, two = world.process(), world.process()
    await one.served()
    await two.served()
    assert one.fingerprint == two.fingerprint != ""
    await world.change("new", at("http://four"))
    await one.refresh_changes()
    assert one.fingerprint != two.fingerprint
    await two.refresh_changes()
    assert one.fingerprint == two.fingerprint


async def test_models_a_configured_backend_lists_additionally_are_not_models_of_the_file(
    world: World,
) -> None:
    world.listed = ["secret"]
    registry = world.process()
    await registry.refresh()
    await registry.refresh()
    assert registry.known_models == {"big", "small"}


async def test_a_listed_model_can_be_configured_removed_and_reverted() -> None:
    world = World(backends=["http://gateway"])
    world.listed = ["a", "b"]
    registry = world.process()
    assert await registry.served() == {"a", "b"}
    before = registry.fingerprint
    await world.change("a", at("http://own"))
    await world.change("b", None)
    await registry.refresh_changes()
    assert [lane.backend.url for lane in route_of(registry, "a").upstreams] == ["http://own"]
    assert registry.known_models == {"a"}
    await world.revert("a")
    await world.revert("b")
    await registry.refresh_changes()
    assert [lane.backend.url for lane in route_of(registry, "a").upstreams] == ["http://gateway"]
    assert (registry.known_models, registry.fingerprint) == ({"a", "b"}, before)


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


async def test_a_removed_model_is_dropped_when_only_the_changes_are_read() -> None:
    world = World(backends=["http://gateway"])
    world.listed = ["a", "b"]
    registry = world.process()
    await registry.refresh()
    assert registry.known_models == {"a", "b"}
    await world.change("b", None)
    await registry.refresh_changes()
    assert registry.known_models == {"a"}


async def test_a_partial_change_keeps_the_rest_of_the_file_and_of_a_listing(world: World) -> None:
    registry = world.process()
    await registry.served()
    before = registry.fingerprint
    await world.patch("big", {"limits": {"in_flight": 7, "capacity_fraction": 0.5}})
    await registry.refresh_changes()
    route = route_of(registry, "big")
    assert (route.limits.in_flight, route.limits.capacity_fraction) == (7, 0.5)
    assert route.retries.max_attempts == 2
    assert registry.canonical("large") == "big"
    assert registry.fingerprint != before
    await world.patch("big", {})
    await registry.refresh_changes()
    assert (route.limits.in_flight, registry.fingerprint) == (None, before)


async def test_a_partial_change_of_a_listed_model_follows_its_listing() -> None:
    world = World(backends=["http://gateway", "http://other"], backend_api_key="key")
    world.listed = ["a"]
    registry = world.process()
    await world.patch("a", {"retries": {"max_attempts": 9}})
    await world.patch("none", {"retries": {"max_attempts": 9}})
    await registry.refresh()
    assert [lane.backend.url for lane in route_of(registry, "a").upstreams] == [
        "http://gateway",
        "http://other",
    ]
    assert route_of(registry, "a").retries.max_attempts == 9
    assert registry.known_models == {"a"}
    assert all(lane.backend.client.has_key for lane in route_of(registry, "a").upstreams)


async def test_an_invalid_change_is_ignored_and_the_model_stays(world: World) -> None:
    registry = world.process()
    await world.patch("big", {"jobs": {"poll_interval": 3}, "limits": {"in_flight": 7}})
    await registry.refresh_changes()
    assert route_of(registry, "big").limits.in_flight is None
    assert "no longer fits the file or the listing" in registry.problems["big"][0]


async def test_a_model_that_only_a_gateway_for_any_model_serves_is_changed_in_part() -> None:
    world = World(backends=["http://gateway"], any_model=True)
    registry = world.process()
    await registry.served()
    assert registry.known_models == frozenset()
    await world.patch("fine-tuned", {"limits": {"in_flight": 7}})
    await registry.refresh_changes()
    assert route_of(registry, "fine-tuned").limits.in_flight == 7
    assert [lane.backend.url for lane in route_of(registry, "fine-tuned").upstreams] == ["http://gateway"]
    assert route_of(registry, "other").limits.in_flight is None
    await world.change("fine-tuned", None)
    await registry.refresh_changes()
    assert registry.router_for("fine-tuned") is None
