"""A storage on S3 behind a proxy. Tests cause faults in the proxy."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.fakes.s3_proxy import S3Proxy, proxied

MIB = 1024 * 1024
PART = 8 * MIB
NOW = timedelta(0)
MINUTES = 240.0  # patience for retries, longer than this process may be delayed
_PATIENCE = "batchwright.storage.s3.storage._PATIENCE_SECONDS"


@dataclass
class S3Fixture:
    storage: Storage
    proxy: S3Proxy
    metrics: Metrics
    environment: pytest.MonkeyPatch

    def counted(self, operation: str, status: str) -> float:
        labels = {"operation": operation, "component": "processor", "status": status}
        found = self.metrics.registry.get_sample_value("batchwright_file_storage_operations_total", labels)
        return found or 0

    async def keys(self) -> list[str]:
        return [info.key async for info in self.storage.list("")]


@asynccontextmanager
async def opened(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[S3Fixture, None]:
    async with proxied(s3.url) as proxy:
        for name, value in s3.settings(fresh_prefix(), proxy.url).items():
            monkeypatch.setenv(name, value)
        metrics = Metrics()
        monkeypatch.setattr(_PATIENCE, MINUTES)
        async with open_storage(load(), metrics, StorageComponent.WORKER) as storage:
            yield S3Fixture(storage, proxy, metrics, monkeypatch)
            proxy.faults.clear()
            await storage.delete_prefix("")
            await storage.sweep(NOW)


@asynccontextmanager
async def other(
    storage_fixture: S3Fixture, *, patience_seconds: float = MINUTES, **environment: str
) -> AsyncGenerator[Storage, None]:
    """Context manager that yields a second storage with the same proxy and prefix, but with other settings.

    It is opened as another process would open it.
    """
    with storage_fixture.environment.context() as changed:
        changed.setattr(_PATIENCE, patience_seconds)
        for name, value in environment.items():
            changed.setenv(name, value)
        async with open_storage(load(), Metrics(), StorageComponent.WORKER) as storage:
            yield storage


async def write(storage: Storage, key: str, *pieces: bytes) -> None:
    async with storage.writer(key) as writer:
        for piece in pieces:
            await writer.write(piece)
