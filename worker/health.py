"""/metrics, /healthz and /readyz of a worker: ours and the SDK's metrics on one port."""

from aiohttp import web

from batchwright.telemetry.exposition import CONTENT_TYPE, SdkMetrics, exposition
from batchwright.telemetry.metrics import Metrics
from worker.needs import OK, Needs


class HealthServer:
    """`sdk` is host:port of the SDK's own metrics."""

    def __init__(self, metrics: Metrics, needs: Needs, sdk: str) -> None:
        self._metrics, self._needs, self._sdk = metrics, needs, SdkMetrics(sdk)
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
        await self._sdk.close()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        states = await self._needs.look()
        ready = all(state == OK for state in states.values())
        body = {"status": "ok" if ready else "unavailable", "checks": states}
        return web.json_response(body, status=200 if ready else 503)

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        body = await exposition(self._metrics, self._sdk)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
