"""The security headers of every response."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import ApiFixture, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.mark.parametrize("path", ["/healthz", "/v1/files", "/v1/files/x", "/v1/x", "/metrics"])
async def test_every_response_forbids_content_sniffing(api: ApiFixture, path: str) -> None:
    headers = (await api.http.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"


async def test_the_response_to_a_refused_request_has_the_headers_too(api: ApiFixture) -> None:
    answer = await api.http.get("/v1/files", headers={"X-Long": "x" * 40_000})
    assert (answer.status_code, answer.headers["x-content-type-options"]) == (431, "nosniff")
