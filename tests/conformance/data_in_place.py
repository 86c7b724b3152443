"""Checks of data in place with the official Python client: inputs and files of batches in a bucket."""

import asyncio
import gzip
from typing import Any

import httpx
import pytest
from botocore.config import Config
from botocore.session import get_session
from openai import ConflictError, NotFoundError, PermissionDeniedError
from openai.types import Batch

from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.api_objects.openai import BatchObject, OutputLocation
from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.contracts.terms import Profile
from tests.conformance.contract import Api, Table
from tests.conformance.operation import exactly
from tests.conformance.places import DATA, S3_PORT
from tests.conformance.requests import jsonl
from tests.e2e.batches import CHAT, chat_lines, ended, until
from tests.e2e.stack import MODELS
from tests.fakes.s3 import S3Server, moto_server

TABLE = Table()


class _Bucket:
    """The objects below the location that the tenant may use."""

    def __init__(self, server: S3Server) -> None:
        self._client: Any = get_session().create_client(
            "s3",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        self._place = {"Bucket": server.bucket}

    def put(self, name: str, data: bytes) -> None:
        self._client.put_object(**self._place, Key=f"data/{name}", Body=data)

    def get(self, name: str) -> bytes:
        return self._client.get_object(**self._place, Key=f"data/{name}")["Body"].read()


@TABLE.row(
    "Batches",
    "`input_file_id` may be an object that the tenant may read, also for an estimate, and "
    "`x_batchwright.output_location` a prefix where the files are written; other locations are 403",
    Profile.RELAXED,
)
async def in_place(api: Api) -> None:
    with moto_server(S3_PORT) as server:
        await server.make_bucket()
        bucket = await asyncio.to_thread(_Bucket, server)
        await asyncio.to_thread(bucket.put, "in.jsonl.gz", gzip.compress(jsonl(chat_lines(MODELS, each=2))))
        body = {"input_file_id": f"{DATA}in.jsonl.gz", "endpoint": CHAT}
        estimate = await api.client.post("/batches/x/estimate", cast_to=httpx.Response, body=body)
        assert exactly(EstimateObject, estimate).lines == 2 * len(MODELS)
        elsewhere = {"input_file_id": "s3://batchwright-test/other/in.jsonl", "endpoint": CHAT}
        for path in ("/batches/x/estimate", "/batches"):
            with pytest.raises(PermissionDeniedError) as refused:
                await api.client.post(path, cast_to=httpx.Response, body=elsewhere)
            assert (refused.value.code, refused.value.param) == ("location_not_allowed", "input_file_id")
        wrong = {**body, "x_batchwright": {"output_location": "s3://batchwright-test/other"}}
        with pytest.raises(PermissionDeniedError) as refused:
            await api.client.post("/batches", cast_to=httpx.Response, body=wrong)
        assert refused.value.param == "x_batchwright.output_location"
        missing = {**body, "input_file_id": f"{DATA}gone.jsonl"}
        with pytest.raises(NotFoundError) as gone:
            await api.client.post("/batches/x/estimate", cast_to=httpx.Response, body=missing)
        assert gone.value.code == "input_not_found"

        location = f"{DATA}out"
        extension = {"x_batchwright": {"output_location": location}}
        batch = await api.client.post("/batches", cast_to=Batch, body={**body, **extension})

        async def shown() -> BatchObject:
            answer = await api.client.get(f"/batches/{batch.id}", cast_to=httpx.Response)
            return exactly(BatchObject, answer)

        async def is_written() -> bool:
            found = (await shown()).x_batchwright.output_location
            return found == OutputLocation(url=location, state="written", error=None)

        await until(is_written)
        done = await shown()
        assert (done.status, done.x_batchwright.input_location) == ("completed", f"{DATA}in.jsonl.gz")
        output = await api.client.files.content(done.output_file_id or "")
        assert await asyncio.to_thread(bucket.get, f"out/{batch.id}_output.jsonl") == output.content


@TABLE.row(
    "Operation",
    "the input of a schedule may be an object that the tenant may read, and each of its batches reads the "
    "object again; other locations are 403",
    Profile.RELAXED,
)
async def scheduled_in_place(api: Api) -> None:
    with moto_server(S3_PORT) as server:
        await server.make_bucket()
        bucket = await asyncio.to_thread(_Bucket, server)
        elsewhere = {"input_file_id": "s3://batchwright-test/other/in.jsonl", "endpoint": CHAT}
        wrong = {"cron": "30 2 1 7 *", "batch": elsewhere}
        with pytest.raises(PermissionDeniedError) as refused:
            await api.client.post("/x/schedules", cast_to=httpx.Response, body=wrong)
        assert (refused.value.code, refused.value.param) == ("location_not_allowed", "batch.input_file_id")
        body = {**wrong, "batch": {**elsewhere, "input_file_id": f"{DATA}daily.jsonl"}}
        made = await api.client.post("/x/schedules", cast_to=httpx.Response, body=body)
        path = f"/x/schedules/{exactly(ScheduleObject, made).id}"

        for runs, each in ((1, 1), (2, 2)):
            await asyncio.to_thread(bucket.put, "daily.jsonl", jsonl(chat_lines(MODELS, each=each)))
            batch = await ended(api.client, await _run_of(api, path, runs))
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.completed == each * len(MODELS)
        await api.client.delete(path, cast_to=httpx.Response)


async def _run_of(api: Api, path: str, runs: int) -> str:
    """Trigger a schedule, wait until it has this number of runs, and return the id of the last batch."""
    found: list[ScheduleObject] = []

    async def is_triggered() -> bool:
        try:
            await api.client.post(f"{path}/trigger", cast_to=httpx.Response)
        except ConflictError:  # its last run has not ended
            return False
        return True

    async def has_run() -> bool:
        found.append(exactly(ScheduleObject, await api.client.get(path, cast_to=httpx.Response)))
        return len(found[-1].runs) == runs

    await until(is_triggered)
    await until(has_run)
    batch_id = found[-1].runs[0].batch_id
    assert batch_id is not None
    return batch_id
