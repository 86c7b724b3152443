"""The registry of served models: backends list them, a table stores them, and they survive an outage."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.settings import Settings, load
from tests.fakes.memory_database import MemoryDatabase

ONE, TWO = "http://one", "http://two"


class ListingBackends:
    """Backends with lists of their models. A backend without a list does not answer."""

    def __init__(self, urls: list[str], **lists: list[str]) -> None:
        self.lists = {f"http://{name}": models for name, models in lists.items()}
        self.database = MemoryDatabase()
        settings = load(backends=urls)
        self.registry = self.another(settings)

    def another(self, settings: Settings) -> BackendRegistry:
        """Return the registry of another process that uses the same tables."""
        engine = HttpxTransport(httpx.MockTransport(self._answer), connect_seconds=1)
        clients = ClientPool(settings, lambda settings, tls, connect: engine)
        tables = (self.database.models, self.database.model_changes)
        return BackendRegistry(settings, *tables, clients, unavailable=DatabaseUnavailable)

    def urls(self, model: str) -> list[str]:
        route = self.registry.router_for(model)
        return [] if route is None else [lane.backend.url for lane in route.upstreams]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        models = self.lists.get(f"{request.url.scheme}://{request.url.host}")
        if models is None:
            raise httpx.ConnectError("refused")
        assert request.url.path == "/v1/models"
        return httpx.Response(200, content=json.dumps({"data": [{"id": model} for model in models]}))


async def test_models_are_served_by_the_backends_that_list_them() -> None:
    fleet = ListingBackends([ONE, TWO], one=["a"], two=["b", "c"])
    assert await fleet.registry.served() == {"a", "b", "c"}
    assert fleet.urls("b") == [TWO]
    assert fleet.registry.router_for("x") is None


async def test_a_url_with_and_without_v1_is_one_backend() -> None:
    fleet = ListingBackends(["http://one/v1"], one=["a"])
    assert await fleet.registry.served() == {"a"}
    (backend,) = fleet.registry.backends
    assert str(backend.endpoint("/v1/embeddings").url) == "http://one/v1/embeddings"


async def test_an_outage_removes_no_model() -> None:
    fleet = ListingBackends([ONE], one=["a"])
    await fleet.registry.refresh()
    fleet.lists.clear()
    await fleet.registry.refresh()
    assert await fleet.registry.served() == {"a"}


async def test_models_found_by_another_process_are_served_by_this_one() -> None:
    fleet = ListingBackends([ONE])
    await fleet.database.models.replace_models(ONE, ["a"], datetime.now(UTC))
    assert await fleet.registry.served() == {"a"}


async def test_a_model_that_is_no_longer_listed_is_removed() -> None:
    fleet = ListingBackends([ONE], one=["a", "b"])
    await fleet.registry.refresh()
    fleet.lists[ONE] = ["b"]
    await fleet.registry.refresh()
    assert await fleet.registry.served() == {"b"}


async def test_all_backends_that_list_a_model_serve_it() -> None:
    fleet = ListingBackends([TWO, ONE], one=["a"], two=["a"])
    await fleet.registry.refresh()
    assert fleet.urls("a") == [TWO, ONE]
    route = fleet.registry.router_for("a")
    assert route is not None
    del fleet.lists[TWO]
    await fleet.registry.refresh()
    chosen = [route.select() for _ in range(10)]
    assert {sending.upstream.backend.url for sending in chosen if sending} == {ONE}


async def test_a_backend_that_answers_again_is_tried_at_once() -> None:
    fleet = ListingBackends([ONE, TWO], one=["a"], two=["b"])
    await fleet.registry.refresh()
    route = fleet.registry.router_for("b")
    assert route is not None
    route.circuit.record_failure(route.circuit.begin(), "gone", at_once=True)
    gone = fleet.lists.pop(TWO)
    await fleet.registry.refresh()
    assert route.wait_seconds() > 0
    fleet.lists[TWO] = gone
    await fleet.registry.refresh()
    assert route.wait_seconds() == 0


async def test_without_a_database_the_last_known_models_are_served() -> None:
    fleet = ListingBackends([ONE], one=["a"])
    fleet.database.rows.failing = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await fleet.registry.served()
    fleet.database.rows.failing = None
    await fleet.registry.refresh()
    fleet.database.rows.failing = DatabaseUnavailable("away")
    assert await fleet.registry.served() == {"a"}
