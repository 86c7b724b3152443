"""A COMMIT whose answer is lost may have been heard: what its rows name stays, and the next try goes on."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx
import pytest

from api.objects import BatchObject, FileObject, PartObject, UploadObject
from batchwright.contracts.openai import BatchStatus
from batchwright.database.errors import OutcomeUnknown
from tests.fakes.api import LINE, House, error_of, open_house, read
from tests.fakes.chances import MemoryChances
from tests.fakes.ended import INPUT, Ended
from tests.fakes.uploads import MemoryClaims, MemoryUploads

UPLOAD = {"filename": "a", "purpose": "batch", "bytes": len(LINE), "mime_type": "application/jsonl"}


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str], None]:
    """Has a table's next call done, and its answer lost."""

    def lose(table: type, name: str) -> None:
        call: Callable[..., Awaitable[object]] = getattr(table, name)

        async def lost(*args: object, **options: object) -> object:
            await call(*args, **options)
            monkeypatch.setattr(table, name, call)
            raise OutcomeUnknown("the connection broke")

        monkeypatch.setattr(table, name, lost)

    return lose


async def send(house: House) -> httpx.Response:
    form = {"file": ("a", LINE)}
    headers = {"Idempotency-Key": "k"}
    return await house.http.post("/v1/files", files=form, data={"purpose": "batch"}, headers=headers)


async def content(house: House, file_id: str) -> bytes:
    answer = await house.http.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_a_file_sent_again_with_its_key_has_its_bytes(
    house: House, losing: Callable[[type, str], None]
) -> None:
    losing(MemoryClaims, "claim")
    refused = await send(house)
    assert (refused.status_code, error_of(refused).type) == (503, "server_error")
    file = read(await send(house), FileObject)
    assert await content(house, file.id) == LINE


async def test_an_upload_completed_again_has_its_bytes(
    house: House, losing: Callable[[type, str], None]
) -> None:
    upload = read(await house.http.post("/v1/uploads", json=UPLOAD), UploadObject)
    path = f"/v1/uploads/{upload.id}"
    part = read(await house.http.post(f"{path}/parts", files={"data": ("b", LINE)}), PartObject)
    losing(MemoryUploads, "complete")
    body = {"part_ids": [part.id]}
    assert (await house.http.post(f"{path}/complete", json=body)).status_code == 503
    done = read(await house.http.post(f"{path}/complete", json=body), UploadObject)
    assert done.file is not None
    assert await content(house, done.file.id) == LINE


async def test_a_part_that_may_have_its_row_keeps_its_object(
    house: House, losing: Callable[[type, str], None]
) -> None:
    upload = read(await house.http.post("/v1/uploads", json=UPLOAD), UploadObject)
    losing(MemoryUploads, "add_part")
    answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
    assert (answer.status_code, len(house.storage.objects)) == (503, 1)


async def test_a_retry_asked_for_again_has_its_input(
    house: House, losing: Callable[[type, str], None]
) -> None:
    file = await house.upload(INPUT)
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
    first = read(await house.post(body), BatchObject)
    ended = Ended(house.database, house.storage, house.order(first.id))
    await ended.finish(BatchStatus.EXPIRED, (0, 2, 5))
    losing(MemoryChances, "claim")
    path = f"/v1/batches/{first.id}/x/retry"
    assert (await house.http.post(path)).status_code == 503
    batch = read(await house.http.post(path), BatchObject)
    assert (await content(house, batch.input_file_id)).count(b"\n") == 3
