"""An API without authentication rejects requests of foreign web pages."""

import httpx
import pytest

from tests.fakes.api import LINE, ApiFixture, error_of, open_api

PAGE = "https://app.example.com"
FILE = {"file": ("input.jsonl", LINE)}


async def sent(api: ApiFixture, **headers: str) -> httpx.Response:
    """Send a form that any web page can send without a CORS preflight. Return the response."""
    return await api.http.post("/v1/files", files=FILE, data={"purpose": "batch"}, headers=headers)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://api:1", "http://127.0.0.1"])
async def test_requests_of_a_page_of_another_site_are_refused(origin: str) -> None:
    async with open_api() as api:
        answer = await sent(api, Origin=origin)
        assert (answer.status_code, error_of(answer).type) == (403, "invalid_request_error")
        assert api.database.rows.files == {}
        assert "BATCHWRIGHT_API_CORS_ORIGINS" in error_of(answer).message


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_page_of_another_site_can_use_no_method(method: str) -> None:
    async with open_api() as api:
        answer = await api.http.request(method, "/admin/models/m", headers={"Origin": PAGE}, json={})
    assert (answer.status_code, "BATCHWRIGHT_API_CORS_ORIGINS" in error_of(answer).message) == (403, True)


@pytest.mark.parametrize("path", ["/admin/models/tasks/callback/m", "//tasks/callback/m"])
async def test_a_path_that_only_contains_that_of_callbacks_is_checked_like_any_other(path: str) -> None:
    async with open_api() as api:
        answer = await api.http.delete(f"http://api{path}", headers={"Origin": PAGE})
    assert (answer.status_code, "BATCHWRIGHT_API_CORS_ORIGINS" in error_of(answer).message) == (403, True)


async def test_programs_own_pages_and_listed_origins_are_accepted() -> None:
    async with open_api(api_cors_origins=[PAGE]) as api:
        answers = [await sent(api), await sent(api, Origin="http://api"), await sent(api, Origin=PAGE)]
    async with open_api(api_cors_origins=["*"]) as api:
        answers.append(await sent(api, Origin="https://any.example"))
    assert [answer.status_code for answer in answers] == [200] * 4


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[
            (host, 200)
            for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST.", "build-7")
        ],
        *[
            (host, 200)
            for host in ("host.docker.internal:8000", "batchwright-api.ns.svc", "batch.example.com:8000")
        ],
        *[
            (host, 421)
            for host in (
                "printer.local",
                "api.cluster.local",
                "evil.example",
                "evil.example:8000",
                "127.0.0.1.evil.example",
                "[::1.x",
            )
        ],
        ("localhost.evil.example.", 421),
    ],
)
async def test_a_public_host_name_is_refused_unless_it_is_listed(host: str, status: int) -> None:
    async with open_api(api_hosts=["batch.example.com"]) as api:
        answer = await api.http.get("/v1/files", headers={"Host": host})
    assert answer.status_code == status
    assert answer.headers["x-request-id"]


async def test_with_keys_host_names_and_origins_are_not_checked() -> None:
    async with open_api(auth="api_key") as api:
        answer = await sent(api, Origin="https://evil.example", Host="evil.example")
    assert answer.status_code == 401
