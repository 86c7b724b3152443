"""Circuit breakers of a real API process, as its metrics show them."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.fakes.raw_servers import read_request, served
from tests.integration.api.test_process import running

pytestmark = pytest.mark.integration
NOTHING = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


async def test_the_metrics_of_the_api_show_its_open_circuits(tmp_path: Path, database_url: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        writer.write(NOTHING % (b"404 Not Found" if head.startswith(b"GET") else b"503 Unavailable"))
        await writer.drain()

    async with served(serve) as backend:
        registry = tmp_path / "registry.json"
        url = f"http://127.0.0.1:{backend.origin.port}"
        registry.write_text(json.dumps({"models": {"llama": {"backends": [{"url": url}]}}}))
        settings = {"database_url": database_url, "registry": str(registry)}
        with running(tmp_path, interactive_passthrough="true", **settings) as (_, sync_client):
            async with httpx.AsyncClient(
                base_url=sync_client.base_url, trust_env=False, timeout=240
            ) as client:
                of_backend = f'batchwright_backend_circuit_open{{backend="{url}",model="llama"}}'
                of_model = 'batchwright_model_circuit_open{model="llama"}'
                assert {await metric(client, name) for name in (of_backend, of_model)} == {0}
                for _ in range(5):
                    answer = await client.post("/v1/completions", json={"model": "llama", "prompt": "Hi"})
                    assert answer.status_code == 503
                assert {await metric(client, name) for name in (of_backend, of_model)} == {1}


async def metric(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    [value] = [line.removeprefix(name) for line in text.splitlines() if line.startswith(name)]
    return float(value)
