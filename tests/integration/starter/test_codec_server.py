"""The codec server, which decrypts payloads for Temporal's Web UI and the `temporal` command.

Also workers that lack a key.
"""

import asyncio
import base64
import json
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio import activity
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.worker import Worker

from batchwright.settings import Settings, load
from batchwright.starter.embedded_stack.temporal_server import find_binary
from batchwright.temporal import connect
from batchwright.temporal.codec import EncryptionCodec, load_keys
from tests.clients import http_client
from tests.integration.starter.commands import batchwright, start
from tests.integration.temporal.clusters import cluster
from tests.integration.temporal.echo import ECHO_QUEUE, Echo

pytestmark = pytest.mark.integration
SECRET = bytes(range(32)).hex()
UI = "http://ui.example:8233"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYLOAD_KEY", SECRET)


def keyed(address: str = "127.0.0.1:7233") -> Settings:
    return load(temporal_address=address, payload_keys=["k1=env:PAYLOAD_KEY"])


@asynccontextmanager
async def codec_server() -> AsyncGenerator[str]:
    """Run a codec server, and yield its URL."""
    chosen = {"payload_keys": '["k1=env:PAYLOAD_KEY"]', "codec_port": "0", "codec_origins": f'["{UI}"]'}
    with await asyncio.to_thread(start, "codec-server", terminal=False, **chosen) as process:
        try:
            line = await asyncio.to_thread(process.stderr.readline)
            found = re.search(r"listens on (http://\S+) for", line)
            assert found, line
            yield found[1]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0
        finally:
            process.kill()


def as_json(*payloads: Payload) -> dict[str, object]:
    return MessageToDict(Payloads(payloads=payloads))


async def test_a_page_of_the_web_ui_has_payloads_decrypted_and_encrypted() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')
    sealed = await EncryptionCodec(load_keys(keyed())).encode([payload])
    headers = {"Origin": UI, "X-Namespace": "default"}
    async with codec_server() as url, http_client(base_url=url, headers=headers) as page:
        preflight = await page.options("/decode", headers={"Access-Control-Request-Method": "POST"})
        decoded = await page.post("/decode", json=as_json(*sealed))
        below = await page.post("/default/decode", json=as_json(*sealed))
        encoded = await page.post("/encode", json=as_json(payload))
        again = await page.post("/decode", json=encoded.json())
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == UI
    assert preflight.headers["access-control-allow-headers"] == "Content-Type, X-Namespace, Authorization"
    assert decoded.headers["access-control-allow-origin"] == UI
    assert decoded.json() == below.json() == again.json() == as_json(payload)
    [locked] = ParseDict(encoded.json(), Payloads()).payloads
    assert locked.metadata["encoding"] == b"binary/encrypted"


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_another_page_gets_nothing(method: str) -> None:
    sealed = await EncryptionCodec(load_keys(keyed())).encode([Payload(data=b"secret")])
    async with codec_server() as url, http_client(base_url=url) as page:
        headers = {"Origin": "http://elsewhere.example"}
        answer = await page.request(method, "/decode", headers=headers, json=as_json(*sealed))
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert "not in BATCHWRIGHT_CODEC_ORIGINS" in answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status", "expected"),
    [
        (b"{}", "text/plain", 415, "application/json"),
        (b"no", "application/json", 400, "not Temporal's Payloads as JSON"),
        (b'{"payloads": [{"data": 1}]}', "application/json", 400, "not Temporal's Payloads as JSON"),
    ],
)
async def test_an_invalid_body_is_refused(content: bytes, kind: str, status: int, expected: str) -> None:
    async with codec_server() as url, http_client(base_url=url) as page:
        headers = {"Origin": UI, "Content-Type": kind}
        answer = await page.post("/decode", content=content, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, UI)
    assert expected in answer.text


async def test_a_payload_with_an_unknown_key_is_refused_and_the_key_is_named() -> None:
    payload = Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"k0"}, data=b"x" * 40)
    async with codec_server() as url, http_client(base_url=url) as page:
        answer = await page.post("/decode", json=as_json(payload))
    assert (answer.status_code, "the key 'k0'" in answer.text) == (400, True)


async def test_the_temporal_cli_shows_decrypted_payloads_through_the_codec_server() -> None:
    async with cluster() as address, codec_server() as url:
        client = await connect(keyed(address))
        run = await client.start_workflow(Echo.run, "open sesame", id=uuid4().hex, task_queue=ECHO_QUEUE)
        alone = await shown(address, run.id)
        through = await shown(address, run.id, "--codec-endpoint", url)
        await run.terminate()
    sesame = base64.b64encode(b'"open sesame"').decode()  # as JSON has bytes
    assert sesame not in json.dumps(alone)
    assert sesame in json.dumps(through)


async def shown(address: str, workflow_id: str, *options: str) -> object:
    arguments = ("workflow", "show", "--address", address, "--workflow-id", workflow_id, "--output", "json")
    process = await asyncio.create_subprocess_exec(
        str(find_binary()), *arguments, *options, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@activity.defn
async def echo(text: str) -> str:
    return text


def worker(client: Client) -> Worker:
    return Worker(client, task_queue=ECHO_QUEUE, workflows=[Echo], activities=[echo])


async def test_a_worker_without_the_key_fails_tasks_by_name_and_one_with_it_finishes_the_workflow() -> None:
    async with cluster() as address:
        client = await connect(keyed(address))
        run = await client.start_workflow(Echo.run, "hello", id=uuid4().hex, task_queue=ECHO_QUEUE)
        async with worker(await connect(load(temporal_address=address))), asyncio.timeout(240):
            failures: list[HistoryEvent] = []
            while not failures:
                failures = [event async for event in run.fetch_history_events() if is_failure(event)]
                await asyncio.sleep(0.05)
        async with worker(client), asyncio.timeout(240):
            assert await run.result() == "hello"
    failure = failures[0].workflow_task_failed_event_attributes.failure
    assert "the key 'k1', which BATCHWRIGHT_PAYLOAD_KEYS lacks" in failure.message


def is_failure(event: HistoryEvent) -> bool:
    return event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


@pytest.mark.parametrize(
    ("settings", "code", "expected"),
    [
        ({"payload_keys": "[]"}, 2, "BATCHWRIGHT_PAYLOAD_KEYS is not set"),
        ({"payload_keys": '["k1=env:NO_KEY"]'}, 2, "the variable NO_KEY is not set"),
        ({"codec_host": "0.0.0.0"}, 2, "BATCHWRIGHT_CODEC_HOST is '0.0.0.0', but must be a loopback address"),
        ({"codec_origins": '["ui"]'}, 2, "BATCHWRIGHT_CODEC_ORIGINS is wrong: 'ui'"),
    ],
)
async def test_a_wrong_setting_ends_the_codec_server_before_it_listens(
    settings: dict[str, str], code: int, expected: str
) -> None:
    chosen = {"payload_keys": '["k1=env:PAYLOAD_KEY"]', "codec_port": "0", **settings}
    ended = await batchwright("codec-server", **chosen)
    assert ended.code == code
    assert expected in ended.stderr
