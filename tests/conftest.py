"""Adapters for tests: in memory, and on the local disk."""

from pathlib import Path

import pytest

from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage
from tests.fakes.database import MemoryDatabase
from tests.fakes.storage import MemoryStorage


@pytest.fixture
def memory_storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def memory_database() -> MemoryDatabase:
    return MemoryDatabase()


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "objects")


@pytest.fixture(params=["memory", "local"])
def any_storage(request: pytest.FixtureRequest) -> Storage:
    """Every storage there is, for the suite they share."""
    fixtures = {"memory": "memory_storage", "local": "storage"}
    return request.getfixturevalue(fixtures[request.param])
