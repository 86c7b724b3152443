"""What `batchwright doctor` says of models registered at run time that are not heeded as they stand."""

from datetime import UTC, datetime

import pytest

from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.database.pool import Database
from batchwright.settings import load
from starter.operate.backends import backends
from starter.operate.findings import Finding, Level
from starter.stack.ports import free_port

pytestmark = pytest.mark.integration


async def warned(database_url: str) -> list[Finding]:
    settings = load(database_url=database_url, backends=[], dispatch_header="X-Origin")
    found, _ = await backends(settings, lambda: datetime.now(UTC))
    return [finding for finding in found if finding.level is Level.WARNING]


async def register(database: Database, **headers: str) -> str:
    """As a version did that refused none of them; the backend's URL, where nobody answers."""
    url = f"http://127.0.0.1:{free_port()}"
    backend = BackendConfig(url=url, headers=headers, dispatched=True)
    config = ModelConfig(backends=[backend])
    await database.model_changes.put("tiny", config, datetime.now(UTC), lambda rows: None)
    return url


async def test_a_header_that_is_not_sent_is_a_warning_that_names_it_and_its_remedy(
    database: Database, database_url: str
) -> None:
    url = await register(database, **{"Range": "bytes=0-1", "x-origin": "me", "X-Team": "blue"})
    range_warning, origin_warning = await warned(database_url)
    assert range_warning.part == origin_warning.part == "backends"
    assert range_warning.message == (
        f"The header 'Range' of the backend {url} of 'tiny' would stand for what the body is, which is plain "
        "and whole: take it away; until then it is not sent."
    )
    assert origin_warning.message == (
        f"The header 'x-origin' of the backend {url} of 'tiny' would stand for BATCHWRIGHT_DISPATCH_HEADER, "
        "which marks requests to it (dispatched): take it away; until then it is not sent."
    )
    assert range_warning.remedy == origin_warning.remedy == "Register the model again without it."


async def test_a_model_whose_headers_are_all_sent_is_not_warned_of(
    database: Database, database_url: str
) -> None:
    await register(database, **{"X-Team": "blue"})
    assert await warned(database_url) == []
