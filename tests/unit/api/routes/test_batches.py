"""/v1/batches after creation: get, list, cancel."""

from collections.abc import AsyncGenerator

import openai
import pytest

from batchwright.contracts.api_objects.openai import (
    BatchObject,
    BatchPage,
)
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BatchOutcome
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.unit.api.routes.begun_batches import ENDS, NOW, begun, ended


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_a_batch_of_one_model_names_it_and_one_of_several_does_not(api: ApiFixture) -> None:
    one = await api.openai.batches.retrieve(await begun(api, "llama"))
    two = await api.openai.batches.retrieve(await begun(api, "llama", "qwen"))
    assert (one.model, two.model) == ("llama", None)


async def test_a_live_batch_shows_its_progress_per_model(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama", "qwen")
    batch = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject)
    assert [(model.model, model.lines) for model in batch.x_batchwright.models] == [
        ("llama", 10),
        ("qwen", 10),
    ]
    assert batch.request_counts.total == 20


async def test_an_ended_batch_shows_counts_and_tokens(api: ApiFixture) -> None:
    batch = await api.openai.batches.retrieve(await ended(api, BatchStatus.COMPLETED))
    assert batch.status == "completed"
    assert batch.completed_at is not None
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (8, 2)
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (5, 7, 12)


async def test_validation_errors_are_listed_with_their_lines(api: ApiFixture) -> None:
    batch = await api.create()
    errors = [ValidationError(code="invalid_json_line", message="This line is not JSON.", line=3)]
    await api.database.batch_ends.fail_validation("default", batch.id, errors=errors, total=3, at=NOW)
    failed = await api.openai.batches.retrieve(batch.id)
    assert failed.errors is not None
    assert failed.errors.object == "list"
    assert [(error.code, error.line, error.param) for error in failed.errors.data or []] == [
        ("invalid_json_line", 3, None)
    ]


@pytest.mark.parametrize("batch_id", ["batch_" + "0" * 32, "batch_x", "%00", "x" * 2000])
async def test_an_unknown_batch_is_not_found(api: ApiFixture, batch_id: str) -> None:
    for path in ("", "/cancel", "/x/pause"):
        method = "POST" if path else "GET"
        answer = await api.http.request(method, f"/v1/batches/{batch_id}{path}")
        assert answer.status_code == 404
        assert error_of(answer).message.startswith("No batch found with id '")


async def test_a_batch_of_another_tenant_does_not_exist(api: ApiFixture) -> None:
    batch = await api.create(tenant="blue")
    red = {"X-Tenant": "red"}
    path = f"/v1/batches/{batch.id}"
    answers = [
        await api.http.get(path, headers=red),
        await api.http.post(f"{path}/cancel", headers=red),
        await api.http.post(f"{path}/x/pause", headers=red),
        await api.http.get("/v1/batches", params={"after": batch.id}, headers=red),
    ]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert read(await api.http.get("/v1/batches", headers=red), BatchPage).data == []
    assert api.temporal.signals == []


async def test_a_list_is_paged_from_the_newest(api: ApiFixture) -> None:
    batch_ids = [(await api.create()).id for _ in range(5)]
    listed = [batch.id async for batch in api.openai.batches.list(limit=2)]
    first = read(await api.http.get("/v1/batches", params={"limit": 2}), BatchPage)
    assert listed == batch_ids[::-1]
    assert (first.first_id, first.last_id, first.has_more) == (batch_ids[4], batch_ids[3], True)


