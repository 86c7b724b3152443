"""Where the objects of a run lie: a directory, or a bucket behind a proxy of HTTP and one of TCP."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from starter.stack.ports import free_port
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.clients import http_client
from tests.e2e.batches import until
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.fakes.s3_proxy import S3Proxy, proxied

_PATIENCE_SECONDS = "5"


@dataclass
class Objects:
    """`direct` are the settings of who sees no disturbance, `disturbed` those of the workers."""

    direct: Mapping[str, str] = field(default_factory=dict[str, str])
    disturbed: Mapping[str, str] = field(default_factory=dict[str, str])
    http: S3Proxy | None = None
    wire: Proxy | None = None

    @asynccontextmanager
    async def seen(self, directory: Path) -> AsyncGenerator[Storage]:
        """As an onlooker reads them."""
        prefix = "BATCHWRIGHT_"
        own = {name.removeprefix(prefix).lower(): v for name, v in self.direct.items() if prefix in name}
        settings = load(**(own or {"storage_dir": str(directory)}))
        async with open_storage(settings, Metrics(), Component.WORKER) as storage:
            yield storage


@asynccontextmanager
async def bucket() -> AsyncGenerator[Objects]:
    """One in a process of its own, and the proxies before it."""
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
            patience = {"BATCHWRIGHT_STORAGE_PATIENCE_SECONDS": _PATIENCE_SECONDS}
            direct = server.settings(prefix) | patience
            disturbed = server.settings(prefix, f"http://{LOOPBACK}:{wire.port}") | patience
            yield Objects(direct, disturbed, http, wire)
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
