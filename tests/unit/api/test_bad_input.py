"""Invalid input and the error message for each."""

import json
from collections.abc import AsyncGenerator

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from tests.fakes.api import LINE, ApiFixture, error_of, open_api, read

BODY: dict[str, object] = {
    "input_file_id": "file-" + "0" * 32,
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}
NOT_JSONL = "Invalid file format for Batch API. Must be .jsonl"
IDS = [
    "a%2Fb",
    "..%2F..%2Fetc",
    "%2e%2e",
    "a%0Ab",
    "a%0D%0Ax:%20y",
    "%00",
    "%ff",
    "%F0%9F%92%A9",
    "a;b",
    "*",
    "'",
]


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def sent(api: ApiFixture, content: bytes) -> tuple[int, str]:
    """Upload the content and return the status and the error message."""
    answer = await api.http.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})
    return answer.status_code, "" if answer.is_success else error_of(answer).message


async def post(api: ApiFixture, body: bytes) -> httpx.Response:
    return await api.http.post("/v1/batches", content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 400, NOT_JSONL),
        (b"\xef\xbb\xbf", 200, ""),  # counts as blank: validation reports empty_file
        (LINE.strip(), 200, ""),
        (b"\x00" * 100, 400, NOT_JSONL),
        (b'{"a": "\x00"}\n', 400, NOT_JSONL),
        (b'{"custom_id": "\\ud800"}\n', 200, ""),
        (b'{"a": 1, "a": 2}\n', 200, ""),  # the last key counts
        (b'{"n": 123456789012345678901234567890}\n', 200, ""),
        (b"[" * 10_000 + b"]" * 10_000 + b"\n", 400, NOT_JSONL),
    ],
    ids=["empty", "mark only", "no newline", "NULs", "NUL in a string", "surrogate", "keys twice",
         "large number", "deep"],
)  # fmt: skip
async def test_only_the_first_line_of_a_batch_file_is_checked_during_upload(
    api: ApiFixture, content: bytes, status: int, message: str
) -> None:
    assert await sent(api, content) == (status, message)
    assert len(api.storage.objects) == (status == 200)


async def test_a_first_line_of_60_mb_is_accepted_and_left_to_validation(api: ApiFixture) -> None:
    line = b'{"custom_id": "' + b"x" * 60 * 1024 * 1024 + b'"}\n'
    assert await sent(api, line) == (200, "")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 10_000 + b"]" * 10_000, "could not parse"),
        (json.dumps(BODY).encode()[:-1] + b', "metadata": {"a": "\\ud800"}}', "could not parse"),
        (json.dumps(BODY).encode() + b"\x00", "could not parse"),
        (b"\xef\xbb\xbf" + json.dumps(BODY).encode(), "could not parse"),
        (b"1" * 300, "must be an object"),
        (b"1" * 400, "could not parse"),  # larger than any number
        (b'"' + b"x" * 99 + b'"', "must be an object"),
    ],
)
async def test_a_body_that_is_no_plain_object_is_refused(api: ApiFixture, body: bytes, words: str) -> None:
    answer = await post(api, body)
    assert (answer.status_code, words in error_of(answer).message) == (400, True)


async def test_a_key_that_is_repeated_counts_once_with_its_last_value(api: ApiFixture) -> None:
    body = json.dumps(BODY).encode()[:-1] + b', "completion_window": "2h"}'
    assert read(await post(api, body), BatchObject).completion_window == "2h"


@pytest.mark.parametrize("seconds", [2**64, -(2**64), 10**30])
async def test_a_number_beyond_64_bits_is_out_of_range_and_no_other_type(
    api: ApiFixture, seconds: int
) -> None:
    answer = await api.post({**BODY, "output_expires_after": {"anchor": "created_at", "seconds": seconds}})
    assert (error_of(answer).code, error_of(answer).param) == (
        "invalid_value",
        "output_expires_after.seconds",
    )


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("limit=abc", 400, "invalid_type"),
        ("limit=1.5", 400, "invalid_type"),
        ("limit=%00", 400, "invalid_type"),
        ("limit=99999999999999999999", 400, "invalid_type"),
        ("limit=\u0663", 400, "invalid_type"),
        ("after=", 404, None),
        ("after=%00", 404, None),
        ("after=a/../b", 404, None),
    ],
)
async def test_a_wrong_query_of_a_list_is_refused(
    api: ApiFixture, path: str, query: str, status: int, code: str | None
) -> None:
    answer = await api.http.get(f"{path}?{query}")
    assert (answer.status_code, error_of(answer).code) == (status, code)