async def test_a_list_contains_the_batches_that_meet_all_filters(api: ApiFixture) -> None:
    tagged = await api.create(metadata={"run": "7", "team": "search"})
    await api.create(metadata={"run": "8", "team": "search"})
    await api.create()

    async def listed(**query: str) -> list[str]:
        page = read(await api.http.get("/v1/batches", params=query), BatchPage)
        return [batch.id for batch in page.data]

    assert len(await listed(**{"metadata[team]": "search"})) == 2
    assert await listed(**{"metadata[team]": "search", "metadata[run]": "7"}) == [tagged.id]
    assert len(await listed(status="validating")) == 3
    assert await listed(status="completed") == await listed(model="llama") == []
    assert len(await listed(created_after=str(tagged.created_at))) == 3
    assert await listed(created_before=str(tagged.created_at)) == []


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"status": "done"}, "status", "invalid_value"),
        ({"created_after": "yesterday"}, "created_after", "invalid_type"),
        ({"created_before": "9" * 18}, "created_before", "invalid_value"),
        ({"metadata": "run"}, "metadata", "invalid_value"),
        ({"custom_id": ""}, "custom_id", "invalid_value"),
        ({"custom_id": "x" * 1025}, "custom_id", "invalid_value"),
    ],
)
async def test_a_wrong_filter_is_refused_by_name(
    api: ApiFixture, query: dict[str, str], param: str, code: str
) -> None:
    answer = await api.http.get("/v1/batches", params=query)
    assert (answer.status_code, error_of(answer).param, error_of(answer).code) == (400, param, code)


async def test_an_empty_list_has_no_first_and_last_id(api: ApiFixture) -> None:
    page = read(await api.http.get("/v1/batches"), BatchPage)
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
async def test_a_wrong_limit_is_refused(api: ApiFixture, limit: str, code: str) -> None:
    answer = await api.http.get("/v1/batches", params={"limit": limit})
    assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (400, code, "limit")


@pytest.mark.parametrize("after", ["batch_" + "0" * 32, "x\x00"])
async def test_a_list_after_an_unknown_batch_is_not_found(api: ApiFixture, after: str) -> None:
    assert (await api.http.get("/v1/batches", params={"after": after})).status_code == 404


async def test_a_cancel_is_signalled_and_shown_at_once(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    batch = await api.openai.batches.cancel(batch_id)
    assert (batch.status, batch.cancelled_at) == ("cancelling", None)
    assert batch.cancelling_at is not None
    assert api.temporal.signals == [(batch_id, "cancel")]


async def test_a_cancel_that_temporal_did_not_accept_is_not_shown(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    api.temporal.failing = TemporalUnavailable("down")
    assert (await api.http.post(f"/v1/batches/{batch_id}/cancel")).status_code == 503
    assert (await api.openai.batches.retrieve(batch_id)).status == "in_progress"


async def test_a_second_cancel_changes_nothing(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    first = await api.openai.batches.cancel(batch_id)
    assert await api.openai.batches.cancel(batch_id) == first
    assert len(api.temporal.signals) == 1


async def test_a_cancel_of_a_cancelled_batch_returns_the_batch(api: ApiFixture) -> None:
    batch = await api.openai.batches.cancel(await ended(api, BatchStatus.CANCELLED))
    assert batch.status == "cancelled"
    assert api.temporal.signals == []


@pytest.mark.parametrize("status", [status for status in ENDS if status is not BatchStatus.CANCELLED])
async def test_a_batch_that_ended_another_way_cannot_be_cancelled(
    api: ApiFixture, status: BatchStatus
) -> None:
    client = api.openai.with_options(max_retries=3)
    with pytest.raises(openai.ConflictError) as refused:
        await client.batches.cancel(await ended(api, status))
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert f"Cannot cancel a batch with status '{status}'." in refused.value.message


async def test_a_batch_that_ended_while_it_was_cancelled_is_shown_as_ended(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await begun(api, "llama")

    async def end_first(_: str) -> None:
        outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=10, failed=0, usage=Usage())
        await api.database.batch_ends.finish("default", batch_id, outcome, NOW)

    monkeypatch.setattr(api.temporal, "cancel", end_first)
    answer = await api.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_an_ended_batch_is_shown_even_if_it_is_unknown_which_queues_workers_poll(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, live = await ended(api, BatchStatus.COMPLETED), await begun(api, "llama")

    async def unavailable(_: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(type(api.database.rates), "all", unavailable)
    assert (await api.http.get(f"/v1/batches/{done}")).status_code == 200
    assert (await api.http.get(f"/v1/batches/{live}")).status_code == 503


async def test_a_live_batch_without_a_run_is_a_server_error(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    api.temporal.orders.clear()
    answer = await api.http.post(f"/v1/batches/{batch_id}/cancel")
    assert (answer.status_code, error_of(answer).code) == (500, "run_missing")
    assert "After an operator has run `batchwright consistency --repair`" in error_of(answer).message
