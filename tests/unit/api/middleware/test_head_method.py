"""HEAD returns the same as GET without the body, and does not produce the body."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.rules.tenants.scopes import Scope
from tests.fakes.api import LINE, ApiFixture, open_api
from tests.fakes.api_keys import create_key
from tests.fakes.storage import MemoryStorage


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


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
async def test_head_has_status_and_headers_of_get(api: ApiFixture, path: str) -> None:
    path = path.format(file=(await api.upload(LINE * 3)).id)
    headers = {"X-Request-Id": "same"}
    got, head = [await api.http.request(method, path, headers=headers) for method in ("GET", "HEAD")]
    assert (head.status_code, dict(head.headers)) == (got.status_code, dict(got.headers))
    assert int(head.headers["content-length"]) == len(got.content) > 0
    assert head.content == b""


@pytest.mark.parametrize(
    "path", ["/admin/audit-log/export", "/v1/batches/{batch}/x/events", "/v1/messages/x"]
)
async def test_head_has_no_length_if_the_length_of_get_is_not_known(api: ApiFixture, path: str) -> None:
    head = await api.http.head(path.format(batch=(await api.create()).id))
    assert (head.headers.get("content-length"), head.content) == (None, b"")


async def test_head_ignores_ranges_and_answers_a_known_etag(api: ApiFixture) -> None:
    file = await api.upload(LINE * 3)
    path = f"/v1/files/{file.id}/content"
    for bytes_range in ("bytes=2-4", "bytes=999-"):
        whole = await api.http.head(path, headers={"Range": bytes_range})
        assert (whole.status_code, whole.headers["content-length"]) == (200, str(3 * len(LINE)))
    known = await api.http.head(path, headers={"If-None-Match": whole.headers["etag"]})
    assert known.status_code == 304


async def test_head_of_content_reads_no_bytes_and_reports_a_missing_object(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await api.upload(LINE * 3)
    with monkeypatch.context() as unread:
        unread.delattr(MemoryStorage, "read")
        assert (await api.http.head(f"/v1/files/{file.id}/content")).status_code == 200
    api.storage.objects.clear()
    assert (await api.http.head(f"/v1/files/{file.id}/content")).status_code == 500


async def test_head_is_counted_as_head_and_refused_if_there_is_no_get(api: ApiFixture) -> None:
    refused = await api.http.head("/v1/batches/x/cancel")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")
    await api.http.head("/v1/models")
    assert 'method="HEAD",route="/v1/models"' in (await api.http.get("/metrics")).text


async def test_head_needs_a_key_that_may_read() -> None:
    async with open_api(auth="api_key") as api:
        writer = await create_key(api.database, "blue", scopes=[Scope.WRITE])
        reader = await create_key(api.database, "blue", scopes=[Scope.READ])
        assert (await api.http.head("/v1/files")).status_code == 401
        for key, status in ((writer, 403), (reader, 200)):
            headers = {"Authorization": f"Bearer {key.text}"}
            assert (await api.http.head("/v1/files", headers=headers)).status_code == status
