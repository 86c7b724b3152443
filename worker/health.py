"""HTTP server of a worker: /metrics (Batchwright's and the SDK's metrics), /healthz and /readyz."""

from aiohttp import web

from batchwright.telemetry.exposition import CONTENT_TYPE, SdkMetricsClient, render_metrics
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.dependency_checks import OK, DependencyMonitor


class HealthServer:
    """The HTTP server for the health and the metrics of a worker.

    `sdk_address` is the host:port at which the Temporal SDK in this process serves its own metrics.
    """

    def __init__(self, metrics: Metrics, dependencies: DependencyMonitor, sdk_address: str) -> None:
        self._metrics, self._dependencies = metrics, dependencies
        self._sdk = SdkMetricsClient(sdk_address)
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """Start listening, and return the URL of the server. Raises OSError if the port is not available."""
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
        states = await self._dependencies.check_all()
        is_ready = all(state == OK for state in states.values())
        body = {"status": "ok" if is_ready else "unavailable", "checks": states}
        return web.json_response(body, status=200 if is_ready else 503)

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        body = await render_metrics(self._metrics, self._sdk)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
