"""Proxies between the workers and their servers. They apply network disturbances."""

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx

from tests.chaos.objects import Objects
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.chaos.schedule import Kind
from tests.e2e.stack import Addresses

_DELAY_SECONDS = 0.2
_REFUSALS = {Kind.FAIL_S3: (503, "SlowDown"), Kind.REFUSE_S3: (403, "ExpiredToken")}


class Wires:
    def __init__(self, addresses: Addresses, objects: Objects) -> None:
        assert addresses.simulator is not None
        self._objects = objects
        self._backend = Proxy(httpx.URL(addresses.simulator).port or 80)
        self._temporal = Proxy(int(addresses.temporal.rpartition(":")[2]))
        self._postgres = Proxy(_port_of(addresses.postgres))

    @asynccontextmanager
    async def laid(self) -> AsyncGenerator[None]:
        proxies = (self._backend, self._temporal, self._postgres)
        for proxy in proxies:
            await proxy.start()
        try:
            yield
        finally:
            for proxy in proxies:
                await proxy.stop()

    def environment(self, addresses: Addresses) -> dict[str, str]:
        """Return environment variables for workers, so that they make all connections through the proxies."""
        port = _port_of(addresses.postgres)
        return {
            "BATCHWRIGHT_DATABASE_URL": addresses.postgres.replace(f":{port}/", f":{self._postgres.port}/"),
            "BATCHWRIGHT_TEMPORAL_ADDRESS": f"{LOOPBACK}:{self._temporal.port}",
            "BATCHWRIGHT_TEMPORAL_NAMESPACE": addresses.namespace,
            "BATCHWRIGHT_BACKENDS": json.dumps([f"http://{LOOPBACK}:{self._backend.port}"]),
            "BATCHWRIGHT_STORAGE_DIR": str(addresses.data / "objects"),
            **self._objects.disturbed,
        }

    def disturbed(self, kind: Kind) -> AbstractAsyncContextManager[None]:
        """Return a context manager that applies this kind of disturbance while its body runs."""
        if kind in _REFUSALS:
            return self._refused(kind)
        proxies = {"BACKEND": self._backend, "TEMPORAL": self._temporal, "POSTGRES": self._postgres}
        what, _, part = kind.name.partition("_")
        proxy = proxies.get(part) or self._objects.wire
        assert proxy is not None, kind
        if what == "LOSE":
            return proxy.closed()
        if what in ("CUT", "REFUSE"):
            return proxy.refusing()
        return proxy.stalled() if what == "STALL" else proxy.delayed(_DELAY_SECONDS)

    @asynccontextmanager
    async def _refused(self, kind: Kind) -> AsyncGenerator[None]:
        assert self._objects.http is not None
        self._objects.http.refuses = _REFUSALS[kind]
        try:
            yield
        finally:
            self._objects.http.refuses = None


def _port_of(url: str) -> int:
    return httpx.URL(url).port or 5432
