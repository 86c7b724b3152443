"""An API without authentication and the web pages that a browser beside it shows."""

import httpx
import pytest

from tests.fakes.api import LINE, House, error_of, open_house

PAGE = "https://app.example.com"
FILE = {"file": ("input.jsonl", LINE)}


async def sent(house: House, **headers: str) -> httpx.Response:
    """A form that a page of any site may send without asking."""
    return await house.http.post("/v1/files", files=FILE, data={"purpose": "batch"}, headers=headers)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://api:1", "http://127.0.0.1"])
async def test_what_a_page_of_another_site_sends_is_refused(origin: str) -> None:
    async with open_house() as house:
        answer = await sent(house, Origin=origin)
        assert (answer.status_code, error_of(answer).type) == (403, "invalid_request_error")
        assert house.database.rows.files == {}
        assert "BATCHWRIGHT_API_CORS_ORIGINS" in error_of(answer).message


async def test_programs_own_pages_and_those_that_are_listed_are_let_through() -> None:
    async with open_house(api_cors_origins=[PAGE]) as house:
        answers = [await sent(house), await sent(house, Origin="http://api"), await sent(house, Origin=PAGE)]
    async with open_house(api_cors_origins=["*"]) as house:
        answers.append(await sent(house, Origin="https://any.example"))
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
        *[(host, 421) for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1.x")],
        ("localhost.evil.example.", 421),
    ],
)
async def test_a_public_name_that_leads_here_is_not_ours_unless_it_is_listed(host: str, status: int) -> None:
    async with open_house(api_hosts=["batch.example.com"]) as house:
        answer = await house.http.get("/v1/files", headers={"Host": host})
    assert answer.status_code == status
    assert answer.headers["x-request-id"]


async def test_with_keys_names_and_origins_open_and_close_nothing() -> None:
    async with open_house(auth="api_key") as house:
        answer = await sent(house, Origin="https://evil.example", Host="evil.example")
    assert answer.status_code == 401
