"""Payload encryption: Temporal stores no plain text of a batch. Keys are changed, or are missing."""

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, SearchAttributes
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev

SENT_WITHOUT_KEYS = ("waiting", "forecast")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY_A", "KEY_B"):
        monkeypatch.setenv(name, token_hex(32))


async def events(stack: Stack) -> AsyncGenerator[HistoryEvent]:
    """Yield the history events of every workflow."""
    client = await Client.connect(stack.now.temporal)
    async for found in client.list_workflows():
        handle = client.get_workflow_handle(found.id, run_id=found.run_id)
        async for event in handle.fetch_history_events():
            yield event


def inside(message: Message) -> Iterator[Message]:
    """Yield the message and all messages inside it, except search attributes, which cannot be encrypted."""
    if isinstance(message, SearchAttributes):
        return
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            children = [child for child in value.values() if isinstance(child, Message)]
        else:
            children = value if field.is_repeated else [value]
        for child in children:
            yield from inside(child)


async def test_nothing_of_a_batch_can_be_read_in_temporal(keys: None, tmp_path: Path) -> None:
    with dev(BATCHWRIGHT_PAYLOAD_KEYS='["a=env:KEY_A"]') as stack:
        async with stack.client() as client:
            lines = chat_lines(MODELS, each=20)
            batch = await submit(client, lines)
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
        assert done.status == "completed"
        kept = [event async for event in events(stack)]
    payloads = [part for event in kept for part in inside(event) if isinstance(part, Payload)]
    assert payloads
    plain = [payload for payload in payloads if payload.metadata["encoding"] != b"binary/encrypted"]
    assert plain == []
    assert {payload.metadata["encryption-key-id"] for payload in payloads} == {b"a"}
    readable = b"".join(event.SerializeToString() for event in kept)
    for secret in (batch.input_file_id, done.output_file_id, "/v1/chat/completions"):
        assert str(secret).encode() not in readable


async def test_a_batch_waits_without_the_key_and_continues_after_a_key_rotation(
    keys: None, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    lines = chat_lines(MODELS, each=100)
    with dev(data=data, BATCHWRIGHT_PAYLOAD_KEYS='["a=env:KEY_A"]') as stack:
        async with stack.client() as client:
            await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it does not end here
            batch = await submit(client, lines)
            await settled(client, batch.id, 20)
    with dev(data=data) as stack:
        await until(lambda: shows_the_key(stack))
        async with stack.client() as client:
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
    with dev(data=data, BATCHWRIGHT_PAYLOAD_KEYS='["b=env:KEY_B", "a=env:KEY_A"]') as stack:
        async with stack.client() as client:
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
        kept = [part async for part in payloads_but_reasons(stack)]
    assert (done.status, done.error_file_id) == ("completed", None)
    assert {part.metadata["encryption-key-id"] for part in kept} == {b"a", b"b"}


async def payloads_but_reasons(stack: Stack) -> AsyncGenerator[Payload]:
    """Yield all stored payloads, except waiting reasons and forecasts.

    Workers without keys send these as well, and they contain no data of the batch.
    """
    async for event in events(stack):
        if event.workflow_execution_signaled_event_attributes.signal_name not in SENT_WITHOUT_KEYS:
            for part in inside(event):
                if isinstance(part, Payload):
                    yield part


async def shows_the_key(stack: Stack) -> bool:
    """Return True if the worker's log contains the id of the missing key."""
    log = (stack.now.data / "logs" / "worker.log").read_text()
    return "encrypted with the key 'a', which BATCHWRIGHT_PAYLOAD_KEYS lacks" in log
