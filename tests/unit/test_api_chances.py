"""x/retry and x/resume of batches that have ended."""

import json
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from api.objects import BatchObject
from batchwright.contracts.batch import Chance, Origin
from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.rules.ids import derived_file_id
from tests.fakes.api import House, error_of, open_house, read
from tests.fakes.ended import INPUT, LINES, SYSTEM, Ended
from tests.fakes.keys import made_key


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def created(house: House) -> BatchObject:
    file = await house.upload(INPUT)
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "3h",
        "metadata": {"team": "red"},
    }
    return read(await house.post(body), BatchObject)


async def ended(
    house: House, status: BatchStatus = BatchStatus.EXPIRED, failed: Sequence[int] = (0, 2, 5)
) -> str:
    batch = await created(house)
    await Ended(house.database, house.storage, house.order(batch.id)).finish(status, failed)
    return batch.id


async def ask(house: House, batch_id: str, chance: str, body: object = None) -> httpx.Response:
    content = None if body is None else json.dumps(body)
    return await house.http.post(f"/v1/batches/{batch_id}/x/{chance}", content=content)


async def content(house: House, file_id: str) -> bytes:
    return (await house.http.get(f"/v1/files/{file_id}/content")).content


async def test_a_retry_reads_the_failed_lines_byte_for_byte_and_in_their_order(house: House) -> None:
    first = await ended(house)
    batch = read(await ask(house, first, "retry"), BatchObject)
    expected = LINES[0] + b"\r\n" + LINES[2] + b"\n" + LINES[5] + b"\n"
    assert await content(house, batch.input_file_id) == expected


async def test_a_retry_is_a_batch_like_its_origin_and_says_whose_it_is(house: House) -> None:
    first = await ended(house)
    batch = read(await ask(house, first, "retry"), BatchObject)
    assert batch.status == BatchStatus.VALIDATING
    assert (batch.completion_window, batch.metadata) == ("3h", {"team": "red"})
    assert batch.x_batchwright.origin == Origin(batch_id=first, chance=Chance.RETRY)
    assert house.order(batch.id).origin == batch.x_batchwright.origin


@pytest.mark.parametrize("chance", Chance)
async def test_a_second_chance_is_the_batch_of_the_key_that_asks_for_it(chance: Chance) -> None:
    async with open_house(auth="api_key", auth_failures_per_minute=0) as house:
        of_first, of_second = [await made_key(house.database, "default") for _ in range(2)]
        house.http.headers["Authorization"] = f"Bearer {of_first.text}"
        first = await ended(house)
        house.http.headers["Authorization"] = f"Bearer {of_second.text}"
        second = read(await ask(house, first, chance), BatchObject)
        prefixes = {row.id: row.prefix for row in await house.database.api_keys.all("default")}
        for id, key in ((first, of_first), (second.id, of_second)):
            assert prefixes[house.order(id).policy.caller.key_id] == key.prefix


@pytest.mark.parametrize("chance", Chance)
async def test_a_second_call_answers_with_the_same_batch(house: House, chance: Chance) -> None:
    first = await ended(house)
    batches = [read(await ask(house, first, chance), BatchObject) for _ in range(2)]
    assert batches[0] == batches[1]
    assert len(house.temporal.orders) == 2
    assert len(house.database.rows.files) == (3 + (chance is Chance.RETRY))


@pytest.mark.parametrize("chance", Chance)
async def test_a_call_that_broke_off_before_the_start_is_finished_by_the_next(
    house: House, chance: Chance
) -> None:
    first = await ended(house)
    batch = read(await ask(house, first, chance), BatchObject)
    del house.database.rows.batches["default", batch.id], house.temporal.orders[batch.id]
    again = read(await ask(house, first, chance), BatchObject)
    assert again.id == batch.id
    assert batch.id in house.temporal.orders


async def test_a_resumption_has_the_same_input_and_a_window_of_its_own(house: House) -> None:
    first = await ended(house)
    batch = read(await ask(house, first, "resume", {"completion_window": "2h"}), BatchObject)
    order = house.order(batch.id)
    assert order.input_file_id == house.order(first).input_file_id
    assert order.expires_at - order.created_at == timedelta(hours=2)
    assert order.origin == Origin(batch_id=first, chance=Chance.RESUME)


