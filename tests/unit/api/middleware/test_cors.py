"""Which pages of other sites may call the API (CORS)."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import ApiFixture, error_of, open_api

PAGE = "https://app.example.com"


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_no_page_may_call_the_api_by_default(api: ApiFixture) -> None:
    answer = await api.http.get("/v1/files", headers={"Origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
    preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    assert (await api.http.options("/v1/files", headers=preflight)).status_code == 405


async def test_pages_of_configured_origins_may_call_the_api() -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Idempotency-Key"}
    async with open_api(api_cors_origins=[PAGE]) as api:
        ours = await api.http.options("/v1/files", headers={"Origin": PAGE, **preflight})
        read = await api.http.get("/v1/files", headers={"Origin": PAGE})
        other = await api.http.options("/v1/files", headers={"Origin": "https://evil.example", **preflight})
    assert (ours.status_code, ours.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "idempotency-key" in ours.headers["access-control-allow-headers"].lower()
    assert read.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-Id" in read.headers["access-control-expose-headers"]
    assert (other.status_code, error_of(other).type) == (400, "invalid_request_error")
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "headers",
    [
        # of the official JavaScript clients in a browser
        "authorization,content-type,x-stainless-lang,x-stainless-os,x-stainless-retry-count,x-stainless-timeout",
        "anthropic-dangerous-direct-browser-access,anthropic-version,x-api-key,x-stainless-arch",
        "x-project",  # a header that the operator passes on to backends
    ],
)
async def test_pages_of_configured_origins_may_send_each_header_of_the_official_clients(headers: str) -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers}
    async with open_api(api_cors_origins=[PAGE], pass_headers="X-Project") as api:
        answer = await api.http.options("/v1/batches", headers={"Origin": PAGE, **preflight})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-headers"] == headers
