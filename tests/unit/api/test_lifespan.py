"""Metrics of the API keep a label for each model in the registry, even if clients name many
unknown models.
"""

import json
from pathlib import Path

from batchwright.api.lifespan import publish_registry
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.memory_database import MemoryDatabase


async def test_each_registered_model_has_a_label_although_clients_have_invented_a_hundred(
    tmp_path: Path,
) -> None:
    file, metrics, database = tmp_path / "models.json", Metrics(), MemoryDatabase()
    file.write_text(json.dumps({"models": {"llama": {"backends": [{"url": "http://127.0.0.1:9"}]}}}))
    settings = load(registry=file)
    clients, tables = ClientPool(settings), (database.models, database.model_changes)
    registry = BackendRegistry(settings, *tables, clients, unavailable=DatabaseUnavailable)
    registry.on_refresh.append(lambda: publish_registry(registry, metrics))
    await registry.refresh_changes()
    for number in range(100):
        metrics.interactive_requests.labels(f"invented-{number}", "503").inc()
    metrics.interactive_requests.labels("llama", "200").inc()
    await clients.aclose()
    assert b'batchwright_interactive_requests_total{model="llama",result="200"} 1' in metrics.render()
