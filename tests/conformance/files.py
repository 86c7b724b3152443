"""Checks of files with the official Python client."""

import gzip

import pytest
from openai import BadRequestError, ConflictError, NotFoundError

from batchwright.contracts.terms import Profile
from batchwright.rules.input.compression import zstd
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.exact import exact
from tests.conformance.requests import CONTENT, created, sent
from tests.e2e.batches import ended
from tests.e2e.stack import MODELS

TABLE = Table()
DAY_SECONDS = 86_400


@TABLE.row("Files", "an upload returns the File, `processed`, which expires after 30 days")
async def upload(api: Api) -> None:
    raw = api.client.files.with_raw_response
    file = exact(await raw.create(file=("Grüße.jsonl", CONTENT), purpose="batch"))
    assert (file.status, file.filename, file.bytes) == ("processed", "Grüße.jsonl", len(CONTENT))
    assert file.expires_at == file.created_at + 30 * DAY_SECONDS
    assert exact(await raw.retrieve(file.id)) == file
    assert (await api.client.files.wait_for_processing(file.id)).id == file.id


@TABLE.row("Files", "`expires_after` sets when the file expires")
async def expiry(api: Api) -> None:
    file = await api.client.files.create(
        file=("a.jsonl", CONTENT), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600


@TABLE.row("Files", "lists are paged by id, in both orders, and filtered by purpose")
async def pages(api: Api) -> None:
    files = api.client.files
    file_ids = [(await sent(api.client, name=f"{i}.jsonl")).id for i in range(5)]
    newest = [file.id async for file in files.list(limit=2, purpose="batch")]
    oldest = [file.id async for file in files.list(limit=2, order="asc", purpose="batch")]
    assert newest[:5] == file_ids[::-1]
    assert oldest == newest[::-1]
    page = await files.list(limit=2)
    assert page.has_more
    assert [file.id for file in page.data] == file_ids[:2:-1]
    after = await files.list(limit=1, after=file_ids[1])
    assert [file.id for file in after.data] == [file_ids[0]]
    assert [file.id async for file in files.list(purpose="vision")] == []


@TABLE.row("Files", "content is streamed unchanged, with length, name and ETag")
async def content(api: Api) -> None:
    file = await sent(api.client)
    async with api.client.files.with_streaming_response.content(file.id) as answer:
        pieces = [piece async for piece in answer.iter_bytes(50)]
        assert b"".join(pieces) == CONTENT
        assert answer.headers["content-length"] == str(len(CONTENT))
        assert answer.headers["content-disposition"] == 'attachment; filename="in.jsonl"'
        assert answer.headers["etag"]


@TABLE.row("Files", "a gzip or zstd input is stored expanded; a cut one is rejected", Profile.RELAXED)
async def compressed_input(api: Api) -> None:
    for ending, packed in (("gz", gzip.compress(CONTENT)), ("zst", zstd.compress(CONTENT))):
        file = await api.client.files.create(file=(f"in.jsonl.{ending}", packed), purpose="batch")
        assert (file.filename, file.bytes) == ("in.jsonl", len(CONTENT))
        assert (await api.client.files.content(file.id)).content == CONTENT
        with pytest.raises(BadRequestError) as refused:
            await api.client.files.create(file=("in.jsonl.gz", packed[:-2]), purpose="batch")
        assert refused.value.code == "damaged_archive"


@TABLE.row("Files", "content is sent compressed if the client accepts it, as it does by default")
async def compressed_content(api: Api) -> None:
    content = CONTENT * (8192 // len(CONTENT) + 1)
    file = await sent(api.client, content=content)
    async with api.client.files.with_streaming_response.content(file.id) as answer:
        assert b"".join([piece async for piece in answer.iter_bytes()]) == content
        assert answer.headers["content-encoding"] in ("gzip", "zstd")


@TABLE.row("Files", "ranges of content: 206, 416, `If-Range`, and 304 for a known ETag")
async def ranges(api: Api) -> None:
    file = await sent(api.client)

    async def get(**headers: str) -> tuple[int, bytes]:
        encoded = {name.replace("_", "-"): value for name, value in headers.items()}
        async with http_client(headers={"X-Tenant": api.profile.value}) as http:
            answer = await http.get(f"{api.url}/files/{file.id}/content", headers=encoded)
        return answer.status_code, answer.content

    assert await get(range="bytes=3-9") == (206, CONTENT[3:10])
    assert await get(range="bytes=-4") == (206, CONTENT[-4:])
    assert (await get(range=f"bytes={len(CONTENT)}-"))[0] == 416
    assert await get(range="bytes=0-1", if_range='"another"') == (200, CONTENT)
    assert await get(if_none_match=f'"{file.id}"') == (304, b"")


@TABLE.row("Files", "a deleted file no longer exists: 404 with param `id`")
async def deletion(api: Api) -> None:
    file = await sent(api.client)
    gone = exact(await api.client.files.with_raw_response.delete(file.id))
    assert (gone.id, gone.deleted) == (file.id, True)
    for call in (api.client.files.retrieve, api.client.files.content, api.client.files.delete):
        with pytest.raises(NotFoundError) as unknown:
            await call(file.id)
        assert unknown.value.param == "id"


@TABLE.row("Files", "a file that a live batch reads cannot be deleted: 409 without a retry")
async def in_use(api: Api) -> None:
    await api.stack.faults(model=MODELS[0], kind="hang", rate=1.0)
    batch = await created(api.client)
    with pytest.raises(ConflictError) as conflict:
        await api.client.with_options(max_retries=5).files.delete(batch.input_file_id)
    assert conflict.value.response.headers["x-should-retry"] == "false"
    await api.client.batches.cancel(batch.id)
    await ended(api.client, batch.id)
    assert (await api.client.files.delete(batch.input_file_id)).deleted


@TABLE.row("Files", "an empty file, or one that does not start with a line of JSON, is rejected")
async def no_jsonl(api: Api) -> None:
    for wrong in (b"", b"no json\n"):
        with pytest.raises(BadRequestError, match="Invalid file format for Batch API"):
            await sent(api.client, wrong)
