"""Requests at the same instant, to an API with real database tables."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.api.app import build_app
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.api import LINE, Served
from tests.fakes.ended_batch import INPUT, Ended
from tests.fakes.gateway import MemoryGateway
from tests.fakes.storage import MemoryStorage
from tests.unit.api.routes.anthropic.message_batch_requests import PARAMS, PATH, VERSION

pytestmark = pytest.mark.integration
BODY = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
UPLOAD = {"filename": "a.jsonl", "purpose": "batch", "bytes": len(LINE), "mime_type": "a/b"}


class Api:
    def __init__(self, database: Database, **limits: int) -> None:
        self.database, self.storage = database, MemoryStorage()
        self.temporal = MemoryGateway()
        settings = load(**{"max_live_batches": 0, **limits})
        services = ApiDependencies(settings, database, self.storage, self.temporal, Served("m"), Metrics())
        app = build_app(services, BatchEvents(services))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a")

    async def send(self, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        file = {"file": ("a.jsonl", LINE)}
        return await self.http.post("/v1/files", files=file, data={"purpose": "batch"}, headers=headers)

    async def create(self, file_id: str, key: str) -> httpx.Response:
        body = {**BODY, "input_file_id": file_id}
        return await self.http.post("/v1/batches", json=body, headers={"Idempotency-Key": key})

    async def ended(self) -> str:
        """Create an ended batch with failed lines and return its id."""
        files = {"file": ("a.jsonl", INPUT)}
        file = (await self.http.post("/v1/files", files=files, data={"purpose": "batch"})).json()
        batch = (await self.http.post("/v1/batches", json={**BODY, "input_file_id": file["id"]})).json()["id"]
        ended = Ended(self.database, self.storage, self.temporal.orders[batch])
        await ended.finish(BatchStatus.EXPIRED, failed=(0, 2, 5))
        return batch

    async def retry(self, batch_id: str) -> httpx.Response:
        return await self.http.post(f"/v1/batches/{batch_id}/x/retry")

    async def resume(self, batch_id: str) -> httpx.Response:
        return await self.http.post(f"/v1/batches/{batch_id}/x/resume")


@pytest.fixture
async def api(database: Database) -> AsyncGenerator[Api]:
    api = Api(database)
    async with api.http:
        yield api


async def test_creates_with_one_key_at_the_same_instant_are_one_batch(api: Api) -> None:
    file_id = (await api.send()).json()["id"]
    answers = await asyncio.gather(*(api.create(file_id, "k") for _ in range(12)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert list(api.temporal.orders) == [answers[0].json()["id"]]


async def test_files_with_one_key_at_the_same_instant_are_one_file(api: Api) -> None:
    answers = await asyncio.gather(*(api.send("k") for _ in range(12)))
    assert len({answer.content for answer in answers}) == 1
    assert len(api.storage.objects) == 1


async def test_of_two_requests_with_one_key_one_wins_and_the_other_gets_an_error(api: Api) -> None:
    files = [(await api.send()).json()["id"] for _ in range(2)]
    answers = await asyncio.gather(*(api.create(files[i % 2], "k") for i in range(12)))
    assert sorted(answer.status_code for answer in answers) == [200] * 6 + [409] * 6
    assert len(api.temporal.orders) == 1


async def test_a_file_deleted_while_its_batch_is_created_is_kept_or_deleted_completely(api: Api) -> None:
    for number in range(15):
        file_id = (await api.send()).json()["id"]
        created, deleted = await asyncio.gather(
            api.create(file_id, f"k{number}"), api.http.delete(f"/v1/files/{file_id}")
        )
        content = await api.http.get(f"/v1/files/{file_id}/content")
        assert created.status_code == 200  # a batch of a deleted file fails in validation
        assert (deleted.status_code, content.status_code) in ((200, 404), (409, 200))


async def test_completions_and_a_cancel_at_the_same_instant_agree(api: Api) -> None:
    for _ in range(10):
        upload = (await api.http.post("/v1/uploads", json=UPLOAD)).json()["id"]
        path = f"/v1/uploads/{upload}"
        part = (await api.http.post(path + "/parts", files={"data": ("b", LINE)})).json()["id"]
        complete = [api.http.post(path + "/complete", json={"part_ids": [part]}) for _ in range(3)]
        *done, cancelled = await asyncio.gather(*complete, api.http.post(path + "/cancel"))
        statuses = {answer.status_code for answer in done}
        assert (statuses, cancelled.status_code) in (({200}, 400), ({400}, 200))
        assert len({answer.content for answer in done}) == 1


async def test_creates_with_one_key_at_the_same_instant_take_one_place_of_the_tenant(
    database: Database,
) -> None:
    api = Api(database, max_live_batches=1)
    async with api.http:
        file_id = (await api.send()).json()["id"]
        answers = await asyncio.gather(*(api.create(file_id, "k") for _ in range(12)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(api.temporal.orders) == 1


async def test_files_and_uploads_with_one_key_at_the_same_instant_need_room_for_one(
    database: Database,
) -> None:
    api = Api(database, max_stored_bytes=2 * len(LINE))
    async with api.http:
        files = await asyncio.gather(*(api.send("k") for _ in range(6)))
        key = {"Idempotency-Key": "k"}
        uploads = await asyncio.gather(
            *(api.http.post("/v1/uploads", json=UPLOAD, headers=key) for _ in range(6))
        )
    assert {answer.status_code for answer in [*files, *uploads]} == {200}


@pytest.mark.parametrize("limit", [{"max_live_batches": 1}, {"max_stored_bytes": 300}])
async def test_message_batches_with_one_key_at_the_same_instant_need_room_for_one(
    database: Database, limit: dict[str, int]
) -> None:
    api = Api(database, **limit)
    headers = {**VERSION, "Idempotency-Key": "k"}
    requests = [{"custom_id": "a" * 64, "params": PARAMS}]
    async with api.http:
        answers = await asyncio.gather(
            *(api.http.post(PATH, json={"requests": requests}, headers=headers) for _ in range(6))
        )
        other = await api.http.post(PATH, json={"requests": requests}, headers=VERSION)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert other.status_code == 429
    [order] = api.temporal.orders.values()
    file = await database.files.get("default", order.input_file_id)
    assert file is not None
    assert list(api.storage.objects) == [file.storage_key]


@pytest.mark.parametrize("limit", [{"max_enqueued_lines": 1}, {"max_stored_bytes": 40}])
async def test_calls_with_one_key_at_the_same_instant_need_room_for_one(
    database: Database, limit: dict[str, int]
) -> None:
    api = Api(database, **limit)
    call, headers = {"model": "m", "input": "a", "background": True}, {"Idempotency-Key": "k"}
    async with api.http:
        answers = await asyncio.gather(
            *(api.http.post("/v1/responses", json=call, headers=headers) for _ in range(6))
        )
        other = await api.http.post("/v1/responses", json=call)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert other.status_code == 429


async def test_creates_at_the_same_instant_are_no_more_batches_than_a_tenant_may_have(
    database: Database,
) -> None:
    api = Api(database, max_live_batches=3)
    async with api.http:
        file_id = (await api.send()).json()["id"]
        answers = await asyncio.gather(*(api.create(file_id, f"k{n}") for n in range(12)))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 9
    assert len(api.temporal.orders) == 3


async def test_files_at_the_same_instant_are_no_more_bytes_than_a_tenant_may_store(
    database: Database,
) -> None:
    api = Api(database, max_stored_bytes=3 * len(LINE))
    async with api.http:
        keyless = [api.send() for _ in range(6)]
        keyed = [api.send(f"k{n}") for n in range(6)]
        answers = await asyncio.gather(*keyless, *keyed)
        uploads = await asyncio.gather(*(api.http.post("/v1/uploads", json=UPLOAD) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 9
    assert [answer.status_code for answer in uploads] == [429] * 3
    assert len(api.storage.objects) == 3


async def test_uploads_announced_at_the_same_instant_are_no_more_bytes_either(
    database: Database,
) -> None:
    api = Api(database, max_stored_bytes=2 * len(LINE))
    async with api.http:
        answers = await asyncio.gather(*(api.http.post("/v1/uploads", json=UPLOAD) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 6


async def test_parts_at_the_same_instant_are_no_more_bytes_than_a_tenant_may_store(
    database: Database,
) -> None:
    api = Api(database, max_stored_bytes=140)
    async with api.http:
        paths = list[str]()
        for _ in range(8):  # each part adds 20 bytes to the announced 10: the quota has room for three parts
            upload = await api.http.post("/v1/uploads", json={**UPLOAD, "bytes": 10})
            paths.append(f"/v1/uploads/{upload.json()['id']}/parts")
        file = {"data": ("part", b"x" * 30)}
        answers = await asyncio.gather(*(api.http.post(path, files=file) for path in paths))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
    assert await database.quotas.stored("default") == 140
    assert len(api.storage.objects) == 3


async def test_retries_at_the_same_instant_copy_no_more_bytes_than_a_tenant_may_store(api: Api) -> None:
    batches = [await api.ended() for _ in range(9)]
    first = (await api.retry(batches.pop())).json()["input_file_id"]
    size = (await api.http.get(f"/v1/files/{first}")).json()["bytes"]
    room = await api.database.quotas.stored("default") + 3 * size
    await api.database.quotas.change("default", {"stored_bytes": room}, datetime.now(UTC))
    before = len(api.storage.objects)
    answers = await asyncio.gather(*(api.retry(batch) for batch in batches))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
    assert await api.database.quotas.stored("default") == room
    assert len(api.storage.objects) == before + 3


async def test_resumes_of_one_batch_at_the_same_instant_take_one_place_of_the_tenant(
    database: Database,
) -> None:
    api = Api(database, max_live_batches=1)
    async with api.http:
        ended = await api.ended()
        answers = await asyncio.gather(*(api.resume(ended) for _ in range(12)))
        another = await api.http.post("/v1/batches", json={**BODY, "input_file_id": "file-" + "0" * 32})
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert another.status_code == 429


async def test_resumes_of_different_batches_at_the_same_instant_are_no_more_than_a_tenant_may_have(
    database: Database,
) -> None:
    api = Api(database, max_live_batches=3)
    async with api.http:
        batches = [await api.ended() for _ in range(9)]
        answers = await asyncio.gather(*(api.resume(batch) for batch in batches))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 6
