"""Headers that are forwarded from a batch's creation to its requests: names, values, and precedence."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.rules.backends.request_headers import (
    MAX_PASSED_CHARACTERS,
    MAX_PASSED_HEADERS,
    currently_passed,
    parse_passed_names,
)
from batchwright.settings import SettingsError, load
from tests.fakes.api import ApiFixture, error_of, open_api, read

BODY = {"input_file_id": "file-" + "0" * 32, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(pass_headers="X-Team, x-cost-centre") as api:
        yield api


async def created(api: ApiFixture, **headers: str) -> dict[str, str]:
    """Create a batch with these headers. Return the headers that are stored with the batch."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    batch = read(await api.http.post("/v1/batches", json=BODY, headers=named), BatchObject)
    order = api.order(batch.id)
    assert api.database.rows.batches["default", batch.id].order == order
    return order.policy.caller.headers


def test_names_are_a_list_with_commas_in_any_case() -> None:
    assert parse_passed_names(" X-Team,x-tier ,, X-TEAM") == ("x-team", "x-tier")
    assert parse_passed_names("") == ()


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "api_key", "apikey"),
        *("X-Auth-Token", "x-amz-security-token", "Ocp-Apim-Subscription-Key", "X-Session-Id"),
        *("X-CSRF-Token", "X-Client-Secret", "X-Goog-Api-Key", "X-JWT", "Sec-WebSocket-Key"),
        *("Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Host", "Proxy-Agent"),
        *("Content-Length", "Content-Type", "Accept-Encoding", "X-Request-Id", "traceparent"),
        *("two words", "colon:", "x" * 65, "ü"),
    ],
)
def test_a_header_name_that_may_not_be_passed_on_prevents_the_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_PASS_HEADERS", f"X-Team,{name}")
    with pytest.raises(SettingsError) as caught:
        load()
    message = f"BATCHWRIGHT_PASS_HEADERS is wrong: {name.lower()!r} cannot be passed on: "
    assert str(caught.value).startswith(message)


def test_the_list_is_bounded() -> None:
    names = [f"x-{number}" for number in range(MAX_PASSED_HEADERS + 1)]
    assert parse_passed_names(",".join(names[:-1])) == tuple(names[:-1])
    with pytest.raises(ValueError, match="at most 8 headers, not 9"):
        parse_passed_names(",".join(names))


async def test_a_batch_keeps_the_listed_headers_of_its_creation_and_no_other(api: ApiFixture) -> None:
    secret = "Bearer sk-0123456789abcdef"
    assert await created(api, X_Team="rivers", X_Other="no", Authorization=secret) == {"x-team": "rivers"}
    assert await created(api) == {}


async def test_a_header_sent_twice_is_one_list(api: ApiFixture) -> None:
    sent = [("x-team", "rivers"), ("X-Team", "lakes")]
    batch = read(await api.http.post("/v1/batches", json=BODY, headers=sent), BatchObject)
    assert api.order(batch.id).policy.caller.headers == {"x-team": "rivers, lakes"}


@pytest.mark.parametrize(
    "value",
    [
        "x" * (MAX_PASSED_CHARACTERS + 1),
        "tab\there",
        "über".encode(),
        "Bearer 0123456789abcdef",
        "sk-0123456789abcdef",
        f"bw_{'a' * 12}_{'b' * 40}",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0",
    ],
)
async def test_a_value_that_cannot_be_passed_on_creates_no_batch_and_is_not_shown(
    api: ApiFixture, value: str | bytes
) -> None:
    sent = value if isinstance(value, bytes) else value.encode()
    answer = await api.http.post("/v1/batches", json=BODY, headers=[(b"x-team", sent)])
    error = error_of(answer)
    assert (answer.status_code, error.code, error.param) == (400, "invalid_value", "x-team")
    assert error.message.startswith("The header 'x-team' cannot be passed on to backends: ")
    assert sent not in answer.content
    assert api.temporal.orders == {}


async def test_the_longest_value_is_passed_on(api: ApiFixture) -> None:
    longest = "x" * MAX_PASSED_CHARACTERS
    assert await created(api, x_cost_centre=longest) == {"x-cost-centre": longest}


def test_a_header_removed_from_the_list_is_not_passed_on_to_a_rerun() -> None:
    assert currently_passed({"x-team": "rivers", "x-tier": "1"}, ["x-tier", "x-new"]) == {"x-tier": "1"}


async def again(api: ApiFixture, kind: str, batch_id: str) -> dict[str, str]:
    answer = await api.http.post(f"/v1/batches/{batch_id}/x/{kind}")
    return api.order(read(answer, BatchObject).id).policy.caller.headers


async def test_a_resumption_has_the_headers_of_its_batch_and_not_those_of_its_request(
    api: ApiFixture,
) -> None:
    headers = {"x-team": "rivers", "x-cost-centre": "7"}
    batch = read(await api.http.post("/v1/batches", json=BODY, headers=headers), BatchObject)
    file = await api.upload()
    order = api.order(batch.id).model_copy(update={"input_file_id": file.id})
    rows = api.database.rows.batches
    rows["default", batch.id] = rows["default", batch.id].model_copy(update={"order": order})
    ended = BatchOutcome(status=BatchStatus.CANCELLED, completed=0, failed=0, usage=Usage())
    await api.database.batch_ends.finish("default", batch.id, ended, datetime.now(UTC))
    api.http.headers["x-team"] = "lakes"
    assert await again(api, "resume", batch.id) == headers
