"""Opens the dependencies of the API in order, and closes them in reverse order."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.calls.interactive_calls import client_settings
from batchwright.api.temporal_gateway import TemporalClientGateway, log_until_ready
from batchwright.background import BackgroundTasks
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.postgres import open_database
from batchwright.inference.circuits.circuit_metrics import update_backend_circuits, update_model_circuits
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.oidc.issuer import fetch_keys
from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.settings import Settings
from batchwright.settings_fingerprint import settings_fingerprint
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.exposition import SdkMetricsClient
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.tracing import open_tracing
from batchwright.temporal import observed_runtime, open_connection


@asynccontextmanager
async def open_dependencies(settings: Settings) -> AsyncGenerator[ApiDependencies]:
    """Context manager that opens the dependencies of the API, such as the database, and closes them at the
    end.

    The API also starts if Temporal is unavailable. `/readyz` then reports the problem.

    Raises:
        DatabaseError: the database did not respond in time, or its schema does not match this version.
        StorageUnavailable: the storage directory cannot be created, or the encryption keys cannot be read.
        SettingsError: a file of certificates or keys is not valid.
    """
    async with AsyncExitStack() as opened:
        metrics = Metrics(tenants=settings.metrics_tenants)
        metrics.settings_info.labels(settings_fingerprint(settings)).set(1)
        await opened.enter_async_context(open_tracing(settings, "batchwright-api", metrics))
        storage = await opened.enter_async_context(open_storage(settings, metrics, StorageComponent.API))
        database = await open_database(settings)
        opened.push_async_callback(database.close)
        interactive = settings.interactive_passthrough
        clients = ClientPool(
            client_settings(settings) if interactive else settings, of_batches=not interactive
        )
        opened.push_async_callback(clients.aclose)
        registry = BackendRegistry(
            settings, database.models, database.model_changes, clients, unavailable=DatabaseUnavailable
        )
        registry.on_refresh.append(partial(publish_registry, registry, metrics))
        if interactive:
            metrics.before_scrape.append(partial(_update_circuits, registry, metrics))
        failures = metrics.background_failures
        background = BackgroundTasks(lambda task, _: failures.labels(task).inc(), started=failures.labels)
        opened.push_async_callback(background.stop)
        background.start("registry", registry.run)
        runtime, address = observed_runtime()
        sdk = SdkMetricsClient(address)
        opened.push_async_callback(sdk.close)
        client_of_temporal, connection = await open_connection(settings, runtime=runtime, lazy=True)
        temporal = TemporalClientGateway(client_of_temporal, settings)
        background.start("temporal_connection", connection.run)
        background.start("temporal_readiness", partial(log_until_ready, temporal), may_return=True)
        issuer = settings.oidc_issuer
        deps = ApiDependencies(
            *(settings, database, storage, temporal, registry, metrics, sdk, background),
            issuer_keys=IssuerKeys(partial(fetch_keys, issuer)) if issuer else None,
            routers=registry if interactive else None,
        )
        opened.push_async_callback(deps.input_objects.aclose)
        yield deps


def publish_registry(registry: BackendRegistry, metrics: Metrics) -> None:
    """Publish data of the model registry (the list of models and their backends) in the metrics of this
    process.

    The metric `registry_info` shows the registry's fingerprint. If two processes have different registries,
    their fingerprints differ. Metrics with a label for the model show each registered model separately.
    """
    metrics.registry_info.replace({(registry.fingerprint,): 1})
    metrics.models.set_listed(registry.registered_models)


def _update_circuits(registry: BackendRegistry, metrics: Metrics) -> None:
    """Update the metrics of the circuit breakers in this process. A circuit breaker stops requests to a
    backend that fails.

    The API process has circuit breakers only for interactive calls (requests that are sent without a batch).
    """
    update_backend_circuits(registry.routers, metrics)
    update_model_circuits(registry.routers, metrics)
