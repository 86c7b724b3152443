"""HTTP server of a worker: metrics, health and readiness."""

import contextlib
from collections.abc import AsyncGenerator

import aiohttp
from aiohttp import web

from batchwright.database.errors import DatabaseUnavailable
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.dependency_checks import DependencyMonitor, HealthCheck
from batchwright.worker.health import HealthServer

NOWHERE = "127.0.0.1:9"


async def well() -> None:
    return


async def away() -> None:
    raise DatabaseUnavailable("PostgreSQL does not answer.")


@contextlib.asynccontextmanager
async def serving(
    checks: dict[str, HealthCheck], sdk: str = NOWHERE, metrics: Metrics | None = None
) -> AsyncGenerator[aiohttp.ClientSession]:
    health = HealthServer(metrics or Metrics(), DependencyMonitor(checks, required=frozenset(checks)), sdk)
    address = await health.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(address) as http:
            yield http
    finally:
        await health.stop()


@contextlib.asynccontextmanager
async def sdk_metrics(text: str) -> AsyncGenerator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_readiness_names_missing_dependencies() -> None:
    async with serving({"postgresql": away, "storage": well}) as http, http.get("/readyz") as answer:
        assert answer.status == 503
        assert await answer.json() == {
            "status": "unavailable",
            "checks": {"postgresql": "PostgreSQL does not answer.", "storage": "ok"},
        }


async def test_readiness_succeeds_if_every_dependency_answers() -> None:
    async with serving({"storage": well}) as http, http.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok", "checks": {"storage": "ok"}})


async def test_liveness_does_not_depend_on_dependencies() -> None:
    async with serving({"postgresql": away}) as http, http.get("/healthz") as answer:
        assert answer.status == 200


async def test_metrics_include_own_and_sdk_metrics() -> None:
    metrics = Metrics()
    metrics.in_flight_max.set(7)
    async with (
        sdk_metrics("temporal_num_pollers 3\n") as sdk,
        serving({}, sdk, metrics) as http,
        http.get("/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
        kind = answer.headers["Content-Type"]
    assert kind == "text/plain; version=0.0.4; charset=utf-8"  # our metrics and the SDK's have the same type
    assert "batchwright_processor_max_inflight_concurrency 7.0" in lines
    assert "temporal_num_pollers 3" in lines


async def test_metrics_are_served_while_sdk_metrics_are_unavailable() -> None:
    async with serving({}) as http, http.get("/metrics") as answer:
        assert answer.status == 200
        assert "batchwright_processor_inflight_requests" in await answer.text()
