"""Warnings of `batchwright doctor` about models that were registered at run time and are partly ignored."""

from datetime import UTC, datetime

import pytest

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.database.database import Database
from batchwright.settings import load
from batchwright.starter.diagnostics.backend_checks import check_backends
from batchwright.starter.diagnostics.findings import Finding, Level
from batchwright.starter.embedded_stack.ports import free_port

pytestmark = pytest.mark.integration


async def warned(database_url: str) -> list[Finding]:
    settings = load(database_url=database_url, backends=[], dispatch_header="X-Origin")
    checked = await check_backends(settings, lambda: datetime.now(UTC))
    return [finding for finding in checked.findings if finding.level is Level.WARNING]


async def register(database: Database, **headers: str) -> str:
    """Register the model without checks, as an older version did. Return the URL of its stopped backend."""
    url = f"http://127.0.0.1:{free_port()}"
    backend = BackendConfig(url=url, headers=headers, send_dispatch_header=True)
    config = ModelConfig(backends=[backend])
    await database.model_changes.put("tiny", config, datetime.now(UTC), lambda rows: None)
    return url


async def test_a_header_that_is_not_sent_is_a_warning_with_the_remedy(
    database: Database, database_url: str
) -> None:
    url = await register(database, **{"Range": "bytes=0-1", "x-origin": "me", "X-Team": "blue"})
    range_warning, origin_warning = await warned(database_url)
    assert range_warning.part == origin_warning.part == "backends"
    assert range_warning.message == (
        f"The header 'Range' of the backend {url} of 'tiny' would replace the description of the body, "
        "which is sent plain and complete: remove it; until then it is not sent."
    )
    assert origin_warning.message == (
        f"The header 'x-origin' of the backend {url} of 'tiny' would replace BATCHWRIGHT_DISPATCH_HEADER, "
        "which marks requests to it (send_dispatch_header): remove it; until then it is not sent."
    )
    assert range_warning.remedy == origin_warning.remedy == "Register the model again without it."


async def test_a_model_whose_headers_are_all_sent_has_no_warning(
    database: Database, database_url: str
) -> None:
    await register(database, **{"X-Team": "blue"})
    assert await warned(database_url) == []
