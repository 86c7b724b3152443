"""open_services(): the real services, opened in order and closed in reverse."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from api.services import Services
from api.temporal_gateway import ClientGateway, told_until_ready
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.pool import open_database
from batchwright.inference.backends import Registry
from batchwright.inference.clients import Clients
from batchwright.settings import Settings
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.exposition import SdkMetrics
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.tracing import tracing
from batchwright.temporal import observed_runtime, open_connection


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncGenerator[Services]:
    """Temporal may be away at the start, as it may later: /readyz tells.

    Raises:
        DatabaseError: no answer in time, or other tables than this version needs.
        StorageUnavailable: the storage's directory cannot be made, or its keys cannot be had.
        SettingsError: a file of certificates or keys is not what it should be.
    """
    async with AsyncExitStack() as opened:
        metrics = Metrics(tenants=settings.metrics_tenants)
        await opened.enter_async_context(tracing(settings, "batchwright-api", metrics))
        storage = await opened.enter_async_context(open_storage(settings, metrics, Component.API))
        database = await open_database(settings)
        opened.push_async_callback(database.close)
        clients = Clients(settings)
        opened.push_async_callback(clients.aclose)
        registry = Registry(
            settings, database.models, database.model_changes, clients, unavailable=DatabaseUnavailable
        )
        registry.on_look.append(partial(_show, registry, metrics))
        await opened.enter_async_context(_running(registry.run()))
        runtime, address = observed_runtime()
        sdk = SdkMetrics(address)
        opened.push_async_callback(sdk.close)
        client_of_temporal, connection = await open_connection(settings, runtime=runtime, lazy=True)
        temporal = ClientGateway(client_of_temporal, settings)
        await opened.enter_async_context(_running(connection.run()))
        await opened.enter_async_context(_running(told_until_ready(temporal)))
        yield Services(settings, database, storage, temporal, registry, metrics, sdk)


def _show(registry: Registry, metrics: Metrics) -> None:
    """Whether this process and the workers go by one registry is to be seen."""
    metrics.registry_info.replace({(registry.fingerprint,): 1})


@asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
