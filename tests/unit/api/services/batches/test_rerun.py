"""x/retry and x/resume of ended batches."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.batches.rerun import BatchReruns
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind, SourceBatch
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.records import FileRow
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.rules.ids import derived_file_id
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key
from tests.fakes.ended_batch import INPUT, LINES, SYSTEM, Ended
from tests.fakes.storage import MemoryWriter
from tests.unit.api.services.batches.rerun_requests import ask, content, created, ended


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_a_retry_reads_the_failed_lines_byte_for_byte_and_in_their_order(api: ApiFixture) -> None:
    first = await ended(api)
    batch = read(await ask(api, first, "retry"), BatchObject)
    expected = LINES[0] + b"\r\n" + LINES[2] + b"\n" + LINES[5] + b"\n"
    assert await content(api, batch.input_file_id) == expected


async def test_a_retry_has_the_parameters_of_its_source_batch_and_names_it(api: ApiFixture) -> None:
    first = await ended(api)
    batch = read(await ask(api, first, "retry"), BatchObject)
    assert batch.status == BatchStatus.VALIDATING
    assert (batch.completion_window, batch.metadata) == ("3h", {"team": "red"})
    assert batch.x_batchwright.origin == SourceBatch(batch_id=first, kind=RerunKind.RETRY)
    assert api.order(batch.id).origin == batch.x_batchwright.origin


CODES = {0: LineCode.MODEL_NOT_FOUND, 2: LineCode.BATCH_EXPIRED, 5: LineCode.REQUEST_TIMEOUT}


async def ended_with_codes(api: ApiFixture) -> str:
    batch = await created(api)
    ended = Ended(api.database, api.storage, api.order(batch.id))
    await ended.finish(BatchStatus.EXPIRED, list(CODES), CODES)
    return batch.id


async def test_a_retry_with_codes_has_only_the_lines_that_failed_with_them(api: ApiFixture) -> None:
    first = await ended_with_codes(api)
    codes = ["request_timeout", "model_not_found", "request_timeout"]
    batch = read(await ask(api, first, "retry", {"codes": codes}), BatchObject)
    assert await content(api, batch.input_file_id) == LINES[0] + b"\r\n" + LINES[5] + b"\n"
    origin = SourceBatch(batch_id=first, kind=RerunKind.RETRY, codes=["model_not_found", "request_timeout"])
    assert batch.x_batchwright.origin == origin
    again = read(await ask(api, first, "retry", {"codes": codes[:2]}), BatchObject)
    assert again.id == batch.id


@pytest.mark.parametrize(
    ("before", "after"),
    [(["model_not_found"], None), (["model_not_found"], ["batch_expired"]), (None, ["batch_expired"])],
)
async def test_a_second_retry_with_other_codes_is_refused_and_names_the_first(
    api: ApiFixture, before: list[str] | None, after: list[str] | None
) -> None:
    first = await ended_with_codes(api)
    batch = read(await ask(api, first, "retry", {"codes": before}), BatchObject)
    error = error_of(answer := await ask(api, first, "retry", {"codes": after}))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert batch.id in error.message


async def test_a_retry_with_codes_that_no_line_has_names_those_of_the_batch(api: ApiFixture) -> None:
    first = await ended_with_codes(api)
    error = error_of(answer := await ask(api, first, "retry", {"codes": ["http_400", "other"]}))
    assert answer.status_code == 409
    assert error.message.endswith(
        "no line of it failed with http_400 or other. "
        "Its lines failed with: batch_expired, model_not_found, request_timeout."
    )
    assert len(api.database.rows.files) == 3
    read(await ask(api, first, "retry"), BatchObject)


@pytest.mark.parametrize(
    ("codes", "param"),
    [
        ("http_400", "codes"),
        ({}, "codes"),
        ([], "codes"),
        (["a"] * 41, "codes"),
        ([""], "codes"),
        (["a" * 65], "codes"),
        (["a", 400], "codes[1]"),
        (["a", None], "codes[1]"),
        (["a\x00"], "codes[0]"),
    ],
)
async def test_codes_that_are_not_a_list_of_codes_are_refused(
    api: ApiFixture, codes: object, param: str
) -> None:
    first = await ended_with_codes(api)
    error = error_of(answer := await ask(api, first, "retry", {"codes": codes}))
    assert (answer.status_code, error.param) == (400, param)


async def test_a_resumption_takes_no_codes(api: ApiFixture) -> None:
    first = await ended_with_codes(api)
    error = error_of(answer := await ask(api, first, "resume", {"codes": ["batch_expired"]}))
    assert (answer.status_code, error.code, error.param) == (400, "unknown_parameter", "codes")


@pytest.mark.parametrize("kind", RerunKind)
async def test_a_rerun_belongs_to_the_key_that_requests_it(kind: RerunKind) -> None:
    async with open_api(auth="api_key", auth_failures_per_minute=0) as api:
        of_first, of_second = [await create_key(api.database, "default") for _ in range(2)]
        api.http.headers["Authorization"] = f"Bearer {of_first.text}"
        first = await ended(api)
        api.http.headers["Authorization"] = f"Bearer {of_second.text}"
        second = read(await ask(api, first, kind), BatchObject)
        prefixes = {row.id: row.prefix for row in await api.database.api_keys.all("default")}
        for id, key in ((first, of_first), (second.id, of_second)):
            assert prefixes[api.order(id).policy.caller.key_id] == key.prefix


@pytest.mark.parametrize("kind", RerunKind)
async def test_a_second_call_answers_with_the_same_batch(api: ApiFixture, kind: RerunKind) -> None:
    first = await ended(api)
    batches = [read(await ask(api, first, kind), BatchObject) for _ in range(2)]
    assert batches[0] == batches[1]
    assert len(api.temporal.orders) == 2
    assert len(api.database.rows.files) == (3 + (kind is RerunKind.RETRY))


async def test_retries_of_a_batch_at_the_same_time_copy_its_lines_once(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, written, writer = await ended(api), list[str](), api.storage.writer

    def counted(key: str) -> AbstractAsyncContextManager[MemoryWriter]:
        written.append(key)
        return writer(key)

    monkeypatch.setattr(api.storage, "writer", counted)
    answers = await asyncio.gather(*(ask(api, first, "retry") for _ in range(5)))
    assert len({read(answer, BatchObject).id for answer in answers}) == 1
    assert len(written) == 1


async def test_retries_of_a_batch_in_two_processes_need_storage_for_one_copy_of_its_lines(
    api: ApiFixture,
) -> None:
    row = await api.database.batches.get("default", await ended(api))
    assert row is not None
    copied = len(LINES[0] + b"\r\n" + LINES[2] + b"\n" + LINES[5] + b"\n")
    limit = await api.database.quotas.stored("default") + copied
    await api.database.quotas.change("default", {"stored_bytes": limit}, datetime.now(UTC))
    parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
    processes = [BatchReruns(ApiDependencies(*parts)) for _ in range(2)]
    retried = await asyncio.gather(*(each.retry(row, {}, "") for each in processes))
    assert len({each.order.batch_id for each in retried}) == 1
    assert await api.database.quotas.stored("default") == limit


async def test_a_resumption_has_the_same_input_and_a_window_of_its_own(api: ApiFixture) -> None:
    first = await ended(api)
    batch = read(await ask(api, first, "resume", {"completion_window": "2h"}), BatchObject)
    order = api.order(batch.id)
    assert order.input_file_id == api.order(first).input_file_id
    assert order.deadline - order.created_at == timedelta(hours=2)
    assert order.origin == SourceBatch(batch_id=first, kind=RerunKind.RESUME)


@pytest.mark.parametrize("status", [BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED])
async def test_a_batch_that_ended_early_can_be_resumed(api: ApiFixture, status: BatchStatus) -> None:
    first = await ended(api, status)
    batch = read(await ask(api, first, "resume"), BatchObject)
    assert batch.id != first


async def test_a_completed_batch_has_nothing_to_resume(api: ApiFixture) -> None:
    first = await ended(api, BatchStatus.COMPLETED)
    error = error_of(answer := await ask(api, first, "resume"))
    assert answer.status_code == 409
    assert "every line has its result" in error.message


async def test_a_batch_without_failed_lines_has_nothing_to_retry(api: ApiFixture) -> None:
    first = await ended(api, BatchStatus.COMPLETED, failed=())
    error = error_of(answer := await ask(api, first, "retry"))
    assert answer.status_code == 409
    assert error.message.endswith("no line of it failed.")


async def test_a_live_batch_is_not_retried(api: ApiFixture) -> None:
    batch = await created(api)
    answer = await ask(api, batch.id, "retry")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_a_batch_that_failed_validation_is_not_resumed(api: ApiFixture) -> None:
    batch = await created(api)
    errors = [ValidationError(code="empty_file", message="empty")]
    now = datetime.now(UTC)
    await api.database.batch_ends.fail_validation("default", batch.id, errors=errors, total=0, at=now)
    error = error_of(await ask(api, batch.id, "resume"))
    assert "its input is not valid" in error.message


async def test_a_failed_batch_can_be_resumed_until_its_results_are_deleted(api: ApiFixture) -> None:
    complete, gone = await created(api), await created(api)
    now = datetime.now(UTC)
    for batch, until in ((complete, now + timedelta(hours=1)), (gone, now - timedelta(hours=1))):
        await api.database.batch_ends.end_without_files(
            "default", batch.id, BatchStatus.FAILED, SYSTEM, now, until
        )
    resumed = read(await ask(api, complete.id, "resume"), BatchObject)
    refused = error_of(await ask(api, gone.id, "resume"))
    row = await api.database.batches.get("default", complete.id)
    assert row is not None
    assert row.results_kept_until == api.order(resumed.id).deadline
    assert "were kept until" in refused.message


def before_the_claim(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Awaitable[object]]
) -> None:
    """Call `action` during the next rerun: after the API's checks, and before the API records the rerun."""
    claim = api.database.reruns.claim

    async def late(
        order: BatchOrder,
        origin: SourceBatch,
        file: FileRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> BatchOrder:
        await action()
        return await claim(order, origin, file, admissions=admissions)

    monkeypatch.setattr(api.database.reruns, "claim", late)


@pytest.mark.parametrize("kind", RerunKind)
async def test_a_batch_that_is_deleted_meanwhile_is_not_found_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, kind: RerunKind
) -> None:
    async with open_api(max_live_batches=9) as api:
        first = await ended(api)
        objects, admitted = set(api.storage.objects), set(api.database.rows.admissions)
        deletions = api.database.batch_deletions
        before_the_claim(api, monkeypatch, lambda: deletions.remove("default", first, datetime.now(UTC)))
        error = error_of(answer := await ask(api, first, kind))
        assert (answer.status_code, error.message) == (404, f"No batch found with id '{first}'.")
        assert set(api.storage.objects) == objects
        assert set(api.database.rows.admissions) == admitted - {("default", first)}


