"""DELETE /v1/batches/{id}: what it deletes, what it keeps, and when it refuses."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import httpx
import pytest

from batchwright.api.dependencies import now
from batchwright.api.services.batches import deletion as batch_deletion
from batchwright.contracts.api_objects.openai import BatchObject, DeletedBatch
from batchwright.contracts.temporal_names import output_copy_id
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.ended_batch import INPUT, Ended

LOCATIONS = {"default": {"write": ["s3://out/"]}}
LOCATION = "s3://out/blue"


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def an_ended_batch(
    api: ApiFixture, status: BatchStatus = BatchStatus.COMPLETED, output_location: str | None = None
) -> str:
    """Create a batch with an output file, an error file and a scratch object, and return its id."""
    batch = await api.create(x_batchwright={"output_location": output_location})
    order = api.order(batch.id)
    await Ended(api.database, api.storage, order).finish(status, failed=[1])
    root = object_keys.batch_root("default", batch.id)
    await api.storage.put(f"{root}/results/x/000000/0001", b"segment")
    for kind in ("output", "error"):
        key = object_keys.output_key("default", derived_file_id(batch.id, kind), "lost")
        await api.storage.put(key, b"of an attempt that did not end the batch")
    return batch.id


async def delete(api: ApiFixture, batch_id: str, query: str = "", tenant: str = "default") -> httpx.Response:
    return await api.http.delete(f"/v1/batches/{batch_id}{query}", headers={"X-Tenant": tenant})


async def test_a_deletion_leaves_only_the_input_file(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api)
    assert read(await delete(api, batch_id), DeletedBatch) == DeletedBatch(id=batch_id)
    assert [row.purpose for row in api.database.rows.files.values()] == ["batch"]
    assert (await api.http.get(f"/v1/batches/{batch_id}")).status_code == 404


async def test_all_objects_of_the_batch_are_deleted(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api)
    await delete(api, batch_id)
    left = [key for key in api.storage.objects if batch_id in key or "lost" in key]
    assert left == [f"{batch_id}/output", f"{batch_id}/error"]  # outside the folders of files


async def test_files_are_kept_on_request(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api)
    batch = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject)
    read(await delete(api, batch_id, "?keep_files=true"), DeletedBatch)
    for file_id in (batch.output_file_id, batch.error_file_id):
        assert (await api.http.get(f"/v1/files/{file_id}/content")).status_code == 200


async def test_a_repeated_deletion_succeeds_and_another_tenant_gets_a_404(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api)
    assert (await delete(api, batch_id, tenant="other")).status_code == 404
    answers = [await delete(api, batch_id) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert (await delete(api, batch_id, tenant="other")).status_code == 404


@pytest.mark.parametrize("batch_id", ["batch_01a20d7774b6755488a512e95eb779be", "batch_1", "%00"])
async def test_an_unknown_batch_is_a_404(api: ApiFixture, batch_id: str) -> None:
    answer = await delete(api, batch_id)
    assert answer.status_code == 404
    assert "No batch found with id" in error_of(answer).message


async def test_a_live_batch_is_a_409(api: ApiFixture) -> None:
    batch = await api.create()
    answer = await delete(api, batch.id)
    assert answer.status_code == 409
    assert error_of(answer).message == (
        "Cannot delete a batch with status 'validating': cancel it, or wait until it ends."
    )


async def test_a_batch_whose_files_follow_is_a_409(api: ApiFixture) -> None:
    batch = await api.create()
    later = now() + timedelta(hours=1)
    await api.database.batch_ends.end_without_files(
        "default", batch.id, BatchStatus.EXPIRED, [], now(), files_until=later
    )
    answer = await delete(api, batch.id)
    assert (answer.status_code, "still to be written" in error_of(answer).message) == (409, True)


async def test_a_batch_whose_workflow_is_still_ending_is_a_409_that_may_be_repeated(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_deletion, "_END_CHECK_SECONDS", 0.0)
    batch_id = await an_ended_batch(api)
    api.temporal.open.add(batch_id)
    answer = await delete(api, batch_id)
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "5")
    assert "still ending" in error_of(answer).message
    api.temporal.open.clear()
    assert (await delete(api, batch_id)).status_code == 200


@pytest.mark.parametrize("copy", [None, OutputCopy(error="Refused.")], ids=["not tried", "tried"])
@pytest.mark.parametrize("query", ["", "?keep_files=true"])
async def test_a_batch_whose_files_are_still_copied_is_a_409_that_may_be_repeated(
    copy: OutputCopy | None, query: str
) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        batch_id = await an_ended_batch(api, output_location=LOCATION)
        api.temporal.open.add(output_copy_id(batch_id))
        if copy is not None:
            await api.database.batches.record_output_copy("default", batch_id, copy)
        objects = dict(api.storage.objects)
        answer = await delete(api, batch_id, query)
        assert (answer.status_code, answer.headers["retry-after"]) == (409, "5")
        assert "x-should-retry" not in answer.headers
        assert f"still to be written to '{LOCATION}'" in error_of(answer).message
        assert api.storage.objects == objects
        assert len(api.database.rows.files) == 3


@pytest.mark.parametrize("state", [OutputCopyState.WRITTEN, OutputCopyState.FAILED])
async def test_a_batch_whose_files_are_copied_can_be_deleted(state: OutputCopyState) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        batch_id = await an_ended_batch(api, output_location=LOCATION)
        api.temporal.open.add(output_copy_id(batch_id))  # its workflow reads the state and ends
        await api.database.batches.record_output_copy("default", batch_id, OutputCopy(state=state))
        assert (await delete(api, batch_id)).status_code == 200


async def test_a_copy_that_an_operator_has_terminated_prevents_no_deletion() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        batch_id = await an_ended_batch(api, output_location=LOCATION)
        assert (await delete(api, batch_id)).status_code == 200


async def test_a_batch_whose_results_a_resumption_reads_is_a_409(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api, BatchStatus.EXPIRED)
    resumed = read(await api.http.post(f"/v1/batches/{batch_id}/x/resume"), BatchObject)
    answer = await delete(api, batch_id)
    assert (answer.status_code, resumed.id in error_of(answer).message) == (409, True)
    assert len(api.database.rows.files) == 3
    await api.database.batches.start("default", resumed.id, total=6, models=[], at=now())
    assert (await delete(api, batch_id)).status_code == 200


async def test_an_interrupted_deletion_is_completed_by_a_repeated_call(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api)
    api.storage.failing = StorageUnavailable("down")
    assert (await delete(api, batch_id)).status_code == 503
    api.storage.failing = None
    batch = read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject)
    assert batch.status is BatchStatus.COMPLETED
    assert (await api.http.get(f"/v1/files/{batch.output_file_id}")).status_code == 404
    assert (await delete(api, batch_id)).status_code == 200
    assert api.database.rows.batches == {}


async def test_without_the_database_nothing_is_deleted(api: ApiFixture) -> None:
    batch_id = await an_ended_batch(api)
    objects = dict(api.storage.objects)
    api.database.rows.failing = DatabaseUnavailable("down")
    assert (await delete(api, batch_id)).status_code == 503
    assert api.storage.objects == objects


@pytest.mark.parametrize(
    ("query", "param"), [("keep_file=true", "keep_file"), ("keep_files=yes", "keep_files")]
)
async def test_a_misspelt_option_is_a_400_and_deletes_nothing(
    api: ApiFixture, query: str, param: str
) -> None:
    batch_id = await an_ended_batch(api)
    answer = await delete(api, batch_id, f"?{query}")
    assert (answer.status_code, error_of(answer).param) == (400, param)
    assert (await api.http.get(f"/v1/batches/{batch_id}")).status_code == 200


async def test_the_idempotency_key_of_a_deleted_batch_creates_no_other(api: ApiFixture) -> None:
    file = await api.upload(INPUT)
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    headers = {"Idempotency-Key": "k"}
    batch = read(await api.http.post("/v1/batches", json=body, headers=headers), BatchObject)
    await Ended(api.database, api.storage, api.order(batch.id)).finish(BatchStatus.COMPLETED, failed=[])
    await delete(api, batch.id)
    answer = await api.http.post("/v1/batches", json=body, headers=headers)
    assert (answer.status_code, error_of(answer).param) == (409, "Idempotency-Key")


async def test_a_deletion_is_logged(api: ApiFixture, caplog: pytest.LogCaptureFixture) -> None:
    batch_id = await an_ended_batch(api)
    with caplog.at_level("INFO"):
        await delete(api, batch_id)
    (entry,) = (entry for entry in caplog.records if entry.getMessage() == "batch deleted")
    fields = vars(entry)
    assert (fields["batch_id"], fields["of_tenant"], fields["keep_files"]) == (batch_id, "default", False)
