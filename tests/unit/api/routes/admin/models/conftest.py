"""An API with models of a registry file."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.fakes.api import ApiFixture, open_api

FILE = """
models:
  llama:
    backends:
      - {url: "http://one:8000/v1", weight: 2, api_key_name: gateway, headers: {X-Team: blue-secret}}
      - {url: "https://two", model: org/llama, api_key_file: %s}
    aliases: [gpt]
    fallbacks: [qwen]
    retries: {max_attempts: 7, initial_backoff: 3}
    limits: {in_flight: 20}
  qwen:
    backends: [{url: "http://two"}]
  voice:
    backends: [{url: "http://three"}]
    kind: poll
    jobs: {poll_endpoint_template: "/status/{id}", poll_interval: 9}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "gateway").write_text("secret-of-the-gateway")
    (folder / "elsewhere").write_text("secret-of-elsewhere")
    (folder / "models.yaml").write_text(FILE % (folder / "elsewhere"))
    return folder


@pytest.fixture
async def api(folder: Path) -> AsyncGenerator[ApiFixture]:
    models = {"llama": {"in_flight": 3, "inputs_per_request": 16}, "qwen": {"in_flight": 5}}
    async with open_api(
        registry=folder / "models.yaml",
        secrets_dir=folder,
        backends=[],
        models=models,
        max_backoff_seconds=44,
    ) as opened:
        yield opened
