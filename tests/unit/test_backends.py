"""The registry of served models: asked of backends, kept in a table, an outage taking nothing away."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.backends import Registry
from batchwright.inference.clients import Clients
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.settings import Settings, load
from tests.fakes.database import MemoryDatabase

ONE, TWO = "http://one", "http://two"


class Fleet:
    """Backends as a table of what they list; those without an entry do not answer."""

    def __init__(self, urls: list[str], **lists: list[str]) -> None:
        self.lists = {f"http://{name}": models for name, models in lists.items()}
        self.database = MemoryDatabase()
        settings = load(backends=urls)
        self.registry = self.another(settings)

    def another(self, settings: Settings) -> Registry:
        """A process's, on the same tables."""
        engine = HttpxEngine(httpx.MockTransport(self._answer), connect_seconds=1)
        clients = Clients(settings, lambda settings, tls, connect: engine)
        tables = (self.database.models, self.database.model_changes)
        return Registry(settings, *tables, clients, unavailable=DatabaseUnavailable)

    def urls(self, model: str) -> list[str]:
        route = self.registry.route_of(model)
        return [] if route is None else [lane.backend.url for lane in route.lanes]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        models = self.lists.get(f"{request.url.scheme}://{request.url.host}")
        if models is None:
            raise httpx.ConnectError("refused")
        assert request.url.path == "/v1/models"
        return httpx.Response(200, content=json.dumps({"data": [{"id": model} for model in models]}))


async def test_models_are_served_by_who_lists_them() -> None:
    fleet = Fleet([ONE, TWO], one=["a"], two=["b", "c"])
    assert await fleet.registry.served() == {"a", "b", "c"}
    assert fleet.urls("b") == [TWO]
    assert fleet.registry.route_of("x") is None


async def test_a_url_with_and_without_v1_is_one_backend() -> None:
    fleet = Fleet(["http://one/v1"], one=["a"])
    assert await fleet.registry.served() == {"a"}
    (backend,) = fleet.registry.backends
    assert str(backend.endpoint("/v1/embeddings").url) == "http://one/v1/embeddings"


async def test_an_outage_takes_no_model_away() -> None:
    fleet = Fleet([ONE], one=["a"])
    await fleet.registry.refresh()
    fleet.lists.clear()
    await fleet.registry.refresh()
    assert await fleet.registry.served() == {"a"}


async def test_what_another_process_found_is_served_by_this_one() -> None:
    fleet = Fleet([ONE])
    await fleet.database.models.note(ONE, ["a"], datetime.now(UTC))
    assert await fleet.registry.served() == {"a"}


async def test_a_model_no_longer_listed_is_gone() -> None:
    fleet = Fleet([ONE], one=["a", "b"])
    await fleet.registry.refresh()
    fleet.lists[ONE] = ["b"]
    await fleet.registry.refresh()
    assert await fleet.registry.served() == {"b"}


async def test_all_backends_that_list_a_model_serve_it() -> None:
    fleet = Fleet([TWO, ONE], one=["a"], two=["a"])
    await fleet.registry.refresh()
    assert fleet.urls("a") == [TWO, ONE]
    route = fleet.registry.route_of("a")
    assert route is not None
    del fleet.lists[TWO]
    await fleet.registry.refresh()
    chosen = [route.begin() for _ in range(10)]
    assert {sending.lane.backend.url for sending in chosen if sending} == {ONE}


async def test_a_backend_that_answers_again_is_tried_at_once() -> None:
    fleet = Fleet([ONE, TWO], one=["a"], two=["b"])
    await fleet.registry.refresh()
    route = fleet.registry.route_of("b")
    assert route is not None
    route.circuit.failed(route.circuit.begin(), "gone", at_once=True)
    gone = fleet.lists.pop(TWO)
    await fleet.registry.refresh()
    assert route.wait() > 0
    fleet.lists[TWO] = gone
    await fleet.registry.refresh()
    assert route.wait() == 0


async def test_changes_are_waited_for() -> None:
    fleet = Fleet([ONE], one=["a"])
    await fleet.registry.refresh()
    assert await fleet.registry.changed() == {"a"}
    fleet.lists[ONE] = ["a", "b"]
    await fleet.registry.refresh()
    assert await fleet.registry.changed() == {"a", "b"}


async def test_without_a_database_what_was_read_before_is_served() -> None:
    fleet = Fleet([ONE], one=["a"])
    fleet.database.rows.failing = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await fleet.registry.served()
    fleet.database.rows.failing = None
    await fleet.registry.refresh()
    fleet.database.rows.failing = DatabaseUnavailable("away")
    assert await fleet.registry.served() == {"a"}
