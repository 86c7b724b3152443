"""The registry of served models: asked of backends, kept in a table, an outage taking nothing away."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.backends import Backend, Registry
from batchwright.inference.client import InferenceClient
from batchwright.inference.httpx_engine import HttpxEngine
from batchwright.settings import load
from tests.fakes.database import MemoryDatabase

ONE, TWO = "http://one", "http://two"


class Fleet:
    """Backends as a table of what they list; those without an entry do not answer."""

    def __init__(self, urls: list[str], **lists: list[str]) -> None:
        self.lists = {f"http://{name}": models for name, models in lists.items()}
        self.database = MemoryDatabase()
        settings = load(backends=urls)
        client = InferenceClient(HttpxEngine(httpx.MockTransport(self._answer), connect_seconds=1), settings)
        self.registry = Registry(settings, self.database.models, client, unavailable=DatabaseUnavailable)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        models = self.lists.get(f"{request.url.scheme}://{request.url.host}")
        if models is None:
            raise httpx.ConnectError("refused")
        assert request.url.path == "/v1/models"
        return httpx.Response(200, content=json.dumps({"data": [{"id": model} for model in models]}))


async def test_models_are_served_by_who_lists_them() -> None:
    fleet = Fleet([ONE, TWO], one=["a"], two=["b", "c"])
    assert await fleet.registry.served() == {"a", "b", "c"}
    assert fleet.registry.backend_of("b") == Backend(TWO)
    assert fleet.registry.backend_of("x") is None


async def test_a_url_with_and_without_v1_is_one_backend() -> None:
    fleet = Fleet(["http://one/v1"], one=["a"])
    assert await fleet.registry.served() == {"a"}
    backend = fleet.registry.backend_of("a")
    assert backend is not None
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


async def test_the_first_backend_that_answers_gets_the_model() -> None:
    fleet = Fleet([TWO, ONE], one=["a"], two=["a"])
    await fleet.registry.refresh()
    assert fleet.registry.backend_of("a") == Backend(TWO)
    del fleet.lists[TWO]
    await fleet.registry.refresh()
    assert fleet.registry.backend_of("a") == Backend(ONE)


async def test_a_backend_that_answers_again_is_told() -> None:
    fleet = Fleet([ONE, TWO], one=["a"], two=["b"])
    returned: list[frozenset[str]] = []
    fleet.registry.on_return = returned.append
    await fleet.registry.refresh()
    gone = fleet.lists.pop(TWO)
    await fleet.registry.refresh()
    fleet.lists[TWO] = gone
    await fleet.registry.refresh()
    await fleet.registry.refresh()
    assert returned == [frozenset({"b"})]


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
