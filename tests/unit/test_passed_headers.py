"""Headers that go from a batch's creation to its requests: which names, which values, and who keeps them."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from api.objects import BatchObject
from batchwright.contracts.openai import BatchStatus, Usage
from batchwright.database.rows import Outcome
from batchwright.rules.passed_headers import MOST_CHARACTERS, MOST_HEADERS, kept, read_names
from batchwright.settings import SettingsError, load
from tests.fakes.api import House, error_of, open_house, read

BODY = {"input_file_id": "file-" + "0" * 32, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house(pass_headers="X-Team, x-cost-centre") as house:
        yield house


async def created(house: House, **headers: str) -> dict[str, str]:
    """The headers in the order of a batch that was created with these."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    batch = read(await house.http.post("/v1/batches", json=BODY, headers=named), BatchObject)
    order = house.order(batch.id)
    assert house.database.rows.batches["default", batch.id].order == order
    return order.policy.caller.headers


def test_names_are_a_list_with_commas_in_any_case() -> None:
    assert read_names(" X-Team,x-tier ,, X-TEAM") == ("x-team", "x-tier")
    assert read_names("") == ()


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
def test_no_process_starts_with_a_name_that_may_not_be_passed_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_PASS_HEADERS", f"X-Team,{name}")
    with pytest.raises(SettingsError) as told:
        load()
    message = f"BATCHWRIGHT_PASS_HEADERS is wrong: {name.lower()!r} cannot be passed on: "
    assert str(told.value).startswith(message)


def test_the_list_is_bounded() -> None:
    names = [f"x-{number}" for number in range(MOST_HEADERS + 1)]
    assert read_names(",".join(names[:-1])) == tuple(names[:-1])
    with pytest.raises(ValueError, match="at most 8 headers, not 9"):
        read_names(",".join(names))


async def test_a_batch_keeps_the_listed_headers_of_its_creation_and_no_other(house: House) -> None:
    secret = "Bearer sk-0123456789abcdef"
    assert await created(house, X_Team="rivers", X_Other="no", Authorization=secret) == {"x-team": "rivers"}
    assert await created(house) == {}


async def test_a_header_sent_twice_is_one_list(house: House) -> None:
    sent = [("x-team", "rivers"), ("X-Team", "lakes")]
    batch = read(await house.http.post("/v1/batches", json=BODY, headers=sent), BatchObject)
    assert house.order(batch.id).policy.caller.headers == {"x-team": "rivers, lakes"}


@pytest.mark.parametrize(
    "value",
    [
        "x" * (MOST_CHARACTERS + 1),
        "tab\there",
        "über".encode(),
        "Bearer 0123456789abcdef",
        "sk-0123456789abcdef",
        f"bw_{'a' * 12}_{'b' * 40}",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0",
    ],
)
async def test_a_value_that_cannot_be_passed_on_makes_no_batch_and_is_in_no_message(
    house: House, value: str | bytes
) -> None:
    sent = value if isinstance(value, bytes) else value.encode()
    answer = await house.http.post("/v1/batches", json=BODY, headers=[(b"x-team", sent)])
    error = error_of(answer)
    assert (answer.status_code, error.code, error.param) == (400, "invalid_value", "x-team")
    assert error.message.startswith("The header 'x-team' cannot be passed on to backends: ")
    assert sent not in answer.content
    assert house.temporal.orders == {}


async def test_the_longest_value_is_passed_on(house: House) -> None:
    longest = "x" * MOST_CHARACTERS
    assert await created(house, x_cost_centre=longest) == {"x-cost-centre": longest}


def test_what_has_left_the_list_is_not_passed_on_to_a_second_chance() -> None:
    assert kept({"x-team": "rivers", "x-tier": "1"}, ["x-tier", "x-new"]) == {"x-tier": "1"}


async def again(house: House, chance: str, batch_id: str) -> dict[str, str]:
    answer = await house.http.post(f"/v1/batches/{batch_id}/x/{chance}")
    return house.order(read(answer, BatchObject).id).policy.caller.headers


async def test_a_resumption_has_the_headers_of_its_batch_and_not_those_of_whoever_asks(house: House) -> None:
    headers = {"x-team": "rivers", "x-cost-centre": "7"}
    batch = read(await house.http.post("/v1/batches", json=BODY, headers=headers), BatchObject)
    file = await house.upload()
    order = house.order(batch.id).model_copy(update={"input_file_id": file.id})
    rows = house.database.rows.batches
    rows["default", batch.id] = rows["default", batch.id].model_copy(update={"order": order})
    ended = Outcome(status=BatchStatus.CANCELLED, completed=0, failed=0, usage=Usage())
    await house.database.batches.finish("default", batch.id, ended, datetime.now(UTC))
    house.http.headers["x-team"] = "lakes"
    assert await again(house, "resume", batch.id) == headers
