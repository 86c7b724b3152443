"""/v1/batches after creation: get, list, cancel, pause, resume, state."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import openai
import pytest

from api.objects import BatchObject, BatchPage, WaitingObject
from batchwright.contracts.batch import BatchState, WaitingReason
from batchwright.contracts.names import CONTROL_QUEUE, DISPATCH_QUEUE, IO_QUEUE, inference_queue
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError
from batchwright.database.rows import ModelCount, Outcome
from batchwright.database.waiting_base import Source, Waiting
from batchwright.rules.ids import safe_name
from batchwright.rules.polled import nobody_polls, polls
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import House, error_of, open_house, read

ENDS = [status for status in BatchStatus if status.is_terminal]
NOW = datetime.now(UTC)


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def begun(house: House, *models: str) -> str:
    """A batch in progress with ten lines of each model."""
    batch = await house.create()
    counts = [ModelCount(model=model, lines=10) for model in models]
    await house.database.batches.begin("default", batch.id, total=10 * len(models), models=counts, at=NOW)
    return batch.id


async def ended(house: House, status: BatchStatus) -> str:
    batch_id = await begun(house, "llama")
    outcome = Outcome(status=status, completed=8, failed=2, usage=Usage(input_tokens=5, output_tokens=7))
    await house.database.batches.finish("default", batch_id, outcome, NOW)
    return batch_id


async def test_a_batch_of_one_model_names_it_and_one_of_several_does_not(house: House) -> None:
    one = await house.openai.batches.retrieve(await begun(house, "llama"))
    two = await house.openai.batches.retrieve(await begun(house, "llama", "qwen"))
    assert (one.model, two.model) == ("llama", None)


async def test_a_live_batch_tells_its_progress_per_model(house: House) -> None:
    batch_id = await begun(house, "llama", "qwen")
    batch = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject)
    assert [(model.model, model.lines) for model in batch.x_batchwright.models] == [
        ("llama", 10),
        ("qwen", 10),
    ]
    assert batch.request_counts.total == 20


async def test_an_ended_batch_tells_counts_and_tokens(house: House) -> None:
    batch = await house.openai.batches.retrieve(await ended(house, BatchStatus.COMPLETED))
    assert batch.status == "completed"
    assert batch.completed_at is not None
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (8, 2)
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (5, 7, 12)


async def test_validation_errors_are_listed_with_their_lines(house: House) -> None:
    batch = await house.create()
    errors = [ValidationError(code="invalid_json_line", message="This line is not JSON.", line=3)]
    await house.database.batches.fail_validation("default", batch.id, errors=errors, total=3, at=NOW)
    failed = await house.openai.batches.retrieve(batch.id)
    assert failed.errors is not None
    assert failed.errors.object == "list"
    assert [(error.code, error.line, error.param) for error in failed.errors.data or []] == [
        ("invalid_json_line", 3, None)
    ]


@pytest.mark.parametrize("batch_id", ["batch_" + "0" * 32, "batch_x", "%00", "x" * 2000])
async def test_an_unknown_batch_is_not_found(house: House, batch_id: str) -> None:
    for path in ("", "/cancel", "/x/pause"):
        method = "POST" if path else "GET"
        answer = await house.http.request(method, f"/v1/batches/{batch_id}{path}")
        assert answer.status_code == 404
        assert error_of(answer).message.startswith("No batch found with id '")


async def test_a_batch_of_another_tenant_does_not_exist(house: House) -> None:
    batch = await house.create(tenant="blue")
    red = {"X-Tenant": "red"}
    path = f"/v1/batches/{batch.id}"
    answers = [
        await house.http.get(path, headers=red),
        await house.http.post(f"{path}/cancel", headers=red),
        await house.http.post(f"{path}/x/pause", headers=red),
        await house.http.get("/v1/batches", params={"after": batch.id}, headers=red),
    ]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert read(await house.http.get("/v1/batches", headers=red), BatchPage).data == []
    assert house.temporal.signals == []


async def test_a_list_goes_page_by_page_from_the_newest(house: House) -> None:
    made = [(await house.create()).id for _ in range(5)]
    listed = [batch.id async for batch in house.openai.batches.list(limit=2)]
    first = read(await house.http.get("/v1/batches", params={"limit": 2}), BatchPage)
    assert listed == made[::-1]
    assert (first.first_id, first.last_id, first.has_more) == (made[4], made[3], True)


async def test_an_empty_list_has_no_ends(house: House) -> None:
    page = read(await house.http.get("/v1/batches"), BatchPage)
    assert page == BatchPage(data=[], first_id=None, last_id=None, has_more=False)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("0", "integer_below_min_value"),
        ("-1", "integer_below_min_value"),
        ("101", "integer_above_max_value"),
        ("ten", "invalid_type"),
        ("", "invalid_type"),
        ("9" * 5000, "invalid_type"),
    ],
)
async def test_a_wrong_limit_is_refused(house: House, limit: str, code: str) -> None:
    answer = await house.http.get("/v1/batches", params={"limit": limit})
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (400, code, "limit")


@pytest.mark.parametrize("after", ["batch_" + "0" * 32, "x\x00"])
async def test_a_list_after_an_unknown_batch_is_not_found(house: House, after: str) -> None:
    assert (await house.http.get("/v1/batches", params={"after": after})).status_code == 404


async def test_a_cancel_is_signalled_and_shown_at_once(house: House) -> None:
    batch_id = await begun(house, "llama")
    batch = await house.openai.batches.cancel(batch_id)
    assert (batch.status, batch.cancelled_at) == ("cancelling", None)
    assert batch.cancelling_at is not None
    assert house.temporal.signals == [(batch_id, "cancel")]


async def test_a_cancel_that_temporal_did_not_take_is_not_shown(house: House) -> None:
    batch_id = await begun(house, "llama")
    house.temporal.failing = TemporalUnavailable("down")
    assert (await house.http.post(f"/v1/batches/{batch_id}/cancel")).status_code == 503
    assert (await house.openai.batches.retrieve(batch_id)).status == "in_progress"


async def test_a_second_cancel_changes_nothing(house: House) -> None:
    batch_id = await begun(house, "llama")
    first = await house.openai.batches.cancel(batch_id)
    assert await house.openai.batches.cancel(batch_id) == first
    assert len(house.temporal.signals) == 1


async def test_a_cancel_of_a_cancelled_batch_shows_it(house: House) -> None:
    batch = await house.openai.batches.cancel(await ended(house, BatchStatus.CANCELLED))
    assert batch.status == "cancelled"
    assert house.temporal.signals == []


@pytest.mark.parametrize("status", [status for status in ENDS if status is not BatchStatus.CANCELLED])
async def test_a_batch_that_ended_another_way_cannot_be_cancelled(house: House, status: BatchStatus) -> None:
    client = house.openai.with_options(max_retries=3)
    with pytest.raises(openai.ConflictError) as refused:
        await client.batches.cancel(await ended(house, status))
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert f"Cannot cancel a batch with status '{status}'." in refused.value.message


async def test_a_batch_that_ended_while_it_was_cancelled_is_answered_as_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await begun(house, "llama")

    async def end_first(_: str) -> None:
        outcome = Outcome(status=BatchStatus.COMPLETED, completed=10, failed=0, usage=Usage())
        await house.database.batches.finish("default", batch_id, outcome, NOW)

    monkeypatch.setattr(house.temporal, "cancel", end_first)
    answer = await house.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_a_live_batch_without_a_run_is_our_fault(house: House) -> None:
    batch_id = await begun(house, "llama")
    house.temporal.orders.clear()
    answer = await house.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (answer.status_code, error_of(answer).code) == (500, "run_missing")


async def test_pause_and_resume_reach_the_run(house: House) -> None:
    batch_id = await begun(house, "llama")
    paused = read(await house.http.post(f"/v1/batches/{batch_id}/x/pause"), BatchObject)
    resumed = read(await house.http.post(f"/v1/batches/{batch_id}/x/resume"), BatchObject)
    assert (paused.x_batchwright.paused, resumed.x_batchwright.paused) == (True, False)
    assert house.temporal.signals == [(batch_id, "pause"), (batch_id, "resume")]


@pytest.mark.parametrize("status", ENDS)
async def test_what_has_ended_cannot_be_paused(house: House, status: BatchStatus) -> None:
    answer = await house.http.post(f"/v1/batches/{await ended(house, status)}/x/pause")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_a_batch_says_why_it_waits_and_since_when(house: House) -> None:
    batch_id = await begun(house, "llama")
    now = datetime.now(UTC)
    await house.database.workers.beat("one:1", polls([CONTROL_QUEUE, IO_QUEUE]), now)
    told = Waiting(
        tenant="default",
        batch_id=batch_id,
        model="llama",
        source=Source.WORKER,
        reason="the backend takes nothing now: it answered 503",
        since=now,
        until=now + timedelta(seconds=60),
    )
    await house.database.waiting.tell(told)
    found = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright
    assert found.waiting == [
        WaitingObject(model="llama", reason=told.reason, since=int(now.timestamp())),
        WaitingObject(model="llama", reason=nobody_polls(inference_queue(safe_name("llama")))),
    ]
    assert found.paused is False


async def test_a_batch_without_any_worker_says_so_without_one(house: House) -> None:
    batch_id = await begun(house, "llama")
    waiting = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.waiting
    assert waiting is not None
    assert [(each.model, each.reason.split(":")[0]) for each in waiting] == [
        (None, "no worker polls its queue control"),
        (None, "no worker polls its queue io"),
        ("llama", f"no worker polls its queue {inference_queue(safe_name('llama'))}"),
    ]


async def test_models_that_share_a_rate_wait_for_a_worker_of_the_queue_that_they_share(house: House) -> None:
    await house.http.put("/admin/rates", json={"model": None, "requests_per_second": 5})
    batch_id = await begun(house, "llama", "qwen")
    now = datetime.now(UTC)
    await house.database.workers.beat("one:1", polls([CONTROL_QUEUE, IO_QUEUE]), now)
    waiting = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.waiting
    assert waiting == [
        WaitingObject(model=model, reason=nobody_polls(DISPATCH_QUEUE)) for model in ("llama", "qwen")
    ]


async def test_a_shared_queue_that_somebody_polls_is_nothing_to_wait_for(house: House) -> None:
    await house.http.put("/admin/rates", json={"model": None, "requests_per_second": 5})
    batch_id = await begun(house, "llama")
    queues = [CONTROL_QUEUE, IO_QUEUE, DISPATCH_QUEUE]
    await house.database.workers.beat("one:1", polls(queues), datetime.now(UTC))
    waiting = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.waiting
    assert waiting in ([], None)


async def test_a_paused_batch_says_so_until_it_is_resumed(house: House) -> None:
    batch_id = await begun(house, "llama")
    queues = [CONTROL_QUEUE, IO_QUEUE, inference_queue(safe_name("llama"))]
    await house.database.workers.beat("one:1", polls(queues), datetime.now(UTC))
    await house.http.post(f"/v1/batches/{batch_id}/x/pause")
    paused = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright
    await house.http.post(f"/v1/batches/{batch_id}/x/resume")
    resumed = read(await house.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright
    assert paused.waiting is not None
    assert [each.reason for each in paused.waiting] == ["paused"]
    assert (paused.paused, resumed.paused, resumed.waiting) == (True, False, [])


@pytest.mark.parametrize("status", ENDS)
async def test_what_has_ended_waits_for_nothing(house: House, status: BatchStatus) -> None:
    answer = await house.http.get(f"/v1/batches/{await ended(house, status)}")
    assert read(answer, BatchObject).x_batchwright.waiting is None


async def test_the_state_says_why_a_batch_waits(house: House) -> None:
    batch_id = await begun(house, "llama")
    reason = WaitingReason(model="llama", reason="circuit open: 429")
    house.temporal.states[batch_id] = BatchState(
        status=BatchStatus.IN_PROGRESS, paused=True, waiting=[reason]
    )
    state = read(await house.http.get(f"/v1/batches/{batch_id}/x/state"), BatchState)
    assert state == house.temporal.states[batch_id]


async def test_a_state_nobody_answers_for_is_asked_for_again(house: House) -> None:
    answer = await house.http.get(f"/v1/batches/{await begun(house, 'llama')}/x/state")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
