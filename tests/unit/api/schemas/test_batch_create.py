"""POST /v1/batches: accepted and rejected bodies."""

from collections.abc import AsyncGenerator

import orjson
import pytest

from batchwright.contracts.api_objects.openai import BatchObject, ErrorDetails
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, keys_of, open_api, read

BODY: dict[str, object] = {
    "input_file_id": "file-" + "0" * 32,
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def without(field: str) -> dict[str, object]:
    return {name: value for name, value in BODY.items() if name != field}


async def test_a_batch_is_answered_with_every_key_of_the_contract(api: ApiFixture) -> None:
    file = await api.upload()
    body = {**BODY, "input_file_id": file.id, "completion_window": "2h", "metadata": {"team": "blue"}}
    answer = await api.post(body)
    batch = read(answer, BatchObject)
    assert keys_of(answer) == {
        *("id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status"),
        *("output_file_id", "error_file_id", "created_at", "in_progress_at", "expires_at", "finalizing_at"),
        *("completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at", "request_counts"),
        *("usage", "metadata", "x_batchwright"),
    }
    assert (batch.status, batch.completion_window, batch.metadata) == ("validating", "2h", {"team": "blue"})
    assert batch.expires_at - batch.created_at == 7200
    assert batch.request_counts.model_dump() == {"total": 0, "completed": 0, "failed": 0}
    assert batch.usage.total_tokens == 0


async def test_a_batch_after_a_cancelled_one_gets_a_fresh_fairness_key(api: ApiFixture) -> None:
    file = await api.upload()
    body = {**BODY, "input_file_id": file.id}
    first, second = read(await api.post(body), BatchObject), read(await api.post(body), BatchObject)
    for batch in (first, second):
        await api.openai.batches.cancel(batch.id)
    await api.post(body)
    await api.post(body)
    keys = [order.policy.fairness_key for order in api.temporal.orders.values()]
    assert keys[:2] == ["", ""]
    assert keys[2] == keys[3] != ""


async def test_the_run_gets_every_field_of_the_row() -> None:
    settings = {
        "tenant_weights": {"blue": 3.0},
        "cancel_grace_seconds": 7.0,
    }
    async with open_api(**settings) as api:
        batch = read(
            await api.post(
                {**BODY, "output_expires_after": {"anchor": "created_at", "seconds": 3600}}, tenant="blue"
            ),
            BatchObject,
        )
        order, row = api.order(batch.id), api.database.rows.batches["blue", batch.id]
    assert row.order == order
    assert order == BatchOrder(
        batch_id=batch.id,
        tenant="blue",
        input_file_id=str(BODY["input_file_id"]),
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=order.created_at,
        deadline=order.deadline,
        output_expires_after_seconds=3600,
        weight=3.0,
        policy=BatchPolicy(cancel_grace_seconds=7.0),
    )
    assert order.created_at.microsecond == 0


async def test_a_batch_with_an_unknown_file_is_created_and_fails_validation(api: ApiFixture) -> None:
    for unknown in ("file-" + "0" * 32, "nonsense"):
        answer = await api.post({**BODY, "input_file_id": unknown})
        assert read(answer, BatchObject).input_file_id == unknown


async def test_a_file_of_another_tenant_is_an_unknown_one(api: ApiFixture) -> None:
    file = await api.upload(purpose="user_data", tenant="blue")
    answer = await api.post({**BODY, "input_file_id": file.id}, tenant="red")
    assert read(answer, BatchObject).status == "validating"


async def test_a_missing_window_is_24h_in_profile_relaxed(api: ApiFixture) -> None:
    for body in (without("completion_window"), {**BODY, "completion_window": None}):
        assert read(await api.post(body), BatchObject).completion_window == "24h"


async def test_the_strict_profile_requires_a_window_of_24h() -> None:
    async with open_api(profile="strict") as api:
        absent = error_of(await api.post(without("completion_window")))
        other = error_of(await api.post({**BODY, "completion_window": "1h"}))
    assert absent.code == "missing_required_parameter"
    assert (other.code, other.param) == ("invalid_value", "completion_window")


@pytest.mark.parametrize("field", ["input_file_id", "endpoint"])
async def test_a_missing_field_is_named(api: ApiFixture, field: str) -> None:
    assert error_of(await api.post(without(field))) == ErrorDetails(
        message=f"Missing required parameter: '{field}'.",
        type="invalid_request_error",
        param=field,
        code="missing_required_parameter",
    )


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"endpoint": "/v1/chat"}, "invalid_value", "endpoint"),
        ({"completion_window": "1s"}, "invalid_value", "completion_window"),
        ({"stream": True}, "unknown_parameter", "stream"),
        ({"metadata": {f"k{i}": "v" for i in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "invalid_value", "metadata"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value", "metadata"),
        ({"metadata": {"k": "a\x00b"}}, "invalid_value", "metadata.k"),
        ({"input_file_id": "a\x00b"}, "invalid_value", "input_file_id"),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "invalid_value",
            "output_expires_after.anchor",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
            "invalid_value",
            "output_expires_after.seconds",
        ),
        (
            {"output_expires_after": {"anchor": "created_at"}},
            "missing_required_parameter",
            "output_expires_after.seconds",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600, "x": 1}},
            "unknown_parameter",
            "output_expires_after.x",
        ),
    ],
)
async def test_a_wrong_field_is_refused_and_nothing_starts(
    api: ApiFixture, change: dict[str, object], code: str, param: str
) -> None:
    answer = await api.post({**BODY, **change})
    error = error_of(answer)
    assert (answer.status_code, error.type) == (400, "invalid_request_error")
    assert (error.code, error.param) == (code, param)
    assert api.temporal.orders == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {"k": ["v"]}}, "'metadata.k': expected a string, but got an array instead."),
        ({"metadata": {"k": None}}, "'metadata.k': expected a string, but got null instead."),
        ({"metadata": "k"}, "'metadata': expected an object, but got a string instead."),
        ({"endpoint": 1}, "'endpoint': expected a string, but got an integer instead."),
        ({"input_file_id": True}, "'input_file_id': expected a string, but got a boolean instead."),
        (
            {"completion_window": 1.5},
            "'completion_window': expected a string, but got a decimal number instead.",
        ),
        (
            {"output_expires_after": []},
            "'output_expires_after': expected an object, but got an array instead.",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": True}},
            "'output_expires_after.seconds': expected an integer, but got a boolean instead.",
        ),
    ],
)
async def test_a_value_of_the_wrong_type_is_described(
    api: ApiFixture, change: dict[str, object], message: str
) -> None:
    error = error_of(await api.post({**BODY, **change}))
    assert (error.code, error.message) == ("invalid_type", f"Invalid type for {message}")


