"""HEAD answers as GET does, without the body and what it takes to make it."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.rules.api_keys import Scope
from tests.fakes.api import LINE, House, open_house
from tests.fakes.keys import made_key
from tests.fakes.storage import MemoryStorage


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


PATHS = [
    *(
        "/v1/files",
        "/v1/files/{file}",
        "/v1/files/{file}/content",
        "/v1/batches",
        "/v1/models",
        "/v1/x/limits",
    ),
    *("/admin/rates", "/admin/dlq", "/healthz", "/readyz", "/openapi.json", "/docs", "/v1/files/x", "/v1/x"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_head_has_status_and_headers_of_get(house: House, path: str) -> None:
    path = path.format(file=(await house.upload(LINE * 3)).id)
    headers = {"X-Request-Id": "same"}
    got, head = [await house.http.request(method, path, headers=headers) for method in ("GET", "HEAD")]
    assert (head.status_code, dict(head.headers)) == (got.status_code, dict(got.headers))
    assert int(head.headers["content-length"]) == len(got.content) > 0
    assert head.content == b""


async def test_head_of_a_part_or_of_what_the_client_has_is_as_of_get(house: House) -> None:
    file = await house.upload(LINE * 3)
    path = f"/v1/files/{file.id}/content"
    part = await house.http.head(path, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.headers["content-length"]) == (206, "3")
    assert part.headers["content-range"] == f"bytes 2-4/{3 * len(LINE)}"
    known = await house.http.head(path, headers={"If-None-Match": part.headers["etag"]})
    assert known.status_code == 304
    assert (await house.http.head(path, headers={"Range": "bytes=999-"})).status_code == 416


async def test_head_of_content_reads_nothing_of_it_and_tells_whether_it_is_there(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await house.upload(LINE * 3)
    with monkeypatch.context() as unread:
        unread.delattr(MemoryStorage, "read")
        assert (await house.http.head(f"/v1/files/{file.id}/content")).status_code == 200
    house.storage.objects.clear()
    assert (await house.http.head(f"/v1/files/{file.id}/content")).status_code == 500


async def test_head_is_counted_as_what_it_is_and_refused_where_there_is_no_get(house: House) -> None:
    refused = await house.http.head("/v1/batches/x/cancel")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")
    await house.http.head("/v1/models")
    assert 'method="HEAD",route="/v1/models"' in (await house.http.get("/metrics")).text


async def test_head_needs_a_key_that_may_read() -> None:
    async with open_house(auth="api_key") as house:
        writer = await made_key(house.database, "blue", scopes=[Scope.WRITE])
        reader = await made_key(house.database, "blue", scopes=[Scope.READ])
        assert (await house.http.head("/v1/files")).status_code == 401
        for key, status in ((writer, 403), (reader, 200)):
            headers = {"Authorization": f"Bearer {key.text}"}
            assert (await house.http.head("/v1/files", headers=headers)).status_code == status
