"""Interactive streams of a real API process that stops."""

import asyncio
import json
import signal
from pathlib import Path

import httpx
import pytest

from tests.fakes.raw_servers import read_request, served
from tests.integration.api.test_process import running

pytestmark = pytest.mark.integration
PATH = "/v1/completions"
CHUNK = b'data: {"choices":[{"index":0,"text":"He","finish_reason":null}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + CHUNK
NO_LIST = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


async def test_streams_have_the_drain_time_and_those_that_do_not_end_get_an_error_event(
    tmp_path: Path, database_url: str
) -> None:
    ends = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        writer.write(NO_LIST if head.startswith(b"GET") else STREAM)
        await writer.drain()
        if b"endless" in body:
            await reader.read()  # until the API closes the connection
        elif body:
            await ends.wait()
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()

    async with served(serve) as backend:
        registry = tmp_path / "registry.json"
        url = f"http://127.0.0.1:{backend.origin.port}"
        registry.write_text(json.dumps({"models": {"llama": {"backends": [{"url": url}]}}}))
        settings = {"database_url": database_url, "registry": str(registry), "drain_seconds": "5"}
        with running(tmp_path, interactive_passthrough="true", **settings) as (process, sync_client):
            asked = {"model": "llama", "prompt": "Hi", "stream": True}
            async with (
                httpx.AsyncClient(base_url=sync_client.base_url, trust_env=False, timeout=240) as client,
                client.stream("POST", PATH, json=asked) as ending,
                client.stream("POST", PATH, json={**asked, "user": "endless"}) as endless,
            ):
                lines, of_endless = ending.aiter_lines(), endless.aiter_lines()
                assert ["He" in await anext(each) for each in (lines, of_endless)] == [True, True]
                process.send_signal(signal.SIGTERM)
                while await accepts(client.base_url.port or 0):
                    pass
                ends.set()  # the process drains
                assert [line async for line in lines if line] == ["data: [DONE]"]
                [event] = [line async for line in of_endless if line]
            assert "is stopping" in json.loads(event.removeprefix("data: "))["error"]["message"]
            assert await asyncio.to_thread(process.wait, 240) == 0


async def accepts(port: int) -> bool:
    """Return True if the API still accepts connections."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:  # refused, or reset because the listening socket is being closed
        return False
    writer.close()
    return True
