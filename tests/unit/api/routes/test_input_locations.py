"""`input_file_id` as the URL of an object: which URLs the API accepts, and its messages about others."""

from datetime import UTC, datetime

import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from tests.fakes.api import ApiFixture, error_of, open_api, read

URL = "s3://data/blue/in.jsonl.gz"
LOCATIONS = {
    "default": {"read": ["s3://data/blue/"], "write": ["s3://out/"]},
    "red": {"read": ["s3://data/red/"]},
}
BODY = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


async def refused(api: ApiFixture, url: str) -> tuple[int, str | None, str | None]:
    answer = await api.http.post("/v1/batches", json={**BODY, "input_file_id": url})
    return answer.status_code, error_of(answer).code, error_of(answer).param


async def test_a_batch_may_name_an_object_as_its_input() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        answer = await api.http.post("/v1/batches", json={**BODY, "input_file_id": URL})
        batch = read(answer, BatchObject)
        assert batch.x_batchwright.input_location == URL
        assert batch.input_file_id.startswith("file-")
        (order,) = [row.order for row in api.database.rows.batches.values()]
        assert (order.input_location, order.input_file_id) == (URL, batch.input_file_id)


async def test_a_repeated_creation_has_the_same_input_file() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        headers = {"Idempotency-Key": "once"}
        answers = [
            read(
                await api.http.post("/v1/batches", json={**BODY, "input_file_id": URL}, headers=headers),
                BatchObject,
            )
            for _ in range(2)
        ]
        assert answers[0].id == answers[1].id
        assert answers[0].input_file_id == answers[1].input_file_id


async def test_a_resumed_batch_reads_the_object_if_the_ended_batch_did_not() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        batch = read(await api.http.post("/v1/batches", json={**BODY, "input_file_id": URL}), BatchObject)
        await api.database.batch_ends.end_without_files(
            "default", batch.id, BatchStatus.CANCELLED, [], datetime.now(UTC)
        )
        resumed = read(await api.http.post(f"/v1/batches/{batch.id}/x/resume"), BatchObject)
        order = api.order(resumed.id)
        assert (order.input_location, order.input_file_id) == (URL, resumed.input_file_id)
        assert resumed.input_file_id != batch.input_file_id


@pytest.mark.parametrize(
    "url", ["s3://data/red/in.jsonl", "s3://data/blue", "s3://data/blue2/x", "s3://out/x"]
)
async def test_an_object_elsewhere_is_not_allowed(url: str) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        expected = (400, "invalid_value") if url == "s3://data/" else (403, "location_not_allowed")
        assert await refused(api, url) == (*expected, "input_file_id")


async def test_without_the_setting_no_object_is_allowed() -> None:
    async with open_api() as api:
        assert await refused(api, URL) == (403, "location_not_allowed", "input_file_id")


@pytest.mark.parametrize("url", ["s3://data/blue/../red/x", "s3://data", "s3://", "s3://key@data/blue/x"])
async def test_a_wrong_url_is_refused(url: str) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        assert await refused(api, url) == (400, "invalid_value", "input_file_id")


async def test_the_strict_profile_knows_only_uploaded_files() -> None:
    async with open_api(profile="strict", data_locations=LOCATIONS) as api:
        answer = await api.http.post("/v1/batches", json={**BODY, "input_file_id": URL})
        assert (answer.status_code, answer.json()["input_file_id"]) == (200, URL)
