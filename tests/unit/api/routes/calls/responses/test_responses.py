"""/v1/responses in the background, with OpenAI's own client."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import cycle

import httpx
import pytest

from batchwright.api.app import build_app
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.routes.calls import response_format
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.calls import CallAnswer, CallStatus
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.results.output_lines import result_line
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api
from tests.fakes.calls import LINE_ID, answer, fail
from tests.unit.api.routes.admin.audit_log.audit_entries import entries
from tests.unit.api.routes.calls.responses.response_calls import ANSWER, ASK, PATH, created


async def test_the_official_client_creates_retrieves_and_gets_the_answer(api: ApiFixture) -> None:
    made = await api.openai.responses.create(
        model="llama", input="Say hello.", background=True, metadata={"a": "b"}, instructions="Be brief."
    )
    assert (made.status, made.background, made.model) == ("queued", True, "llama")
    assert (made.metadata, made.instructions, made.output) == ({"a": "b"}, "Be brief.", [])
    assert await api.openai.responses.retrieve(made.id) == made
    [order] = api.temporal.orders.values()
    assert order.policy.rolling is not None
    await api.database.batches.start("default", order.batch_id, total=1, models=[], at=order.created_at)
    assert (await api.openai.responses.retrieve(made.id)).status == "in_progress"
    await answer(api, made.id, {**ANSWER, "usage": None})
    ended = await api.openai.responses.retrieve(made.id)
    assert (ended.id, ended.status, ended.output_text, ended.error) == (made.id, "completed", "Hello!", None)
    assert ended.created_at == made.created_at


async def test_the_backend_gets_the_body_without_the_fields_for_this_api(api: ApiFixture) -> None:
    kept = '{"model":"llama","n":12345678901234567890123,"input":"\\u0000 é\\n","store":true}'
    body = kept.replace(',"store":', ', "background":true,\n "store": ')
    id = (await api.http.post(PATH, content=body)).json()["id"]
    stored = await api.database.calls.get("default", id)
    assert stored is not None
    assert stored.request.decode() == kept


async def test_calls_of_the_same_kind_share_a_batch(api: ApiFixture) -> None:
    ids = await asyncio.gather(*(created(api, input=str(number)) for number in range(5)))
    other = await created(api, model="org/qwen:7b")
    batches: list[str] = []
    for id in (*ids, other):
        call = await api.database.calls.get("default", id)
        assert call is not None
        batches.append(call.batch_id)
    assert len(set(batches[:5])) == 1
    assert sorted(api.temporal.orders) == sorted({batches[0], batches[5]})
    [row] = [row for row in api.database.rows.batches.values() if row.order.batch_id == batches[0]]
    assert row.order.input_file_id.startswith("file-")
    assert (await api.http.get("/v1/batches")).json()["data"] == []
    assert (await api.http.get(f"/v1/batches/{batches[0]}")).json()["status"] == "validating"


async def test_a_failed_call_says_why(api: ApiFixture) -> None:
    ids = [await created(api) for _ in range(4)]
    await answer(api, ids[0], {"error": {"message": "too long", "code": "context_length"}}, 400)
    await answer(api, ids[1], {"detail": "?"}, 500)
    await fail(api, ids[2], LineCode.BATCH_EXPIRED, "The window has closed.")
    await answer(api, ids[3], {**ANSWER, "status": "incomplete"})
    found = [await api.openai.responses.retrieve(id) for id in ids]
    assert [each.status for each in found] == ["failed", "failed", "failed", "incomplete"]
    errors = [each.error and (str(each.error.code), each.error.message) for each in found]
    assert errors == [
        ("context_length", "too long"),
        ("server_error", "The backend responded with status 500."),
        ("batch_expired", "The window has closed."),
        None,
    ]


async def test_a_call_with_a_stored_answer_that_is_nested_too_deeply_can_be_retrieved(
    api: ApiFixture,
) -> None:
    deep = b'{"output":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    for status in (CallStatus.FAILED, CallStatus.COMPLETED):
        id = await created(api)
        line = result_line(LINE_ID, id, status_code=200, backend_request_id="r", body=deep, known_json=True)
        await api.database.calls.answer("default", [CallAnswer(id=id, status=status, line=line)])
        found = await api.openai.responses.retrieve(id)
        assert (found.id, found.status, found.output) == (id, status.value, [])
        assert status is CallStatus.COMPLETED or "nested too deeply" in str(found.error)


async def test_a_call_whose_batch_failed_has_its_reason(api: ApiFixture) -> None:
    id = await created(api)
    [order] = api.temporal.orders.values()
    await api.database.batch_ends.end_without_files(
        "default", order.batch_id, BatchStatus.FAILED, [], order.created_at
    )
    found = await api.openai.responses.retrieve(id)
    assert found.error is not None
    assert (found.status, found.error.message) == ("failed", "The call ended without an answer.")


async def test_a_cancelled_call_stays_cancelled(api: ApiFixture) -> None:
    id = await created(api)
    cancelled = await api.openai.responses.cancel(id)
    assert (cancelled.id, cancelled.status, cancelled.output) == (id, "cancelled", [])
    await answer(api, id, ANSWER)
    assert (await api.openai.responses.cancel(id)).status == "cancelled"
    ended = await created(api)
    await answer(api, ended, ANSWER)
    assert (await api.openai.responses.cancel(ended)).status == "completed"
    [order] = api.temporal.orders.values()
    assert order.policy.rolling is not None
    await api.database.calls.collect("default", order.policy.rolling.group, order.batch_id)
    lines = [line.id async for line in api.database.calls.collected("default", order.batch_id)]
    assert lines == []


async def test_the_cancel_of_a_call_is_recorded_unless_the_call_has_ended(api: ApiFixture) -> None:
    id, ended = await created(api), await created(api)
    await answer(api, ended, ANSWER)
    for each in (id, id, ended):
        await api.openai.responses.cancel(each)
    [entry] = await entries(api)
    assert (entry.action, entry.target.id) == (AuditAction.CALL_CANCEL, id)


async def test_an_ended_response_without_an_answer_has_the_small_fields_of_its_request(
    api: ApiFixture,
) -> None:
    large = "b" * response_format.MAX_ECHOED_BYTES
    id = await created(api, metadata={"a": "b"}, instructions=large, temperature=0.5, top_p=None)
    await api.openai.responses.cancel(id)
    [row] = api.database.rows.calls.values()
    assert row.call.request == b""
    assert await api.database.quotas.stored("default") < 100
    shown = (await api.http.get(f"{PATH}/{id}")).json()
    fields = ("status", "metadata", "temperature", "top_p", "instructions", "model")
    assert [shown[name] for name in fields] == ["cancelled", {"a": "b"}, 0.5, None, None, "llama"]


async def test_a_repeated_request_gets_its_call_although_the_tenant_has_no_more_room() -> None:
    async with open_api(max_enqueued_lines=1) as api:
        headers = {"Idempotency-Key": "once"}
        answers = [await api.http.post(PATH, json=ASK, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["id"] == answers[1].json()["id"]
        assert (await api.http.post(PATH, json=ASK)).status_code == 429


async def test_a_repeat_with_the_same_key_is_the_same_call(api: ApiFixture) -> None:
    headers = {"Idempotency-Key": "once"}
    first = await api.http.post(PATH, json=ASK, headers=headers)
    again = await api.http.post(PATH, json=ASK, headers=headers)
    assert first.json() == again.json()
    changed = await api.http.post(PATH, json={**ASK, "input": "b"}, headers=headers)
    assert (changed.status_code, error_of(changed).code) == (409, "idempotency_key_reused")
    await answer(api, first.json()["id"], ANSWER)
    assert (await api.http.post(PATH, json=ASK, headers=headers)).json()["status"] == "completed"
    assert len(api.database.rows.calls) == 1


async def test_a_call_that_was_not_accepted_is_not_run(api: ApiFixture) -> None:
    headers = {"Idempotency-Key": "once"}
    api.temporal.failing = TemporalUnavailable("gone")
    assert (await api.http.post(PATH, json=ASK, headers=headers)).status_code == 503
    assert api.database.rows.calls == {}
    api.temporal.failing = None
    accepted = await api.http.post(PATH, json=ASK, headers=headers)
    assert accepted.status_code == 200
    assert len(api.temporal.orders) == len(api.database.rows.calls) == 1


async def test_a_repeat_starts_the_batch_that_an_interrupted_request_has_not_started(api: ApiFixture) -> None:
    headers = {"Idempotency-Key": "once"}
    await api.http.post(PATH, json=ASK, headers=headers)
    [batch_id] = api.temporal.orders
    # As if the process had been killed after it stored the call.
    api.temporal.orders.clear()
    del api.database.rows.batches["default", batch_id]
    api.database.rows.rolling_batches.clear()
    again = await api.http.post(PATH, json=ASK, headers=headers)
    assert again.status_code == 200
    [call] = [row.call for row in api.database.rows.calls.values()]
    assert [call.batch_id] == list(api.temporal.orders)


@pytest.fixture
async def own_api() -> AsyncGenerator[ApiFixture]:
    """An API that no other test uses, so that it has not started any batch."""
    async with open_own_api() as api:
        yield api


class TwoProcesses:
    """Two API processes that start a batch for the same request.

    Each start is recorded in `starts`, and waits until the test lets it succeed or fail.
    """

    def __init__(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts, self._start = list[asyncio.Future[None]](), api.temporal.start
        monkeypatch.setattr(api.temporal, "start", self._wait)
        parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
        deps = ApiDependencies(*parts)
        transport = httpx.ASGITransport(build_app(deps, BatchEvents(deps)))
        self._clients = cycle((api.http, httpx.AsyncClient(transport=transport, base_url="http://api")))

    async def _wait(self, order: BatchOrder) -> None:
        allowed = asyncio.get_running_loop().create_future()
        self.starts.append(allowed)
        await allowed
        await self._start(order)

    async def send(self) -> asyncio.Task[httpx.Response]:
        """Send the request, always with the same idempotency key. Return when it starts its batch.

        The two processes get the requests alternately.
        """
        count = len(self.starts)
        sending = next(self._clients).post(PATH, json=ASK, headers={"Idempotency-Key": "once"})
        request = asyncio.create_task(sending)
        while len(self.starts) == count and not request.done():
            await asyncio.sleep(0)
        return request


@pytest.mark.parametrize("first", [0, 1])
async def test_requests_with_the_same_key_that_cannot_start_the_batch_are_all_refused(
    own_api: ApiFixture, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    processes = TwoProcesses(own_api, monkeypatch)
    requests = [await processes.send() for _ in range(2)]
    for number in (first, 1 - first):
        processes.starts[number].set_exception(TemporalUnavailable("gone"))
        assert (await requests[number]).status_code == 503
    last = await processes.send()
    processes.starts[2].set_result(None)
    id = (await last).json()["id"]
    assert (await own_api.http.get(f"{PATH}/{id}")).status_code == 200


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
async def test_a_request_that_cannot_start_the_batch_does_not_remove_a_call_that_another_has_accepted(
    own_api: ApiFixture, monkeypatch: pytest.MonkeyPatch, failing: int, first: int
) -> None:
    processes = TwoProcesses(own_api, monkeypatch)
    requests = [await processes.send() for _ in range(2)]
    for number in (first, 1 - first):
        if number == failing:
            processes.starts[number].set_exception(TemporalUnavailable("gone"))
            assert (await requests[number]).status_code == 503
        else:
            processes.starts[number].set_result(None)
            assert (await requests[number]).status_code == 200
    [row] = own_api.database.rows.calls.values()
    assert row.call.batch_id in own_api.temporal.orders


async def test_a_call_that_its_batch_has_collected_is_accepted_although_its_request_could_not_start_the_batch(
    own_api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = TwoProcesses(own_api, monkeypatch)
    request = await processes.send()
    [(_, group)], [found] = (
        own_api.database.rows.rolling_batches,
        own_api.database.rows.rolling_batches.values(),
    )
    await own_api.database.calls.collect("default", group, found.order.batch_id)
    processes.starts[0].set_exception(TemporalUnavailable("no answer, but it was started"))
    assert (await request).status_code == 200