async def test_metadata_may_reach_its_limits(api: ApiFixture) -> None:
    metadata = {f"{i:064}": "ü" * 512 for i in range(16)}
    assert read(await api.post({**BODY, "metadata": metadata}), BatchObject).metadata == metadata


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b'{"metadata": {"k": "\\ud800"}}', b"\xff"])
async def test_a_body_that_is_no_json_object_is_refused(api: ApiFixture, body: bytes) -> None:
    answer = await api.http.post("/v1/batches", content=body)
    assert (answer.status_code, error_of(answer).type) == (400, "invalid_request_error")


async def test_a_body_without_end_is_refused(api: ApiFixture) -> None:
    body = orjson.dumps({**BODY, "metadata": {"k": "v" * 1024 * 1024}})
    assert (await api.http.post("/v1/batches", content=body)).status_code == 413


async def test_an_input_of_another_purpose_is_refused(api: ApiFixture) -> None:
    file = await api.upload(purpose="user_data")
    error = error_of(await api.post({**BODY, "input_file_id": file.id}))
    assert (error.code, error.param) == ("invalid_value", "input_file_id")


async def test_a_tenant_with_too_many_live_batches_is_refused_and_others_are_not() -> None:
    async with open_api(max_live_batches=1) as api:
        first = await api.post(BODY, tenant="blue")
        second = await api.post(BODY, tenant="blue")
        other = await api.post(BODY, tenant="red")
    assert (first.status_code, second.status_code, other.status_code) == (200, 429, 200)
    assert (error_of(second).type, error_of(second).code) == ("requests", "rate_limit_exceeded")
    assert int(second.headers["retry-after"]) > 0
    assert second.headers["ratelimit"].startswith('"requests";r=0;t=')
    assert second.headers["x-ratelimit-remaining-requests"] == "0"


