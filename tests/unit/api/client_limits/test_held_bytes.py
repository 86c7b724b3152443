"""The limits of bytes that an API process keeps in memory for clients and backends."""

from collections.abc import AsyncIterator

import pytest

from batchwright.api.client_limits.held_bytes import HeldBytes
from batchwright.api.errors import ApiError
from tests.fakes.api import LINE, open_api
from tests.unit.api.routes.anthropic.message_batch_requests import VERSION

MIB = 1024 * 1024


def test_all_bytes_of_a_process_have_one_limit() -> None:
    held = HeldBytes(16 * MIB)
    with held.counted("a") as of_a, held.counted("b") as of_b, held.counted("c") as of_c:
        of_a(128 * MIB)
        with pytest.raises(ApiError):
            of_a(1)
        of_b(128 * MIB)
        with pytest.raises(ApiError):
            of_c(1)


def test_two_bodies_of_the_largest_size_always_fit() -> None:
    held = HeldBytes(200 * MIB)
    with held.counted("a") as of_body, held.counted("a") as of_answer:
        of_body(200 * MIB)
        of_answer(200 * MIB)
        with pytest.raises(ApiError):
            of_answer(1)


@pytest.mark.parametrize("setting", ["max_line_bytes", "max_response_bytes"])
async def test_the_limit_is_raised_for_the_largest_line_and_the_largest_response(setting: str) -> None:
    async with open_api(**{setting: 150 * MIB}) as api:
        assert (api.held_bytes.limit_per_tenant, api.held_bytes.limit) == (300 * MIB, 300 * MIB)


async def test_downloads_and_calls_count_towards_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api() as api:
        monkeypatch.setattr(api.held_bytes, "limit", 1000)
        file = await api.upload()
        with api.held_bytes.counted("other") as held_for_other:
            held_for_other(1000)
            download = await api.http.get(f"/v1/files/{file.id}/content")
            call = await api.http.post("/queue/submit", json={"model": "llama", "payload": {"messages": []}})
        assert (download.status_code, call.status_code) == (429, 429)


FILE = (
    b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%b\r\n--cut--\r\n'
)
MESSAGES = b'{"requests":[%b]}'


@pytest.mark.parametrize(
    ("path", "headers", "body", "short", "long"),
    [
        (
            "/v1/files",
            {"Content-Type": "multipart/form-data; boundary=cut"},
            FILE,
            LINE * 100,
            LINE.replace(b"{}", b'{"x": "%b"}' % (b"x" * 2000)),
        ),
        (
            "/v1/messages/batches",
            VERSION,
            MESSAGES,
            b",".join(b'{"custom_id":"%d","params":{}}' % number for number in range(100)),
            b'{"custom_id":"a","params":{"x":"%b"}}' % (b"x" * 2000),
        ),
    ],
)
async def test_what_an_upload_keeps_of_a_long_line_or_request_counts_until_the_next(
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    headers: dict[str, str],
    body: bytes,
    short: bytes,
    long: bytes,
) -> None:
    async def send(content: bytes) -> int:
        async def pieces() -> AsyncIterator[bytes]:
            whole = body % content
            for start in range(0, len(whole), 100):
                yield whole[start : start + 100]

        return (await api.http.post(path, content=pieces(), headers=headers)).status_code

    async with open_api() as api:
        monkeypatch.setattr(api.held_bytes, "limit_per_tenant", 1000)
        assert [await send(short), await send(long)] == [200, 429]
        with api.held_bytes.counted("default") as count:
            count(1000)  # nothing is counted after the end of an upload
