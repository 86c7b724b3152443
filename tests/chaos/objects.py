"""Object storage of a chaos run: a directory, or an S3 bucket behind an HTTP proxy and a TCP proxy."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.storage.base import Storage
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from tests.chaos.load import TENANTS
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.batches import until
from tests.fakes.s3 import S3Server, fresh_prefix, s3_client
from tests.fakes.s3_proxy import S3Proxy, proxied

STORAGE_PATIENCE_SECONDS = 5


class TenantData:
    """The objects of the tenants in the bucket. All tenants may read and write them."""

    def __init__(self, server: S3Server) -> None:
        self._client, self._bucket, self._folder = s3_client(server.url), server.bucket, fresh_prefix()
        self.location = f"s3://{server.bucket}/{self._folder}/"

    def put(self, name: str, data: bytes) -> str:
        """Write an object and return its URL."""
        self._client.put_object(Bucket=self._bucket, Key=f"{self._folder}/{name}", Body=data)
        return self.location + name

    def get(self, name: str) -> bytes | None:
        """Return an object; None if it does not exist."""
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=f"{self._folder}/{name}")
        except self._client.exceptions.NoSuchKey:
            return None
        return found["Body"].read()

    @property
    def setting(self) -> dict[str, str]:
        """Environment variable that allows the tenants to use the location."""
        access = {"read": [self.location], "write": [self.location]}
        return {"BATCHWRIGHT_DATA_LOCATIONS": json.dumps(dict.fromkeys(TENANTS, access))}


@dataclass
class Objects:
    """The object storage of a chaos run. The proxies and `data` are None if the storage is a directory.

    Attributes:
        direct: environment variables of processes that use the storage without a proxy.
        disturbed: environment variables of the workers, which use the storage through the proxies.
    """

    direct: Mapping[str, str] = field(default_factory=dict[str, str])
    disturbed: Mapping[str, str] = field(default_factory=dict[str, str])
    data: TenantData | None = None
    http: S3Proxy | None = None
    wire: Proxy | None = None

    @asynccontextmanager
    async def seen(self, directory: Path) -> AsyncGenerator[Storage]:
        """Yield the storage, opened without proxies: the bucket, or `directory` if there is no bucket."""
        prefix = "BATCHWRIGHT_"
        own = {name.removeprefix(prefix).lower(): v for name, v in self.direct.items() if prefix in name}
        settings = load(**(own or {"storage_dir": str(directory)}))
        async with open_storage(settings, Metrics(), StorageComponent.WORKER) as storage:
            yield storage


@asynccontextmanager
async def bucket() -> AsyncGenerator[Objects]:
    """Run an S3 server in a process of its own, with proxies in front of it, and yield a bucket there."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    server = S3Server(f"http://{LOOPBACK}:{port}", "test-key", "test-secret")
    try:
        await _listening(server.url)
        os.environ.update(server.keys)
        await server.make_bucket()
        async with proxied(server.url) as http:
            wire = Proxy(httpx.URL(http.url).port or 80)
            await wire.start()
            prefix = fresh_prefix()
            direct = server.settings(prefix) | with_constants(
                storage_patience_seconds=STORAGE_PATIENCE_SECONDS
            )
            disturbed = server.settings(prefix, f"http://{LOOPBACK}:{wire.port}")
            data = TenantData(server)
            yield Objects(direct, disturbed | data.setting, data, http, wire)
            await wire.stop()
    finally:
        process.kill()
        await process.wait()


async def _listening(url: str) -> None:
    async def answers() -> bool:
        try:
            async with http_client() as http:
                return (await http.get(url)).status_code < 500
        except httpx.TransportError:
            return False

    await until(answers)
