"""Estimates and checks of objects in a bucket: nothing is copied, and the errors are those of ingestion."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from aioboto3 import Session
from botocore.loaders import JSONFileLoader, create_loader
from typer.testing import CliRunner, Result

from batchwright.api.services.batches import cost_estimate_runner as estimates
from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.rules.input.compression import zstd
from batchwright.starter.__main__ import app
from tests.fakes.api import error_of, open_api, read
from tests.fakes.data_bucket import DataBucket, data_bucket
from tests.fakes.s3 import S3Server
from tests.fakes.s3_proxy import Seen

pytestmark = pytest.mark.integration

BODY = {"model": "llama", "messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 100}
LINES = b"".join(json.dumps({"custom_id": f"q-{n}", "body": BODY}).encode() + b"\n" for n in range(3))
MIB = 1024 * 1024


@pytest.fixture
async def bucket(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[DataBucket]:
    async with data_bucket(moto, monkeypatch) as bucket:
        yield bucket


async def estimate(bucket: DataBucket, url: str, **settings: object) -> EstimateObject:
    """Return the estimate of the input, and check that nothing was stored for it."""
    async with open_api(**bucket.settings("default") | settings) as api:
        api.served.prices = {"llama": PriceConfig(currency="EUR", request="0.01")}
        body = {"input_file_id": url, "endpoint": "/v1/chat/completions"}
        answer = await api.http.post("/v1/batches/x/estimate", json=body)
        assert (api.storage.objects, api.database.rows.files, api.database.rows.batches) == ({}, {}, {})
        return read(answer, EstimateObject)


async def refusal(bucket: DataBucket, url: str, **settings: object) -> tuple[int, str | None, str]:
    """Return the status, the code and the message with which an estimate of the input is refused."""
    async with open_api(**bucket.settings("default") | settings) as api:
        body = {"input_file_id": url, "endpoint": "/v1/chat/completions"}
        answer = await api.http.post("/v1/batches/x/estimate", json=body)
        error = error_of(answer)
        assert error.param == "input_file_id"
        assert api.storage.objects == {}
        return answer.status_code, error.code, error.message


def validate(bucket: DataBucket, url: str, *options: str) -> Result:
    environment = {"BATCHWRIGHT_S3_ENDPOINT_URL": bucket.proxy.url, "BATCHWRIGHT_S3_PATH_STYLE": "true"}
    return CliRunner().invoke(app, ["validate", url, "--json", *options], env=environment)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
async def test_an_object_is_estimated_like_the_uploaded_file(bucket: DataBucket, pack: type[bytes]) -> None:
    url = await asyncio.to_thread(bucket.put, "in.jsonl", pack(LINES))
    found = await estimate(bucket, url)
    assert (found.lines, found.max_output_tokens, found.errors) == (3, 300, None)
    assert found.cost is not None
    assert found.cost.at_most == "0.03"
    async with open_api() as api:
        file = await api.upload(LINES)
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
        uploaded = read(await api.http.post("/v1/batches/x/estimate", json=body), EstimateObject)
    assert uploaded.input_tokens == found.input_tokens > 0
    report = json.loads((await asyncio.to_thread(validate, bucket, url, "--estimate")).stdout)
    assert (report["valid"], report["lines"], report["models"]) == (True, 3, {"llama": 3})
    assert report["estimate"]["input_tokens"] == found.input_tokens


async def test_all_estimates_of_a_process_use_one_client_of_s3_which_is_not_built_on_the_event_loop(
    bucket: DataBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [await asyncio.to_thread(bucket.put, f"{number}.jsonl", LINES) for number in range(3)]
    builders, readers = list[threading.Thread](), set[threading.Thread]()
    build, load = cast("Any", Session).client, cast("Any", JSONFileLoader).load_file

    def client(*args: Any, **options: Any) -> Any:
        builders.append(threading.current_thread())
        return build(*args, **options)

    def load_file(*args: Any) -> Any:
        if (found := load(*args)) is not None:
            readers.add(threading.current_thread())
        return found

    monkeypatch.setattr("botocore.session.create_loader", create_loader)  # without the cache of the tests
    monkeypatch.setattr(Session, "client", client)
    monkeypatch.setattr(JSONFileLoader, "load_file", load_file)
    async with open_api(**bucket.settings("default")) as api:

        async def lines(url: str) -> int:
            body = {"input_file_id": url, "endpoint": "/v1/chat/completions"}
            return read(await api.http.post("/v1/batches/x/estimate", json=body), EstimateObject).lines

        assert await asyncio.gather(*map(lines, urls[:2])) == [3, 3]
        assert await lines(urls[2]) == 3
    assert len(builders) == 1
    assert readers
    assert threading.current_thread() not in {*builders, *readers}


async def test_errors_of_lines_are_listed(bucket: DataBucket) -> None:
    url = await asyncio.to_thread(bucket.put, "in.jsonl.gz", gzip.compress(LINES + b"{}\n" + LINES))
    found = await estimate(bucket, url)
    assert found.errors is not None
    assert {(error.code, error.line) for error in found.errors.data} >= {
        ("missing_required_parameter", 4),
        ("duplicate_custom_id", 5),
    }
    checked = await asyncio.to_thread(validate, bucket, url)
    assert (checked.exit_code, json.loads(checked.stdout)["lines"]) == (1, 7)


async def test_a_location_that_is_not_allowed_is_refused_before_it_is_read(bucket: DataBucket) -> None:
    for url in ("s3://other/in.jsonl", "s3://batchwright-test/in.jsonl"):
        assert (await refusal(bucket, url))[:2] == (403, "location_not_allowed")
    for locations in ({"red": {"read": [bucket.location]}}, {"default": {"write": [bucket.location]}}):
        refused = await refusal(bucket, bucket.location + "in.jsonl", data_locations=locations)
        assert refused[:2] == (403, "location_not_allowed")
    assert bucket.proxy.seen == []


async def test_a_url_of_another_form_is_refused(bucket: DataBucket) -> None:
    for name in ("", "a/../in.jsonl", "a//in.jsonl", "x" * 2_000):
        assert (await refusal(bucket, bucket.location + name))[:2] == (400, "invalid_value")
    assert (await asyncio.to_thread(validate, bucket, bucket.location)).exit_code == 3


async def test_an_object_that_does_not_exist_is_not_found(bucket: DataBucket) -> None:
    url = bucket.location + "gone.jsonl"
    status, code, message = await refusal(bucket, url)
    assert (status, code, f"There is no object '{url}'" in message) == (404, "input_not_found", True)
    checked = await asyncio.to_thread(validate, bucket, url)
    (error,) = json.loads(checked.stdout)["errors"]
    assert (checked.exit_code, error["code"], error["message"]) == (1, code, message)


async def test_an_object_that_is_replaced_while_it_is_read_is_a_conflict(bucket: DataBucket) -> None:
    url = await asyncio.to_thread(bucket.put, "in.jsonl", LINES + b" " * 3 * MIB)

    def replace(seen: Seen) -> None:
        if len(bucket.proxy.requests("GET")) == 2:
            bucket.put("in.jsonl", LINES + b"\n" * 3 * MIB)

    bucket.proxy.on_request = replace
    bucket.proxy.cut("GET", after=MIB + 1000)
    assert (await refusal(bucket, url))[:2] == (409, "input_changed")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (gzip.compress(bytes(200 * MIB), 1), (413, "input_too_large")),
        (gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * MIB, (413, "input_too_large")),
        (bytes.fromhex("502a4d1800000000") * 2_000, (400, "damaged_archive")),
        (gzip.compress(LINES)[:-3], (400, "damaged_archive")),
        (LINES + b"\n" * MIB, (413, "input_too_large")),
    ],
    ids=["bomb", "blocks without bytes", "empty members", "cut", "plain"],
)
async def test_an_object_that_ingestion_would_refuse_is_refused(
    bucket: DataBucket, data: bytes, answer: tuple[int, str]
) -> None:
    url = await asyncio.to_thread(bucket.put, "in.jsonl", data)
    assert (await refusal(bucket, url, max_batch_file_bytes=MIB))[:2] == answer


async def test_an_object_that_the_quota_does_not_allow_to_copy_is_refused(bucket: DataBucket) -> None:
    url = await asyncio.to_thread(bucket.put, "in.jsonl", LINES)
    status, code, _ = await refusal(bucket, url, max_stored_bytes=len(LINES) - 1)
    assert (status, code) == (400, "storage_quota_exceeded")


async def test_an_object_that_s3_refuses_to_return_is_unreadable(bucket: DataBucket) -> None:
    bucket.proxy.refuses = (403, "AccessDenied")
    status, code, message = await refusal(bucket, bucket.location + "in.jsonl")
    assert (status, code, "allow s3:GetObject" in message) == (400, "input_unreadable", True)


async def test_while_s3_does_not_respond_nothing_is_estimated(
    bucket: DataBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright.storage.s3.storage._PATIENCE_SECONDS", 0.0)
    bucket.proxy.refuses = (503, "SlowDown")
    async with open_api(**bucket.settings("default")) as api:
        body = {"input_file_id": bucket.location + "in.jsonl", "endpoint": "/v1/chat/completions"}
        answer = await api.http.post("/v1/batches/x/estimate", json=body)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    checked = await asyncio.to_thread(validate, bucket, bucket.location + "in.jsonl")
    assert (checked.exit_code, "SlowDown" in checked.stderr) == (3, True)


async def test_an_object_that_is_read_too_slowly_is_given_up(
    bucket: DataBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await asyncio.to_thread(bucket.put, "in.jsonl", LINES)
    monkeypatch.setattr(estimates, "_MAX_SECONDS", 0.0)
    assert (await refusal(bucket, url))[:2] == (503, "estimate_too_slow")


async def test_in_the_profile_strict_a_url_is_no_file(bucket: DataBucket) -> None:
    async with open_api(profile="strict", **bucket.settings("default")) as api:
        body = {"input_file_id": bucket.location + "in.jsonl", "endpoint": "/v1/chat/completions"}
        assert (await api.http.post("/v1/batches/x/estimate", json=body)).status_code == 404
