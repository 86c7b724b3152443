"""Calls with deeply nested bodies: the line of an accepted call is valid, so it does not fail its batch."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from batchwright.api.errors import ApiError
from batchwright.api.routes.calls import call_body
from batchwright.api.schemas import json_body
from batchwright.contracts.calls import Call
from batchwright.contracts.terms import Profile
from batchwright.rules.calls.call_lines import MAX_CALL_NESTING, call_line
from batchwright.rules.input.line_parser import fast_parse
from batchwright.rules.input.line_rules import AcceptedRequest, InputLimits, LineValidator
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.input.validation_errors import ValidationErrors
from batchwright.rules.json_text import NestedTooDeeply
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.calls import answer

DOORS = {
    "/v1/chat/completions": b'{"service_tier":"flex","model":"llama","messages":[],"x":%b}',
    "/v1/responses": b'{"background":true,"model":"llama","input":"a","x":%b}',
    "/queue/submit": b'{"model":"llama","payload":{"messages":[],"x":%b}}',
}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def nested(path: str, levels: int) -> bytes:
    """Return a body for the call's path in which objects are nested `levels` levels deep."""
    around = DOORS[path].count(b"{")
    return DOORS[path] % (b"[" * (levels - around) + b"]" * (levels - around))


def accepted(call: Call) -> bool:
    """Return True if ingestion accepts the call as a line of a batch."""
    line = call_line(call.id, call.endpoint, call.request)[:-1]
    limits, errors = InputLimits(bodies_fail_alone=True), ValidationErrors()
    validator = LineValidator(call.endpoint, Profile.RELAXED, limits, errors)
    data = InputLine(1, 0, len(line) + 1, line)
    return isinstance(validator.check(data, *fast_parse([data])), AcceptedRequest)


@pytest.mark.parametrize("path", DOORS)
async def test_ingestion_accepts_the_line_of_the_most_nested_call(api: ApiFixture, path: str) -> None:
    request = asyncio.create_task(api.http.post(path, content=nested(path, MAX_CALL_NESTING)))
    while not api.database.rows.calls and not request.done():
        await asyncio.sleep(0)
    [(tenant, id)] = api.database.rows.calls
    call = await api.database.calls.get(tenant, id)
    assert call is not None
    assert accepted(call)
    await answer(api, id, {"choices": []})
    assert (await request).status_code == 200


@pytest.mark.parametrize("path", DOORS)
async def test_a_call_with_one_more_level_is_refused(api: ApiFixture, path: str) -> None:
    response = await api.http.post(path, content=nested(path, MAX_CALL_NESTING + 1))
    assert response.status_code == 400
    assert "nested more than 499 levels deep" in error_of(response).message
    assert not api.database.rows.calls


@pytest.mark.parametrize("path", DOORS)
async def test_other_requests_are_answered_while_a_large_body_is_checked(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def check(body: bytes, _: int) -> None:
        loop.call_soon_threadsafe(is_checking.set)
        answered.append(is_answered.wait(5))
        raise NestedTooDeeply(f"{len(body)} bytes")

    monkeypatch.setattr(json_body, "check_nesting", check)
    loop, is_checking = asyncio.get_running_loop(), asyncio.Event()
    is_answered, answered = threading.Event(), list[bool]()
    call = asyncio.create_task(api.http.post(path, content=DOORS[path] % (b" " * 70_000 + b"1")))
    await is_checking.wait()
    assert (await api.http.get("/v1/models")).status_code == 200
    is_answered.set()
    assert (await call).status_code == 400
    assert answered == [True]


@pytest.mark.parametrize("step", ["describe_body_problems", "fingerprint"])
@pytest.mark.parametrize("path", DOORS)
async def test_other_requests_are_answered_while_a_large_body_is_prepared(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, path: str, step: str
) -> None:
    def prepare(*_: object) -> str:
        loop.call_soon_threadsafe(is_preparing.set)
        answered.append(is_answered.wait(5))
        raise ApiError(400, "seen")

    monkeypatch.setattr(call_body, step, prepare)
    loop, is_preparing = asyncio.get_running_loop(), asyncio.Event()
    is_answered, answered = threading.Event(), list[bool]()
    content, headers = DOORS[path] % (b" " * 70_000 + b"1"), {"Idempotency-Key": "a"}
    call = asyncio.create_task(api.http.post(path, content=content, headers=headers))
    await is_preparing.wait()
    assert (await api.http.get("/v1/models")).status_code == 200
    is_answered.set()
    assert (await call).status_code == 400
    assert answered == [True]
