"""/v1/messages/batches, called by the official client: OpenAI's batches in Anthropic's form."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from batchwright.api.dependencies import now
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus, Endpoint, ValidationError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.ids import derived_file_id
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, open_api, read
from tests.fakes.api_keys import create_key
from tests.unit.api.routes.anthropic.message_batch_requests import (
    PARAMS,
    PATH,
    VERSION,
    created,
    ended,
    error_of,
    openai_id,
    request,
)

if TYPE_CHECKING:
    import anthropic
    from anthropic.types.messages import MessageBatch

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": PARAMS}
ROOM_FOR_ONE_BATCH = {"max_stored_bytes": 3 * len(json.dumps(LINE)), "max_live_batches": 1}


@pytest.fixture(scope="module", autouse=True)
def _import_the_client() -> None:
    """Import Anthropic's client in the process that runs these tests.

    The import is not at the top of the module, because all processes import the module to collect its tests.
    """
    global anthropic, MessageBatch
    import anthropic
    from anthropic.types.messages import MessageBatch


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_a_batch_is_created_from_the_bytes_of_its_requests(api: ApiFixture) -> None:
    from anthropic._constants import ANTHROPIC_API_VERSION

    batch = await created(api, "a", "b")
    assert (batch.processing_status, batch.request_counts.processing) == ("in_progress", 2)
    assert batch.expires_at - batch.created_at == timedelta(hours=24)
    assert (batch.ended_at, batch.results_url, batch.archived_at) == (None, None, None)
    order = api.order(openai_id(batch))
    assert (order.endpoint, order.policy.message_requests) == (Endpoint.MESSAGES, 2)
    assert order.policy.caller.headers == {"anthropic-version": ANTHROPIC_API_VERSION}
    [file] = api.database.rows.files.values()
    assert (file.id, file.purpose) == (order.input_file_id, "batch")
    lines = api.storage.objects[file.storage_key].splitlines()
    assert list(map(json.loads, lines)) == [LINE, {**LINE, "custom_id": "b"}]


async def test_both_apis_show_the_same_batch(api: ApiFixture) -> None:
    batch, chat = await created(api), await api.create()
    shown = read(await api.http.get(f"/v1/batches/{openai_id(batch)}"), BatchObject)
    assert (shown.endpoint, shown.status) == ("/v1/messages", "validating")
    other = await api.create(endpoint="/v1/messages")
    listed = [each.id async for each in api.anthropic.messages.batches.list()]
    assert listed == ["msg" + other.id, batch.id]
    for missing in ("msg" + chat.id, chat.id, openai_id(batch), "msgbatch_1"):
        with pytest.raises(anthropic.NotFoundError, match=f"No message batch found with id '{missing}'"):
            await api.anthropic.messages.batches.retrieve(missing)


async def test_relaxed_also_shows_the_batch_as_openai_does_and_strict_only_what_anthropic_does() -> None:
    async with open_api() as api:
        batch = await created(api)
        answer = await api.http.get(f"{PATH}/{batch.id}", headers=VERSION)
        listed = await api.http.get(PATH, headers=VERSION)
        expected = (await api.http.get(f"/v1/batches/{openai_id(batch)}")).json()
        assert answer.json()["x_batchwright"] == expected
        assert listed.json()["data"][0]["x_batchwright"]["id"] == openai_id(batch)
    async with open_api(profile="strict") as api:
        batch = await created(api)
        answer = await api.http.get(f"{PATH}/{batch.id}", headers=VERSION)
        assert answer.json().keys() == MessageBatch.model_fields.keys()
        listed = await api.http.get(PATH, headers=VERSION)
        assert listed.json()["data"] == [answer.json()]


@pytest.mark.parametrize(("profile", "counts"), [("relaxed", (1, 1, 1)), ("strict", (3, 0, 0))])
async def test_counts_stay_zero_until_the_end_only_in_strict(profile: str, counts: tuple[int, ...]) -> None:
    async with open_api(profile=profile) as api:
        batch = await created(api, "a", "b", "c")
        await api.database.batches.start(
            "default", openai_id(batch), total=3, models=[], at=now(), unserved=1, completed=1
        )
        found = (await api.anthropic.messages.batches.retrieve(batch.id)).request_counts
        assert (found.processing, found.succeeded, found.errored) == counts


async def test_an_ended_batch_has_counts_and_results(api: ApiFixture) -> None:
    batch = await created(api, "a", "b", "c", "d")
    codes = {
        "a": None,
        "b": LineCode.INVALID_REQUEST,
        "c": LineCode.BATCH_CANCELLED,
        "d": LineCode.BATCH_EXPIRED,
    }
    await ended(api, batch, codes, BatchStatus.EXPIRED)
    batch = await api.anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.archived_at) == ("ended", None)
    assert batch.ended_at is not None
    counts = {"processing": 0, "succeeded": 1, "errored": 1, "canceled": 1, "expired": 1}
    assert batch.request_counts.to_dict() == counts
    assert batch.results_url == f"http://api{PATH}/{batch.id}/results"
    found = {
        each.custom_id: each.result.type
        async for each in await api.anthropic.messages.batches.results(batch.id)
    }
    assert found == {"a": "succeeded", "b": "errored", "c": "canceled", "d": "expired"}


async def test_the_url_of_results_keeps_the_scheme_that_a_proxy_names(api: ApiFixture) -> None:
    batch = await created(api)
    await ended(api, batch, {"a": None})
    answer = await api.http.get(f"{PATH}/{batch.id}", headers={**VERSION, "X-Forwarded-Proto": "https"})
    assert answer.json()["results_url"] == f"https://api{PATH}/{batch.id}/results"


@pytest.mark.parametrize("status", [BatchStatus.FAILED, BatchStatus.CANCELLED])
async def test_a_batch_that_ended_without_files_has_a_result_for_each_request(
    status: BatchStatus, api: ApiFixture
) -> None:
    batch = await created(api, "a", "b")
    errors = [ValidationError(code="c", message="the quota is used up")]
    await api.database.batch_ends.end_without_files("default", openai_id(batch), status, errors, now())
    counts = (await api.anthropic.messages.batches.retrieve(batch.id)).request_counts
    results = [each.result async for each in await api.anthropic.messages.batches.results(batch.id)]
    if status is BatchStatus.CANCELLED:
        assert (counts.canceled, [each.type for each in results]) == (2, ["canceled"] * 2)
    else:
        said = [each.error.error.message for each in results if each.type == "errored"]
        assert (counts.errored, said) == (2, ["the quota is used up"] * 2)


async def test_a_batch_whose_files_follow_has_not_ended(api: ApiFixture) -> None:
    batch, later = await created(api), now() + timedelta(hours=1)
    await api.database.batch_ends.end_without_files(
        "default", openai_id(batch), BatchStatus.EXPIRED, [], now(), files_until=later
    )
    shown = await api.anthropic.messages.batches.retrieve(batch.id)
    assert (shown.processing_status, shown.ended_at, shown.results_url) == ("in_progress", None, None)


async def test_results_before_the_end_are_an_invalid_request(api: ApiFixture) -> None:
    batch = await created(api)
    answer = await api.http.get(f"{PATH}/{batch.id}/results", headers=VERSION)
    assert (answer.status_code, error_of(answer).type) == (400, "invalid_request_error")
    assert "has no results yet" in error_of(answer).message


@pytest.mark.parametrize("cause", ["29 days", "a deleted file"])
async def test_results_that_are_gone_are_archived(cause: str, api: ApiFixture) -> None:
    batch = await created(api)
    await ended(api, batch, {"a": None})
    key = ("default", openai_id(batch))
    if cause == "29 days":
        row = api.database.rows.batches[key]
        order = row.order.model_copy(update={"created_at": now() - timedelta(days=29)})
        api.database.rows.batches[key] = row.model_copy(update={"order": order})
    else:
        await api.http.delete(f"/v1/files/{derived_file_id(openai_id(batch), 'output')}")
    shown = await api.anthropic.messages.batches.retrieve(batch.id)
    assert (shown.processing_status, shown.results_url) == ("ended", None)
    assert shown.archived_at is not None
    assert abs(shown.archived_at - datetime.now(UTC)) < timedelta(minutes=1)
    answer = await api.http.get(f"{PATH}/{batch.id}/results", headers=VERSION)
    assert (answer.status_code, error_of(answer).type) == (404, "not_found_error")


async def test_lists_have_pages_in_both_directions(api: ApiFixture) -> None:
    ids = [(await created(api)).id for _ in range(5)][::-1]
    await api.create()  # not a message batch
    client = api.anthropic.messages.batches
    first = await client.list(limit=2)
    assert ([each.id for each in first.data], first.has_more) == (ids[:2], True)
    assert (first.first_id, first.last_id) == (ids[0], ids[1])
    assert [each.id async for each in client.list(limit=2)] == ids
    back = await client.list(limit=2, before_id=ids[3])
    assert ([each.id for each in back.data], back.has_more) == (ids[1:3], True)
    last = await client.list(limit=2, before_id=ids[1])
    assert ([each.id for each in last.data], last.has_more) == (ids[:1], False)
    empty = await client.list(before_id=ids[0])
    assert (empty.data, empty.has_more, empty.first_id, empty.last_id) == ([], False, None, None)


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("after_id={id}&before_id={id}", 400, "send only one of them"),
        ("limit=0", 400, "below minimum"),
        ("limit=1001", 400, "above maximum"),
        ("after_id=msgbatch_1", 404, "No message batch found with id 'msgbatch_1'"),
        ("before_id=msgbatch_" + "0" * 32, 404, "No message batch found"),
    ],
)
async def test_a_wrong_page_is_refused(query: str, status: int, message: str, api: ApiFixture) -> None:
    batch = await created(api)
    answer = await api.http.get(f"{PATH}?{query.format(id=batch.id)}", headers=VERSION)
    assert (answer.status_code, message in error_of(answer).message) == (status, True)


async def test_a_cancel_is_shown_at_once_and_refused_after_the_end(api: ApiFixture) -> None:
    batch = await created(api)
    canceling = await api.anthropic.messages.batches.cancel(batch.id)
    assert canceling.processing_status == "canceling"
    assert canceling.cancel_initiated_at is not None
    assert api.temporal.signals == [(openai_id(batch), "cancel")]
    await ended(api, batch, {"a": LineCode.BATCH_CANCELLED}, BatchStatus.CANCELLED)
    with pytest.raises(anthropic.BadRequestError, match="has ended"):
        await api.anthropic.messages.batches.cancel(batch.id)


async def test_only_an_ended_batch_is_deleted_with_its_requests(api: ApiFixture) -> None:
    batch = await created(api)
    with pytest.raises(anthropic.BadRequestError, match="cancel it, or wait until it ends"):
        await api.anthropic.messages.batches.delete(batch.id)
    await ended(api, batch, {"a": None})
    deleted = await api.anthropic.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    assert (api.database.rows.files, api.database.rows.batches) == ({}, {})
    with pytest.raises(anthropic.NotFoundError):
        await api.anthropic.messages.batches.delete(batch.id)


async def test_the_requests_stay_until_the_last_batch_that_reads_them_is_deleted(api: ApiFixture) -> None:
    first = await created(api, "a", "b")
    await ended(api, first, {"a": None, "b": LineCode.BATCH_EXPIRED}, BatchStatus.EXPIRED)
    again = read(await api.http.post(f"/v1/batches/{openai_id(first)}/x/resume"), BatchObject)
    second = await api.anthropic.messages.batches.retrieve("msg" + again.id)
    await ended(api, second, {"a": None, "b": None})
    await api.anthropic.messages.batches.delete(second.id)
    assert (await api.http.get(f"/v1/files/{again.input_file_id}")).status_code == 200
    await api.anthropic.messages.batches.delete(first.id)
    assert api.database.rows.files == {}


async def test_a_batch_that_is_not_started_leaves_no_input_behind(api: ApiFixture) -> None:
    api.temporal.failing = TemporalUnavailable("down")
    with pytest.raises(anthropic.InternalServerError) as failed:
        await created(api)
    assert (failed.value.status_code, failed.value.type) == (503, "overloaded_error")
    assert (api.database.rows.files, api.storage.objects) == ({}, {})


async def created_once(api: ApiFixture, key: str, *custom_ids: str) -> "MessageBatch":
    requests = [request(id) for id in custom_ids]
    headers = {"Idempotency-Key": key}
    return await api.anthropic.messages.batches.create(requests=requests, extra_headers=headers)


async def test_a_creation_that_is_repeated_with_its_key_returns_the_same_batch(api: ApiFixture) -> None:
    batches = [await created_once(api, "k", "a", "b") for _ in range(2)]
    assert batches[0] == batches[1]
    [order] = api.temporal.orders.values()
    assert [id for _, id in api.database.rows.files] == [order.input_file_id]
    assert len(api.storage.objects) == 1
    for key, ids in (("k", ("a",)), ("k", ("a", "c"))):
        with pytest.raises(anthropic.BadRequestError, match="Idempotency-Key was used with another request"):
            await created_once(api, key, *ids)
    assert len(api.storage.objects) == 1
    assert (await created_once(api, "other", "a", "b")).id != batches[0].id


@pytest.mark.parametrize("quota", ROOM_FOR_ONE_BATCH)
async def test_a_creation_that_is_repeated_with_its_key_needs_no_room_in_the_quota(quota: str) -> None:
    async with open_api(**{quota: ROOM_FOR_ONE_BATCH[quota]}) as api:
        batch = await created_once(api, "k", "a", "b")
        with pytest.raises(anthropic.RateLimitError):
            await created_once(api, "other", "a", "b")
        objects = dict(api.storage.objects)
        assert await created_once(api, "k", "a", "b") == batch
        assert api.storage.objects == objects


async def test_a_creation_that_was_interrupted_is_completed_by_a_repetition_with_its_key(
    api: ApiFixture,
) -> None:
    api.temporal.failing = TemporalUnavailable("down")
    with pytest.raises(anthropic.InternalServerError):
        await created_once(api, "k", "a")
    api.temporal.failing = None
    batch = await created_once(api, "k", "a")
    [file] = api.database.rows.files.values()
    assert api.order(openai_id(batch)).input_file_id == file.id
    assert list(api.storage.objects) == [file.storage_key]


async def test_a_creation_that_was_refused_leaves_no_input_and_no_key_behind() -> None:
    async with open_api(max_live_batches=1) as api:
        first = await created(api)
        with pytest.raises(anthropic.RateLimitError):
            await created_once(api, "k", "a", "b")
        assert len(api.database.rows.files) == 1
        await ended(api, first, {"a": None})
        assert (await created_once(api, "k", "c")).request_counts.processing == 1


@pytest.mark.parametrize(("rerun", "requests"), [("resume", 3), ("retry", 2)])
async def test_a_rerun_of_a_message_batch_is_a_message_batch(
    rerun: str, requests: int, api: ApiFixture
) -> None:
    batch = await created(api, "a", "b", "c")
    codes = {"a": None, "b": LineCode.INVALID_REQUEST, "c": LineCode.BATCH_EXPIRED}
    await ended(api, batch, codes, BatchStatus.EXPIRED)
    again = read(await api.http.post(f"/v1/batches/{openai_id(batch)}/x/{rerun}"), BatchObject)
    assert api.order(again.id).policy.message_requests == requests
    shown = await api.anthropic.messages.batches.retrieve("msg" + again.id)
    assert shown.request_counts.processing == requests


async def test_a_body_that_is_refused_leaves_nothing_behind(api: ApiFixture) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"requests\.1\.custom_id: 'a' is repeated"):
        await created(api, "a", "a")
    assert (api.database.rows.files, api.storage.objects, api.temporal.orders) == ({}, {}, {})


@pytest.mark.parametrize("limit", ["max_message_requests", "max_message_batch_bytes"])
async def test_a_body_over_a_limit_is_too_large(limit: str) -> None:
    async with open_api(**{limit: 1}) as api:
        with pytest.raises(anthropic.ContentTooLargeError, match="at most 1 ") as refused:
            await created(api, "a", "b")
        assert refused.value.type == "request_too_large"


@pytest.mark.parametrize("version", [None, "v1", "2023-6-1", ""])
async def test_the_version_header_is_required(version: str | None, api: ApiFixture) -> None:
    headers = {} if version is None else {"anthropic-version": version}
    for method, path in (("POST", PATH), ("GET", PATH), ("GET", f"{PATH}/msgbatch_{'0' * 32}")):
        answer = await api.http.request(method, path, headers=headers)
        assert (answer.status_code, error_of(answer).type) == (400, "invalid_request_error")
        assert "anthropic-version" in error_of(answer).message


async def test_the_key_is_accepted_in_either_header_and_belongs_to_one_tenant() -> None:
    async with open_api(auth="api_key", auth_failures_per_minute=0) as api:
        blue, red = await create_key(api.database, "blue"), await create_key(api.database, "red")
        with pytest.raises(anthropic.AuthenticationError) as none:
            await api.anthropic.with_options(api_key="none").messages.batches.list()
        assert none.value.type == "authentication_error"
        client = api.anthropic.with_options(api_key=blue.text)
        batch = await client.messages.batches.create(requests=[request("a")])
        bearer = {**VERSION, "Authorization": f"Bearer {blue.text}"}
        assert (await api.http.get(f"{PATH}/{batch.id}", headers=bearer)).status_code == 200
        both = await api.http.get(PATH, headers={**bearer, "x-api-key": red.text})
        assert (both.status_code, error_of(both).type) == (401, "authentication_error")
        missing = await api.http.get(PATH, headers=VERSION)
        assert "x-api-key" in error_of(missing).message
        with pytest.raises(anthropic.NotFoundError):
            await api.anthropic.with_options(api_key=red.text).messages.batches.retrieve(batch.id)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "message"),
    [
        ("POST", "/v1/messages", 404, "not_found_error", "runs batches: send this request"),
        ("GET", "/v1/messages/nothing", 404, "not_found_error", "Invalid URL"),
        ("PUT", PATH, 405, "invalid_request_error", "Not allowed to PUT"),
    ],
)
async def test_every_error_below_the_path_has_anthropics_shape(
    method: str, path: str, status: int, kind: str, message: str, api: ApiFixture
) -> None:
    answer = await api.http.request(method, path, headers=VERSION)
    error = error_of(answer)
    assert (answer.status_code, error.type, message in error.message) == (status, kind, True)


async def test_an_outage_is_an_overload_and_a_head_has_no_body(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("down")
    answer = await api.http.get(PATH, headers=VERSION)
    assert (answer.status_code, error_of(answer).type) == (503, "overloaded_error")
    assert answer.headers["retry-after"]
    head = await api.http.head(PATH, headers=VERSION)
    assert (head.status_code, head.content) == (503, b"")


async def test_the_beta_client_is_served_too(api: ApiFixture) -> None:
    batch = await api.anthropic.beta.messages.batches.create(requests=[request("a")])  # pyright: ignore[reportArgumentType]
    answer = await api.http.get(f"{PATH}/{batch.id}?beta=true", headers=VERSION)
    assert (answer.status_code, "x-batchwright-warning" in answer.headers) == (200, False)
