"""Readiness: how often a health check reaches the dependencies. Health checks need no API key."""

import asyncio

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.routes.health import HealthRoutes
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.api import Served
from tests.fakes.gateway import MemoryGateway
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.storage import MemoryStorage


class CountingStorage(MemoryStorage):
    checks = 0

    async def check(self) -> None:
        self.checks += 1
        await asyncio.sleep(0)


async def test_many_probes_reach_the_dependencies_once_a_second() -> None:
    storage = CountingStorage()
    parts = (load(), MemoryDatabase(), storage, MemoryGateway(), Served(), Metrics())
    health = HealthRoutes(ApiDependencies(*parts, recent_seconds=3600), None)
    answers = await asyncio.gather(*(health.readyz() for _ in range(100)))
    answers.append(await health.readyz())
    assert {answer.status_code for answer in answers} == {200}
    assert storage.checks == 1
