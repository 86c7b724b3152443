"""Ended batches, and requests for their x/retry and x/resume."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import httpx

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from tests.fakes.api import ApiFixture, read
from tests.fakes.ended_batch import INPUT, SYSTEM, Ended


async def created(api: ApiFixture) -> BatchObject:
    file = await api.upload(INPUT)
    body = {
        "input_file_id": file.id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "3h",
        "metadata": {"team": "red"},
    }
    return read(await api.post(body), BatchObject)


async def ended(
    api: ApiFixture, status: BatchStatus = BatchStatus.EXPIRED, failed: Sequence[int] = (0, 2, 5)
) -> str:
    batch = await created(api)
    await Ended(api.database, api.storage, api.order(batch.id)).finish(status, failed)
    return batch.id


async def ask(api: ApiFixture, batch_id: str, kind: str, body: object = None) -> httpx.Response:
    content = None if body is None else json.dumps(body)
    return await api.http.post(f"/v1/batches/{batch_id}/x/{kind}", content=content)


async def content(api: ApiFixture, file_id: str) -> bytes:
    return (await api.http.get(f"/v1/files/{file_id}/content")).content


async def ended_without_files(api: ApiFixture) -> str:
    batch, now = await created(api), datetime.now(UTC)
    await api.database.batch_ends.end_without_files(
        "default", batch.id, BatchStatus.FAILED, SYSTEM, now, now + timedelta(hours=1)
    )
    return batch.id
