"""Checks of uploads in parts with the official Python client."""

import asyncio
import hashlib

import pytest
from openai import BadRequestError, NotFoundError
from openai.types import Upload

from tests.conformance.contract import Api, Table
from tests.conformance.exact import exact
from tests.conformance.requests import CONTENT

TABLE = Table()
TYPE = "application/jsonl"


async def announced(api: Api) -> Upload:
    raw = api.client.uploads.with_raw_response
    return exact(await raw.create(bytes=len(CONTENT), filename="a.jsonl", mime_type=TYPE, purpose="batch"))


async def add(api: Api, upload: Upload, data: bytes) -> str:
    part = exact(await api.client.uploads.parts.with_raw_response.create(upload.id, data=data))
    assert part.upload_id == upload.id
    return part.id


@TABLE.row("Uploads", "the client's own way of splitting a file works")
async def split(api: Api) -> None:
    done = await api.client.uploads.upload_file_chunked(
        file=CONTENT,
        filename="a.jsonl",
        bytes=len(CONTENT),
        mime_type=TYPE,
        purpose="batch",
        part_size=100,
        md5=hashlib.md5(CONTENT).hexdigest(),
    )
    assert done.file is not None
    assert (await api.client.files.content(done.file.id)).content == CONTENT


@TABLE.row("Uploads", "parts may be sent in parallel, in any order; `part_ids` orders the bytes")
async def out_of_order(api: Api) -> None:
    upload = await announced(api)
    assert (upload.status, upload.file, upload.expires_at - upload.created_at) == ("pending", None, 3600)
    pieces = [CONTENT[at : at + 99] for at in range(0, len(CONTENT), 99)]
    ids = await asyncio.gather(*(add(api, upload, piece) for piece in reversed(pieces)))
    raw = api.client.uploads.with_raw_response
    done = exact(await raw.complete(upload.id, part_ids=ids[::-1]))
    assert done.status == "completed"
    assert done.file is not None
    assert (done.file.bytes, done.file.filename) == (len(CONTENT), "a.jsonl")
    assert (await api.client.files.content(done.file.id)).content == CONTENT


@TABLE.row("Uploads", "wrong sizes, MD5 or part ids are rejected, and the upload can still be completed")
async def agreement(api: Api) -> None:
    upload, complete = await announced(api), api.client.uploads.complete
    first, second = await add(api, upload, CONTENT[:50]), await add(api, upload, CONTENT[50:])
    with pytest.raises(BadRequestError, match="bytes together"):
        await complete(upload.id, part_ids=[first])
    with pytest.raises(BadRequestError, match="MD5"):
        await complete(upload.id, part_ids=[first, second], md5="0" * 32)
    with pytest.raises(BadRequestError, match="has no part"):
        await complete(upload.id, part_ids=[first, "part_0"])
    assert (await complete(upload.id, part_ids=[first, second])).status == "completed"


@TABLE.row("Uploads", "a cancelled upload accepts no part and cannot be completed")
async def cancellation(api: Api) -> None:
    upload = await announced(api)
    part = await add(api, upload, CONTENT)
    cancelled = exact(await api.client.uploads.with_raw_response.cancel(upload.id))
    assert cancelled.status == "cancelled"
    with pytest.raises(BadRequestError):
        await add(api, upload, CONTENT)
    with pytest.raises(BadRequestError):
        await api.client.uploads.complete(upload.id, part_ids=[part])


@TABLE.row("Uploads", "an unknown upload is 404")
async def unknown(api: Api) -> None:
    with pytest.raises(NotFoundError):
        await api.client.uploads.cancel("upload_" + "0" * 32)