async def test_the_last_object_of_another_list_or_tenant_is_no_cursor(api: ApiFixture) -> None:
    batch = await api.create()
    blue = await api.create(tenant="blue")
    answers = [
        await api.http.get("/v1/files", params={"after": batch.id}),
        await api.http.get("/v1/batches", params={"after": batch.input_file_id}),
        await api.http.get("/v1/batches", params={"after": blue.id}),
        await api.http.get("/v1/files", params={"after": blue.input_file_id}),
    ]
    assert [answer.status_code for answer in answers] == [404] * 4


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("path", ["/v1/files/{}", "/v1/files/{}/content", "/v1/batches/{}", "/v1/models/{}"])
async def test_an_invalid_id_is_not_found(api: ApiFixture, path: str, id: str) -> None:
    answer = await api.http.get(path.format(id))
    assert (answer.status_code, error_of(answer).type) == (404, "invalid_request_error")
    assert "\n" not in str(answer.headers)


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=" + "x" * 300, "text/plain", ""]
)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/uploads/{}/parts"])
async def test_a_form_without_a_boundary_is_refused(api: ApiFixture, path: str, content_type: str) -> None:
    body = {"filename": "a", "purpose": "batch", "bytes": 9, "mime_type": "a/b"}
    upload = (await api.http.post("/v1/uploads", json=body)).json()["id"]
    headers = {"Content-Type": content_type}
    answer = await api.http.post(path.format(upload), content=b"--x\r\n", headers=headers)
    assert (answer.status_code, "boundary" in error_of(answer).message) == (400, True)
    assert api.storage.objects == {}


async def test_a_file_name_of_bytes_that_are_no_text_is_refused(api: ApiFixture) -> None:
    form = (
        b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a\xff\x80.jsonl"\r\n\r\n'
        + LINE
        + b"\r\n--cut--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=cut"}
    answer = await api.http.post("/v1/files", content=form, headers=headers)
    assert (answer.status_code, error_of(answer).type) == (400, "invalid_request_error")
    assert api.storage.objects == {}


ONE = {
    "DELETE /v1/files/{}": None,
    **{f"POST /v1/batches/{{}}/{verb}": None for verb in ("cancel", "x/pause", "x/resume", "x/retry")},
    "GET /v1/batches/{}/x/results": None,
    "GET /v1/batches/{}/x/state": None,
    "POST /v1/uploads/{}/parts": None,
    "POST /v1/uploads/{}/complete": {"part_ids": ["a"]},
    "POST /v1/uploads/{}/cancel": None,
}


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("route", ONE)
async def test_an_invalid_id_cannot_be_used_in_any_route(api: ApiFixture, route: str, id: str) -> None:
    method, path = route.format(id).split(" ")
    answer = await api.http.request(method, path, json=ONE[route])
    assert (answer.status_code, error_of(answer).type) == (404, "invalid_request_error")
    assert "\n" not in str(answer.headers)


UNREADABLE = {
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "lone surrogate": rb'{"a": "\udfff"}',
    "NUL": b'{"a": "\x00"}',
    "no text": b'{"a": "\xff"}',
    "beyond all numbers": b'{"a": ' + b"9" * 400 + b"}",
    "not a number": b'{"a": NaN}',
    "cut off": b'{"a": ',
    "a list": b"[]",
    "nothing": b"",
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(
    "route",
    [
        *("POST /v1/batches", "POST /v1/uploads", "POST /v1/uploads/{}/complete"),
        *("PUT /admin/rates", "PUT /admin/quotas", "PUT /admin/models/m"),
        "PUT /admin/budget-groups/organization/o",
        "PUT /admin/budget-groups/user/u?tenant=t",
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_by_every_route(
    api: ApiFixture, route: str, body: bytes
) -> None:
    announced = {"filename": "a", "purpose": "batch", "bytes": 9, "mime_type": "a/b"}
    upload = (await api.http.post("/v1/uploads", json=announced)).json()["id"]
    method, path = route.format(upload).split(" ")
    answer = await api.http.request(method, path, content=body)
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (400, None, None)
    assert "JSON body" in error_of(answer).message


@pytest.mark.parametrize("size", [2**64, -(2**64), 10**30, 1e300])
async def test_an_upload_of_impossible_size_is_refused(api: ApiFixture, size: float) -> None:
    body = {"filename": "a", "purpose": "user_data", "bytes": size, "mime_type": "a/b"}
    answer = await api.http.post("/v1/uploads", json=body)
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (
        400,
        "invalid_value",
        "bytes",
    )


@pytest.mark.parametrize("names", [["a", "a"], ["a\u0301"], ["\U0001f600"], ["__proto__"], [" "], ["a.b[0]"]])
async def test_odd_keys_of_metadata_are_kept_as_they_are(api: ApiFixture, names: list[str]) -> None:
    pairs = ", ".join(f'{json.dumps(name)}: "{number}"' for number, name in enumerate(names))
    body = json.dumps(BODY)[:-1] + f', "metadata": {{{pairs}}}}}'
    batch = read(await post(api, body.encode()), BatchObject)
    assert batch.metadata == {name: str(number) for number, name in enumerate(names)}
