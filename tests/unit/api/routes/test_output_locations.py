"""`x_batchwright.output_location`: what the API accepts, keeps for reruns and schedules, and shows."""

from datetime import UTC, datetime

import pytest

from batchwright.contracts.api_objects.openai import BatchObject, OutputLocation
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.contracts.terms import BatchStatus
from tests.fakes.api import ApiFixture, error_of, open_api, read

LOCATIONS = {
    "default": {"read": ["s3://data/"], "write": ["s3://out/blue/"]},
    "red": {"write": ["s3://red/"]},
}
BODY = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": "file-1"}
PARAM = "x_batchwright.output_location"


async def create(api: ApiFixture, url: object, **headers: str) -> BatchObject:
    body = {**BODY, "x_batchwright": {"output_location": url}}
    return read(await api.http.post("/v1/batches", json=body, headers=headers), BatchObject)


async def refused(api: ApiFixture, url: object) -> tuple[int, str | None, str | None]:
    answer = await api.http.post("/v1/batches", json={**BODY, "x_batchwright": {"output_location": url}})
    return answer.status_code, error_of(answer).code, error_of(answer).param


@pytest.mark.parametrize("url", ["s3://out/blue", "s3://out/blue/", "s3://out/blue/ü b/2026"])
async def test_a_batch_may_name_where_its_files_are_also_written(url: str) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        batch = await create(api, url)
        assert batch.x_batchwright.output_location == OutputLocation(url=url, state="pending", error=None)
        (row,) = api.database.rows.batches.values()
        assert row.order.output_location == url


async def test_the_batch_shows_how_the_last_attempt_ended() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        id = (await create(api, "s3://out/blue")).id
        await api.database.batch_ends.end_without_files(
            "default", id, BatchStatus.EXPIRED, [], datetime.now(UTC)
        )
        copies = [OutputCopy(error="Refused."), OutputCopy(state=OutputCopyState.WRITTEN)]
        for copy in copies:
            await api.database.batches.record_output_copy("default", id, copy)
            shown = read(await api.http.get(f"/v1/batches/{id}"), BatchObject).x_batchwright.output_location
            assert shown == OutputLocation(url="s3://out/blue", state=copy.state, error=copy.error or None)


async def test_a_batch_without_a_location_shows_none() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        assert (await create(api, None)).x_batchwright.output_location is None


@pytest.mark.parametrize(
    "url", ["s3://out", "s3://out/blue2", "s3://data/", "s3://red/", "s3://other/blue", "s3://out/"]
)
async def test_a_location_that_the_tenant_may_not_write_to_is_refused(url: str) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        assert await refused(api, url) == (403, "location_not_allowed", PARAM)
        assert api.database.rows.batches == {}


async def test_without_the_setting_no_location_is_allowed() -> None:
    async with open_api() as api:
        assert await refused(api, "s3://out/blue/") == (403, "location_not_allowed", PARAM)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "out/blue",
        "s3://out/blue/../red",
        "s3://out//x",
        "s3://key@out/x",
        f"s3://out/blue/{'x' * 950}",
    ],
    ids=["no bucket", "no scheme", "dots", "empty part", "key", "too long"],
)
async def test_a_wrong_location_is_refused(url: str) -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        assert await refused(api, url) == (400, "invalid_value", PARAM)


async def test_a_location_is_text() -> None:
    async with open_api(data_locations=LOCATIONS) as api:
        assert (await refused(api, ["s3://out/blue"]))[0] == 400