async def test_a_batch_whose_deletion_has_begun_meanwhile_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api(max_live_batches=9) as api:
        batch = await created(api)
        now, admitted = datetime.now(UTC), set(api.database.rows.admissions)
        await api.database.batch_ends.end_without_files(
            "default", batch.id, BatchStatus.FAILED, SYSTEM, now, now + timedelta(hours=1)
        )
        deletions = api.database.batch_deletions
        before_the_claim(api, monkeypatch, lambda: deletions.begin("default", batch.id, keep_files=False))
        error = error_of(answer := await ask(api, batch.id, "resume"))
        assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
        assert "its results are no longer kept" in error.message
        assert set(api.database.rows.admissions) == admitted


@pytest.mark.parametrize("kind", RerunKind)
async def test_missing_files_are_named(api: ApiFixture, kind: RerunKind) -> None:
    first = await ended(api)
    error_file = derived_file_id(first, "error")
    await api.http.delete(f"/v1/files/{error_file}")
    error = error_of(answer := await ask(api, first, kind))
    assert answer.status_code == 409
    assert error_file in error.message


@pytest.mark.parametrize("kind", ["input", "error"])
async def test_a_file_that_is_deleted_while_a_retry_copies_lines_is_named(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    first = await ended(api)
    id = api.order(first).input_file_id if kind == "input" else derived_file_id(first, "error")
    get, objects = api.database.files.get, set(api.storage.objects)

    async def get_and_delete(tenant: str, file_id: str) -> FileRow | None:
        found = await get(tenant, file_id)
        if found is not None and file_id == id:
            del api.database.rows.files[tenant, id]
            await api.storage.delete(found.storage_key)
            objects.remove(found.storage_key)
        return found

    monkeypatch.setattr(api.database.files, "get", get_and_delete)
    error = error_of(answer := await ask(api, first, "retry"))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert error.message.endswith(f"its file '{id}' was deleted or expired.")
    assert set(api.storage.objects) == objects


@pytest.mark.parametrize("kind", RerunKind)
async def test_a_batch_of_another_tenant_cannot_be_rerun(api: ApiFixture, kind: RerunKind) -> None:
    first = await ended(api)
    answer = await api.http.post(f"/v1/batches/{first}/x/{kind}", headers={"X-Tenant": "red"})
    assert answer.status_code == 404


async def test_a_rerun_counts_as_a_live_batch() -> None:
    async with open_api(max_live_batches=1) as api:
        first = await ended(api)
        await created(api)
        answer = await ask(api, first, "resume")
    assert answer.status_code == 429


async def test_the_input_of_a_retry_counts_against_the_storage_of_a_tenant() -> None:
    async with open_api(max_stored_bytes=1_000_000) as api:
        first = await ended(api)
        big = await api.upload(INPUT)
        row = api.database.rows.files["default", big.id]
        api.database.rows.files["default", big.id] = row.model_copy(update={"bytes": 1_000_000})
        before = set(api.storage.objects)
        answer = await ask(api, first, "retry")
        assert answer.status_code == 429
        assert set(api.storage.objects) == before


async def test_an_input_without_its_object_leaves_nothing_behind(api: ApiFixture) -> None:
    first = await ended(api)
    source = api.database.rows.files["default", api.order(first).input_file_id]
    await api.storage.delete(source.storage_key)
    before = set(api.storage.objects)
    error = error_of(answer := await ask(api, first, "retry"))
    assert (answer.status_code, error.code) == (500, "content_missing")
    assert set(api.storage.objects) == before


@pytest.mark.parametrize("body", [{"window": "1h"}, {"completion_window": "soon"}, [1]])
async def test_an_invalid_body_is_refused(api: ApiFixture, body: object) -> None:
    first = await ended(api)
    answer = await ask(api, first, "resume", body)
    assert answer.status_code == 400


async def test_a_batch_with_pending_files_cannot_be_rerun_yet(
    api: ApiFixture,
) -> None:
    batch = await created(api)
    now, ends = datetime.now(UTC), api.database.batch_ends
    until = now + timedelta(hours=1)
    await ends.end_without_files("default", batch.id, BatchStatus.EXPIRED, [], now, files_until=until)
    shown = read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject)
    assert (shown.status, shown.x_batchwright.files_pending) == (BatchStatus.EXPIRED, True)
    for kind in ("retry", "resume"):
        error = error_of(answer := await ask(api, batch.id, kind))
        assert answer.status_code == 409
        assert "its files are still to be written" in error.message
    deleted = await api.http.delete(f"/v1/files/{batch.input_file_id}")
    assert deleted.status_code == 409
    await ends.abandon_files("default", batch.id, SYSTEM, keep_until=until)
    shown = read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject)
    assert not shown.x_batchwright.files_pending
    assert shown.errors is not None
    assert (await ask(api, batch.id, "resume")).status_code == 200