async def test_without_temporal_no_batch_is_created_and_a_retry_is_requested(api: ApiFixture) -> None:
    api.temporal.failing = TemporalUnavailable("down")
    answer = await api.post(BODY)
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert int(answer.headers["retry-after"]) > 0
    assert api.database.rows.batches == {}


async def test_a_database_that_fails_after_the_start_does_not_make_the_client_start_another(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = api.temporal.start

    async def start_then_lose_the_database(order: BatchOrder) -> None:
        await start(order)
        api.database.rows.failing = DatabaseUnavailable("down")

    monkeypatch.setattr(api.temporal, "start", start_then_lose_the_database)
    batch = read(await api.post(BODY), BatchObject)
    assert list(api.temporal.orders) == [batch.id]


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        (False, None, False),
        (False, {}, False),
        (False, {"deduplicate": True}, True),
        (True, None, True),
        (True, {"deduplicate": None}, True),
        (True, {"deduplicate": False}, False),
    ],
)
async def test_the_client_chooses_whether_equal_lines_are_deduplicated(
    setting: bool, value: object, expected: bool
) -> None:
    async with open_api(deduplicate=setting) as api:
        file = await api.upload()
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "x_batchwright": value}
        batch = read(await api.post(body), BatchObject)
        assert batch.x_batchwright.deduplicate is expected
        assert api.order(batch.id).policy.deduplicate is expected


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        (True, "x_batchwright", "invalid_type"),
        ({"deduplicate": "yes"}, "x_batchwright.deduplicate", "invalid_type"),
        ({"priority": 0}, "x_batchwright.priority", "invalid_value"),
        ({"priority": 6}, "x_batchwright.priority", "invalid_value"),
        ({"priority": 2**70}, "x_batchwright.priority", "invalid_value"),
        ({"priority": 2.5}, "x_batchwright.priority", "invalid_type"),
        ({"priority": "5"}, "x_batchwright.priority", "invalid_type"),
        ({"priority": True}, "x_batchwright.priority", "invalid_type"),
        ({"dedup": True}, "x_batchwright.dedup", "unknown_parameter"),
    ],
)
async def test_an_invalid_extension_is_refused(value: object, param: str, code: str) -> None:
    async with open_api() as api:
        body = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "x_batchwright": value}
        error = error_of(await api.post(body))
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, 3), ({}, 3), ({"priority": None}, 3), ({"priority": 5}, 5)]
)
async def test_a_batch_has_the_priority_that_the_client_chose_or_the_default(
    api: ApiFixture, value: object, expected: int
) -> None:
    file = await api.upload()
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "x_batchwright": value}
    batch = read(await api.post(body), BatchObject)
    assert batch.x_batchwright.priority == expected
    assert api.order(batch.id).priority == expected


async def test_the_strict_profile_refuses_extensions() -> None:
    async with open_api(profile="strict") as api:
        body = {
            "input_file_id": "file-x",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "x_batchwright": {"deduplicate": True},
        }
        error = error_of(await api.post(body))
    assert (error.param, error.code) == ("x_batchwright", "unknown_parameter")


@pytest.mark.parametrize(
    ("seconds", "status"), [(3599, 400), (3600, 200), (2_592_000, 200), (2_592_001, 400)]
)
async def test_outputs_may_expire_after_an_hour_to_thirty_days(
    api: ApiFixture, seconds: int, status: int
) -> None:
    expiry = {"anchor": "created_at", "seconds": seconds}
    assert (await api.post({**BODY, "output_expires_after": expiry})).status_code == status
    form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": str(seconds)}
    answer = await api.http.post("/v1/files", files={"file": ("a", b"{}")}, data=form)
    assert answer.status_code == status
