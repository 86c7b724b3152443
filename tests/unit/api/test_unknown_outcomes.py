"""Transactions whose response to COMMIT was lost.

The transaction may have succeeded. So the objects in storage stay, and a repeated request continues it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject, FileObject, PartObject, UploadObject
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import OutcomeUnknown
from tests.fakes.api import LINE, ApiFixture, error_of, open_api, read
from tests.fakes.ended_batch import INPUT, Ended
from tests.fakes.tables.batches.reruns import MemoryReruns
from tests.fakes.tables.uploads import MemoryIdempotency, MemoryUploads

UPLOAD = {"filename": "a", "purpose": "batch", "bytes": len(LINE), "mime_type": "application/jsonl"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str], None]:
    """Return a function that takes a class and a method name of a table. The next call of the method
    succeeds, but its response is lost.
    """

    def lose(table: type, name: str) -> None:
        call: Callable[..., Awaitable[object]] = getattr(table, name)

        async def lost(*args: object, **options: object) -> object:
            await call(*args, **options)
            monkeypatch.setattr(table, name, call)
            raise OutcomeUnknown("the connection broke")

        monkeypatch.setattr(table, name, lost)

    return lose


async def send(api: ApiFixture) -> httpx.Response:
    form = {"file": ("a", LINE)}
    headers = {"Idempotency-Key": "k"}
    return await api.http.post("/v1/files", files=form, data={"purpose": "batch"}, headers=headers)


async def content(api: ApiFixture, file_id: str) -> bytes:
    answer = await api.http.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_a_file_sent_again_with_its_key_has_its_bytes(
    api: ApiFixture, losing: Callable[[type, str], None]
) -> None:
    losing(MemoryIdempotency, "claim")
    refused = await send(api)
    assert (refused.status_code, error_of(refused).type) == (503, "server_error")
    file = read(await send(api), FileObject)
    assert await content(api, file.id) == LINE


async def test_an_upload_completed_again_has_its_bytes(
    api: ApiFixture, losing: Callable[[type, str], None]
) -> None:
    upload = read(await api.http.post("/v1/uploads", json=UPLOAD), UploadObject)
    path = f"/v1/uploads/{upload.id}"
    part = read(await api.http.post(f"{path}/parts", files={"data": ("b", LINE)}), PartObject)
    losing(MemoryUploads, "complete")
    body = {"part_ids": [part.id]}
    assert (await api.http.post(f"{path}/complete", json=body)).status_code == 503
    done = read(await api.http.post(f"{path}/complete", json=body), UploadObject)
    assert done.file is not None
    assert await content(api, done.file.id) == LINE


async def test_a_part_that_may_have_its_row_keeps_its_object(
    api: ApiFixture, losing: Callable[[type, str], None]
) -> None:
    upload = read(await api.http.post("/v1/uploads", json=UPLOAD), UploadObject)
    losing(MemoryUploads, "add_part")
    answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
    assert (answer.status_code, len(api.storage.objects)) == (503, 1)


async def test_a_repeated_retry_has_its_input(api: ApiFixture, losing: Callable[[type, str], None]) -> None:
    file = await api.upload(INPUT)
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
    first = read(await api.post(body), BatchObject)
    ended = Ended(api.database, api.storage, api.order(first.id))
    await ended.finish(BatchStatus.EXPIRED, (0, 2, 5))
    losing(MemoryReruns, "claim")
    path = f"/v1/batches/{first.id}/x/retry"
    assert (await api.http.post(path)).status_code == 503
    batch = read(await api.http.post(path), BatchObject)
    assert (await content(api, batch.input_file_id)).count(b"\n") == 3
