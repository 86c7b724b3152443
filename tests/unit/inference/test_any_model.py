"""Backends that accept any model name: gateways, wildcards, LoRA, and backends without a model list."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.inference.router import ModelRouter
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.raw_servers import answering, served
from tests.fakes.settings import load
from tests.fakes.tables.models.models import MemoryModels
from tests.unit.inference.test_discovery import listing

NO_LIST = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def registry(
    answer: bytes, tmp_path: Path, gateway: str = "", **settings: object
) -> AsyncGenerator[tuple[BackendRegistry, MemoryDatabase]]:
    """Context manager that yields a registry and its database. The registry's only gateway returns `answer`.

    The gateway is configured in a registry file with the keys `gateway`, or by BATCHWRIGHT_BACKENDS if
    `settings` are given.
    """
    database = MemoryDatabase()
    async with served(answering(answer)) as target:
        url = f"http://{target.authority.decode()}"
        if settings:
            chosen = load(backends=[url], **settings)
        else:
            file = tmp_path / "registry.yaml"
            file.write_text(f"gateway: {{url: '{url}'{gateway}}}")
            chosen = load(registry=file)
        clients = ClientPool(chosen)
        backend_registry = BackendRegistry(
            chosen, database.models, database.model_changes, clients, unavailable=DatabaseUnavailable
        )
        await backend_registry.refresh()
        try:
            yield backend_registry, database
        finally:
            await clients.aclose()


async def test_a_gateway_accepts_names_that_it_does_not_list(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, _):
        assert await backend_registry.served() == {"a"}
        assert backend_registry.accepts_any_model
        assert backend_registry.accepts_unlisted("base:my-lora")
        route = backend_registry.router_for("base:my-lora")
        assert route is not None
        assert route.select() is not None
        assert backend_registry.router_for("base:my-lora") is route
        assert backend_registry.known_models == {"a", "base:my-lora"}


async def test_a_gateway_without_a_model_list_accepts_every_model(tmp_path: Path) -> None:
    async with registry(NO_LIST, tmp_path) as (backend_registry, _):
        route = backend_registry.router_for("anything")
        assert route is not None
        assert [lane.upstream_model for lane in route.upstreams] == ["anything"]


async def test_backends_of_the_setting_accept_any_model_only_if_it_says_so(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path, any_model=False) as (backend_registry, _):
        assert not backend_registry.accepts_any_model
        assert backend_registry.router_for("b") is None
    async with registry(listing("a"), tmp_path, any_model=True) as (backend_registry, _):
        assert backend_registry.router_for("b") is not None


async def test_a_gateway_can_be_limited_to_listed_models(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path, ", any_model: false") as (backend_registry, _):
        assert not backend_registry.accepts_unlisted("b")
        assert backend_registry.router_for("b") is None


async def test_the_prices_of_a_gateway_are_those_of_its_models_unless_a_change_sets_others(
    tmp_path: Path,
) -> None:
    prices = ", prices: {currency: EUR, input: 0.5, output: 2}"
    async with registry(listing("a"), tmp_path, prices) as (backend_registry, database):
        expected = PriceConfig(currency="EUR", input="0.5", output="2")
        assert backend_registry.prices_of("a") == expected
        assert backend_registry.prices_of("not-listed") == expected  # before any line of it was sent
        assert backend_registry.router_for("not-listed") is not None
        assert backend_registry.prices_of("not-listed") == expected
        patch: dict[str, JsonValue] = {"prices": {"output": "3"}}
        for model in ("a", "other"):
            await database.model_changes.patch(
                model, lambda before: patch, datetime.now(UTC), lambda changes: None
            )
        await backend_registry.refresh()
        for model in ("a", "other"):
            assert backend_registry.prices_of(model) == expected.model_copy(update={"output": "3"})
        assert backend_registry.prices_of("not-listed") == expected
    async with registry(listing("a"), tmp_path, prices + ", any_model: false") as (backend_registry, _):
        assert backend_registry.prices_of("not-listed") is None


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 257, "line\nbreak"])
async def test_an_invalid_model_name_is_not_accepted(name: str, tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, _):
        assert not backend_registry.accepts_unlisted(name)
        assert backend_registry.router_for(name) is None


async def test_a_model_removed_at_run_time_is_not_served_as_any_model(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, database):
        assert backend_registry.router_for("b") is not None
        await database.model_changes.put("b", None, datetime.now(UTC), lambda changes: None)
        await backend_registry.refresh_changes()
        assert not backend_registry.accepts_unlisted("b")
        assert backend_registry.router_for("b") is None


async def test_unlisted_models_are_forgotten_once_no_batch_waits_for_them(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, _):
        for name in ("b", "c"):
            backend_registry.router_for(name)
        b = backend_registry.router_for("b")
        backend_registry.retain_unlisted({"b"})
        assert backend_registry.known_models == {"a", "b"}
        assert backend_registry.router_for("b") is b


async def test_a_model_that_is_registered_while_batches_use_it_is_listed(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, database):
        backend_registry.router_for("b")
        assert backend_registry.registered_models == {"a"}
        config = ModelConfig.model_validate({"backends": [{"url": "http://127.0.0.1:1"}]})
        await database.model_changes.put("b", config, datetime.now(UTC), lambda changes: None)
        await backend_registry.refresh_changes()
        assert backend_registry.registered_models == backend_registry.known_models == {"a", "b"}


async def test_a_model_registered_at_run_time_has_its_own_backends(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, database):
        backend_registry.router_for("b")
        config = ModelConfig.model_validate({"backends": [{"url": "http://elsewhere"}]})
        await database.model_changes.put("b", config, datetime.now(UTC), lambda changes: None)
        await backend_registry.refresh_changes()
        route = backend_registry.router_for("b")
        assert route is not None
        assert [lane.backend.url for lane in route.upstreams] == ["http://elsewhere"]


async def test_a_further_unlisted_model_does_not_rebuild_all_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, _):
        followed: list[str] = []
        follow = ModelRouter.update

        def counted(route: ModelRouter, *args: Any) -> None:
            followed.append(route.model)
            follow(route, *args)

        monkeypatch.setattr(ModelRouter, "update", counted)
        names = [f"m{number}" for number in range(50)]
        routes = [backend_registry.router_for(name) for name in names]
        assert followed == names
        await backend_registry.refresh_changes()
        assert [backend_registry.router_for(name) for name in names] == routes
        assert backend_registry.known_models == {"a", *names}


async def test_a_partly_changed_model_is_still_served_as_any_model(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (backend_registry, database):
        patch: dict[str, JsonValue] = {"limits": {"in_flight": 7}}
        await database.model_changes.patch("b", lambda before: patch, datetime.now(UTC), lambda changes: None)
        await backend_registry.refresh_changes()
        assert backend_registry.accepts_unlisted("b")


async def test_no_unlisted_model_is_accepted_before_removed_models_are_known(tmp_path: Path) -> None:
    async with registry(listing("a"), tmp_path) as (_, database):
        await database.model_changes.put("b", None, datetime.now(UTC), lambda changes: None)
        chosen = load(backends=["http://127.0.0.1:1"], any_model=True)
        clients = ClientPool(chosen)
        fresh = BackendRegistry(
            chosen, database.models, database.model_changes, clients, unavailable=DatabaseUnavailable
        )
        assert fresh.router_for("b") is None
        await clients.aclose()


async def test_an_unavailable_database_does_not_count_as_a_failed_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def note(self: MemoryModels, backend_url: str, names: list[str], at: datetime) -> None:
        raise DatabaseUnavailable("away")

    async with registry(listing("a"), tmp_path) as (backend_registry, _):
        monkeypatch.setattr(MemoryModels, "replace_models", note)
        with pytest.raises(DatabaseUnavailable):
            await backend_registry.refresh()
        assert not backend_registry.backends[0].listing_failed
