"""/metrics, /healthz and /readyz of a worker: ours and the SDK's metrics on one port."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from batchwright.database.errors import DatabaseError
from batchwright.storage.base import StorageError
from batchwright.telemetry.exposition import CONTENT_TYPE, exposition
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import TemporalUnavailable

_PATIENCE_SECONDS = 5
Check = Callable[[], Awaitable[None]]


class HealthServer:
    """`checks` names what the worker needs; `sdk` is host:port of the SDK's own metrics."""

    def __init__(self, metrics: Metrics, checks: Mapping[str, Check], sdk: str) -> None:
        self._metrics, self._checks, self._sdk = metrics, checks, sdk
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """The address it listens on. Raises OSError where it cannot."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound = self._runner.addresses[0]
        return f"http://{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        found = await asyncio.gather(*(_state(check) for check in self._checks.values()))
        states = dict(zip(self._checks, found, strict=True))
        ready = all(state == "ok" for state in found)
        body = {"status": "ok" if ready else "unavailable", "checks": states}
        return web.json_response(body, status=200 if ready else 503)

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        body = await exposition(self._metrics.registry, self._sdk)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def _state(check: Check) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await check()
    except (DatabaseError, StorageError, TemporalUnavailable, TimeoutError) as error:
        return str(error) or "no answer"
    return "ok"
