"""A running batch, with each kind of storage and with its index in memory or on disk."""

from pathlib import Path

import pytest

from batchwright.api.services.live_results import settled_line_index
from batchwright.storage.local import LocalStorage
from batchwright.storage.spill import columns, spilled_bytes
from tests.activities.finalization.settled_batch import a_batch
from tests.unit.api.services.live_results.live_batch import LiveBatch


@pytest.fixture(params=["memory", "local", "index on disk"])
async def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveBatch:
    """A batch of eight lines. Ingestion has settled line 5 with an error."""
    if request.param == "index on disk":
        monkeypatch.setattr(columns, "_MEMORY_BYTES", 0)
        monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
        monkeypatch.setattr(columns, "_SPILL_BYTES", 0)
        monkeypatch.setattr(spilled_bytes, "_CHUNK_BYTES", 1)
        monkeypatch.setattr(settled_line_index, "_LINES_PER_RELEASE", 1)
    storage = LocalStorage(tmp_path) if request.param == "local" else None
    return LiveBatch(await a_batch(lines=8, unserved=[5], storage=storage))
