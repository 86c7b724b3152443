"""A worker process whose rate limits contradict each other, so that it cannot keep all of them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.database.database import Database
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from tests.integration.temporal.clusters import cluster
from tests.integration.worker.test_process import ended, worker

pytestmark = pytest.mark.integration
OWN = '{"llama": {"requests_per_second": 20}}'


def anything(changes: list[RateChange]) -> None: ...


async def test_rates_changed_at_run_time_that_conflict_with_the_settings_end_the_worker_at_startup(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    await database.rates.change(ALL_MODELS, 15, datetime.now(UTC), anything)
    async with (
        cluster(is_set_up=True) as address,
        worker(tmp_path, temporal_address=address, database_url=database_url, models=OWN) as process,
    ):
        _, output = await ended(process)
    [sentence] = [line for line in output.splitlines() if "BATCHWRIGHT_REQUESTS_PER_SECOND" in line]
    assert process.returncode == 2
    assert "BATCHWRIGHT_MODELS" in sentence
    assert "llama: 20" in sentence
    assert "batchwright rates clear" in sentence


async def test_conflicting_rate_settings_end_the_worker_before_it_connects(tmp_path: Path) -> None:
    async with worker(tmp_path, models=OWN, requests_per_second="20") as process:
        _, output = await ended(process)
    assert process.returncode == 2
    assert "llama: 20" in output