@pytest.mark.parametrize("status", [BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED])
async def test_what_ended_early_can_be_resumed(house: House, status: BatchStatus) -> None:
    first = await ended(house, status)
    batch = read(await ask(house, first, "resume"), BatchObject)
    assert batch.id != first


async def test_a_completed_batch_has_nothing_to_resume(house: House) -> None:
    first = await ended(house, BatchStatus.COMPLETED)
    error = error_of(answer := await ask(house, first, "resume"))
    assert answer.status_code == 409
    assert "every line has its result" in error.message


async def test_a_batch_without_failed_lines_has_nothing_to_retry(house: House) -> None:
    first = await ended(house, BatchStatus.COMPLETED, failed=())
    error = error_of(answer := await ask(house, first, "retry"))
    assert answer.status_code == 409
    assert error.message.endswith("no line of it failed.")


async def test_a_live_batch_is_not_retried(house: House) -> None:
    batch = await created(house)
    answer = await ask(house, batch.id, "retry")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


async def test_an_input_that_was_not_valid_is_not_resumed(house: House) -> None:
    batch = await created(house)
    errors = [ValidationError(code="empty_file", message="empty")]
    now = datetime.now(UTC)
    await house.database.batches.fail_validation("default", batch.id, errors=errors, total=0, at=now)
    error = error_of(await ask(house, batch.id, "resume"))
    assert "its input is not valid" in error.message


async def test_results_that_were_kept_are_resumed_until_they_go(house: House) -> None:
    kept, gone = await created(house), await created(house)
    now = datetime.now(UTC)
    for batch, until in ((kept, now + timedelta(hours=1)), (gone, now - timedelta(hours=1))):
        await house.database.batches.end("default", batch.id, BatchStatus.FAILED, SYSTEM, now, until)
    resumed = read(await ask(house, kept.id, "resume"), BatchObject)
    refused = error_of(await ask(house, gone.id, "resume"))
    row = await house.database.batches.get("default", kept.id)
    assert row is not None
    assert row.results_kept_until == house.order(resumed.id).expires_at
    assert "was kept until" in refused.message


@pytest.mark.parametrize("chance", Chance)
async def test_files_that_are_gone_are_named(house: House, chance: Chance) -> None:
    first = await ended(house)
    error_file = derived_file_id(first, "error")
    await house.http.delete(f"/v1/files/{error_file}")
    error = error_of(answer := await ask(house, first, chance))
    assert answer.status_code == 409
    assert error_file in error.message


@pytest.mark.parametrize("chance", Chance)
async def test_nobody_gets_a_chance_of_anothers_batch(house: House, chance: Chance) -> None:
    first = await ended(house)
    answer = await house.http.post(f"/v1/batches/{first}/x/{chance}", headers={"X-Tenant": "red"})
    assert answer.status_code == 404


async def test_a_second_chance_counts_against_the_batches_at_once() -> None:
    async with open_house(max_live_batches=1) as house:
        first = await ended(house)
        await created(house)
        answer = await ask(house, first, "resume")
    assert answer.status_code == 429


async def test_the_input_of_a_retry_counts_against_the_storage_of_a_tenant() -> None:
    async with open_house(max_stored_bytes=1_000_000) as house:
        first = await ended(house)
        big = await house.upload(INPUT)
        row = house.database.rows.files["default", big.id]
        house.database.rows.files["default", big.id] = row.model_copy(update={"bytes": 1_000_000})
        before = set(house.storage.objects)
        answer = await ask(house, first, "retry")
        assert answer.status_code == 429
        assert set(house.storage.objects) == before


async def test_an_input_that_lost_its_bytes_leaves_nothing_behind(house: House) -> None:
    first = await ended(house)
    source = house.database.rows.files["default", house.order(first).input_file_id]
    await house.storage.delete(source.storage_key)
    before = set(house.storage.objects)
    error = error_of(answer := await ask(house, first, "retry"))
    assert (answer.status_code, error.code) == (500, "content_missing")
    assert set(house.storage.objects) == before


@pytest.mark.parametrize("body", [{"window": "1h"}, {"completion_window": "soon"}, [1]])
async def test_a_body_that_says_nonsense_is_refused(house: House, body: object) -> None:
    first = await ended(house)
    answer = await ask(house, first, "resume", body)
    assert answer.status_code == 400
