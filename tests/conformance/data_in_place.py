"""Check of data in place with the official Python client: an input and files of a batch in a bucket."""

import asyncio
import gzip

import httpx
import pytest
from botocore.config import Config
from botocore.session import get_session
from openai import NotFoundError, PermissionDeniedError
from openai.types import Batch

from batchwright.contracts.api_objects.openai import BatchObject, EstimateObject, OutputLocation
from batchwright.contracts.terms import Profile
from tests.conformance.contract import Api, Table
from tests.conformance.operation import exactly
from tests.conformance.places import DATA, S3_PORT
from tests.conformance.requests import jsonl
from tests.e2e.batches import CHAT, chat_lines, until
from tests.e2e.stack import MODELS
from tests.fakes.s3 import S3Server, moto_server

TABLE = Table()


class _Bucket:
    """The objects below the location that the tenant may use."""

    def __init__(self, server: S3Server) -> None:
        self._client = get_session().create_client(  # pyright: ignore[reportUnknownMemberType]
            "s3",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        self._place = {"Bucket": server.bucket}

    def put(self, name: str, data: bytes) -> None:
        self._client.put_object(**self._place, Key=f"data/{name}", Body=data)  # pyright: ignore

    def get(self, name: str) -> bytes:
        return self._client.get_object(**self._place, Key=f"data/{name}")["Body"].read()  # pyright: ignore


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
