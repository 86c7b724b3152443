"""Checks of rare cases with the official Python client: ends of lists, files with other purposes, early
cancels.
"""

import contextlib

import pytest
from openai import BadRequestError, ConflictError, NotFoundError
from openai.types import Batch, FileObject, Upload

from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.requests import CONTENT, NOWHERE, created, done, jsonl, sent
from tests.e2e.batches import CHAT, chat_line, ended
from tests.e2e.stack import MODELS

TABLE = Table()
MANY = 10_000


@TABLE.row("Files", "any `limit` except 1 to 10000, unknown `after` or other `order` is rejected")
async def file_lists(api: Api) -> None:
    await _check_limits(api, "/files", 10_000)
    await _check_empty(api, "/files")
    with pytest.raises(NotFoundError):
        await api.client.files.list(after=NOWHERE)
    with pytest.raises(BadRequestError) as refused:
        await api.client.get("/files?order=up", cast_to=FileObject)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "order")


@TABLE.row("Batches", "any `limit` except 1 to 100 is rejected; an empty list has null ids")
async def batch_lists(api: Api) -> None:
    await _check_limits(api, "/batches", 100)
    await _check_empty(api, "/batches")


async def _check_limits(api: Api, path: str, most: int) -> None:
    for limit, code in (
        ("0", "integer_below_min_value"),
        ("-1", "integer_below_min_value"),
        (str(most + 1), "integer_above_max_value"),
        ("abc", "invalid_type"),
    ):
        with pytest.raises(BadRequestError) as refused:
            await api.client.get(f"{path}?limit={limit}", cast_to=FileObject)
        assert (refused.value.code, refused.value.param) == (code, "limit")
    for limit in (1, most):
        await api.client.get(f"{path}?limit={limit}", cast_to=FileObject)


async def _check_empty(api: Api, path: str) -> None:
    async with http_client(headers={"X-Tenant": "nobody"}) as http:
        page = (await http.get(api.url + path)).json()
    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@TABLE.row("Files", "files of OpenAI's other purposes may have any content and do not expire")
async def purposes(api: Api) -> None:
    for purpose in ("assistants", "fine-tune", "user_data", "evals"):
        file = await api.client.files.create(file=("a.bin", b"\x00\xff"), purpose=purpose)
        assert (file.purpose, file.expires_at, file.status) == (purpose, None, "processed")
        await api.client.files.delete(file.id)
    with pytest.raises(BadRequestError) as refused:
        await api.client.files.create(file=("a", b"x"), purpose="batch_output")  # pyright: ignore[reportArgumentType]
    assert (refused.value.code, refused.value.param) == ("invalid_value", "purpose")


@TABLE.row("Files", "`expires_after` without both anchor and seconds (3600 to 2592000) is rejected")
async def wrong_expiry(api: Api) -> None:
    wrong: list[tuple[dict[str, str], str, str]] = [
        ({"expires_after[anchor]": "created_at"}, "missing_required_parameter", "expires_after.seconds"),
        ({"expires_after[seconds]": "3600"}, "missing_required_parameter", "expires_after.anchor"),
        (
            {"expires_after[anchor]": "x", "expires_after[seconds]": "3600"},
            "invalid_value",
            "expires_after.anchor",
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "invalid_value",
            "expires_after.seconds",
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"},
            "invalid_value",
            "expires_after.seconds",
        ),
    ]
    async with http_client() as http:
        for fields, code, param in wrong:
            data = {"purpose": "batch", **fields}
            answer = await http.post(api.url + "/files", data=data, files={"file": ("a.jsonl", CONTENT)})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, code, param)


@TABLE.row("Uploads", "an upload of zero bytes, or of more than the purpose allows, is rejected")
async def upload_sizes(api: Api) -> None:
    for size in (0, 200 * 1024 * 1024 + 1):
        with pytest.raises(BadRequestError) as refused:
            await api.client.uploads.create(bytes=size, filename="a", mime_type="a/b", purpose="batch")
        assert (refused.value.code, refused.value.param) == ("invalid_value", "bytes")
    body = {"bytes": 8 * 2**30, "filename": "a", "mime_type": "a/b", "purpose": "user_data"}
    upload = await api.client.post("/uploads", cast_to=Upload, body=body)
    assert (await api.client.uploads.cancel(upload.id)).status == "cancelled"


@TABLE.row("Uploads", "`expires_after` of an upload sets when its file expires")
async def upload_expiry(api: Api) -> None:
    upload = await api.client.uploads.create(
        bytes=len(CONTENT),
        filename="a.jsonl",
        mime_type="application/jsonl",
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    part = await api.client.uploads.parts.create(upload.id, data=CONTENT)
    file = (await api.client.uploads.complete(upload.id, part_ids=[part.id])).file
    assert file is not None
    assert file.expires_at == file.created_at + 7200


@TABLE.row("Batches", "a batch can be cancelled as soon as it is created, and stays `cancelled`")
async def early_cancel(api: Api) -> None:
    await api.stack.faults(model=MODELS[0], kind="hang", rate=1.0)
    batch = await created(api.client)
    assert (await api.client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    batch = await ended(api.client, batch.id)
    assert (batch.status, batch.completed_at, batch.finalizing_at) == ("cancelled", None, None)
    assert batch.cancelled_at is not None
    assert (await api.client.batches.cancel(batch.id)).cancelled_at == batch.cancelled_at


@TABLE.row("Batches", "at most 1,000 errors are listed; the last entry has the total number")
async def many_errors(api: Api) -> None:
    batch = await done(api.client, jsonl([chat_line("same", MODELS[0])] * MANY))
    found = (batch.errors and batch.errors.data) or []
    assert batch.status == "failed"
    assert len(found) == 1_000
    assert {error.code for error in found[:-1]} == {"duplicate_custom_id"}
    assert [error.line for error in found[:-1]] == list(range(2, 1_001))
    assert found[-1].line is None
    assert str(MANY - 1) in (found[-1].message or "")


@TABLE.row("Batches", "ids with slashes, escapes or line breaks are unknown: 404")
async def unusual_ids(api: Api) -> None:
    async with http_client() as http:
        for id in ("a%2Fb", "..%2F..%2Fetc", "a%0Ab", "%00", "%ff"):
            for method, path in (("GET", "batches/{}"), ("POST", "batches/{}/cancel"), ("GET", "files/{}")):
                answer = await http.request(method, f"{api.url}/{path.format(id)}")
                assert answer.status_code == 404
                assert answer.json()["error"]["type"] == "invalid_request_error"


@TABLE.row("Batches", "a file that is deleted while its batch is created is kept, or the batch fails")
async def deleted_meanwhile(api: Api) -> None:
    file = await sent(api.client)
    await api.client.files.delete(file.id)
    new = await api.client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch: Batch = await ended(api.client, new.id)
    found = (batch.errors and batch.errors.data) or []
    assert [(error.code, error.param) for error in found] == [("invalid_request", "file_id")]
    running = await created(api.client)
    with contextlib.suppress(ConflictError):
        assert (await api.client.files.delete(running.input_file_id)).deleted
    assert (await ended(api.client, running.id)).status == "completed"
