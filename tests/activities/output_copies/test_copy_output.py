"""Copies of a batch's files to another bucket: attempts that succeed, fail, are refused, or are killed."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.output_copies.activity import OutputCopies
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.storage.base import StorageUnavailable
from batchwright.storage.s3 import multipart_upload
from batchwright.telemetry.metrics import Metrics
from tests.activities.slow_database import SlowDatabaseEnvironment
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.s3 import S3Server, s3_client
from tests.fakes.s3_proxy import S3Proxy, Seen, proxied
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage
from tests.integration.database.rows import a_file, after, an_order, an_outcome

pytestmark = pytest.mark.integration
MIB = 1024 * 1024
OUTPUT, ERRORS = bytes(range(256)) * 4096 * 20, b'{"custom_id": "1"}\n'  # 20 MiB: three parts


class Target:
    """A bucket behind a proxy, and a completed batch whose files are copied there."""

    def __init__(self, server: S3Server, proxy: S3Proxy) -> None:
        self._server, self.proxy = server, proxy
        self._folder = f"test-{token_hex(8)}"
        self.url = f"s3://{server.bucket}/{self._folder}/batches"
        self.database, self.storage, self.metrics = MemoryDatabase(), MemoryStorage(), Metrics()
        self.order = an_order(output_location=self.url)
        self.client = s3_client(server.url)

    async def end_batch(self) -> None:
        await self.database.batches.upsert(self.order)
        files = {"output": OUTPUT, "error": ERRORS}
        rows = {
            kind: a_file(f"file-{kind}", filename=f"batch_1_{kind}.jsonl", storage_key=f"of/{kind}")
            for kind in files
        }
        for kind, data in files.items():
            await self.storage.put(f"of/{kind}", data)
        outcome = an_outcome(output=rows["output"], error=rows["error"])
        await self.database.batch_ends.finish("t", "batch_1", outcome, after(30))

    async def copy(self, attempt: int = 1, **settings: object) -> OutputCopyState:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=attempt)
        return await environment.run(self.activities(**settings).copy_output, self.order)

    def activities(self, **settings: object) -> OutputCopies:
        allowed = {"data_locations": {"t": {"write": [f"s3://{self._server.bucket}/{self._folder}/"]}}}
        address = {"s3_endpoint_url": self.proxy.url, "s3_path_style": True}
        return OutputCopies(
            self.database, self.storage, load(**{**allowed, **address, **settings}), self.metrics
        )

    async def shown(self) -> OutputCopy | None:
        row = await self.database.batches.get("t", "batch_1")
        assert row is not None
        return row.output_copy

    def objects(self) -> dict[str, bytes]:
        """Return the content of all objects in the bucket's folder, by their name in the folder."""
        bucket, prefix = self._server.bucket, f"{self._folder}/"
        found = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        keys = [each["Key"] for each in found]
        read = self.client.get_object
        return {key.removeprefix(prefix): read(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def unfinished_uploads(self) -> int:
        bucket, prefix = self._server.bucket, f"{self._folder}/"
        return len(self.client.list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", []))


@pytest.fixture
async def target(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Target]:
    moto.lend_keys(monkeypatch)
    async with proxied(moto.url) as proxy:
        target = Target(moto, proxy)
        await target.end_batch()
        yield target


async def failed(target: Target, attempt: int = 1) -> str:
    """Make an attempt that fails, and check that the copy stays pending.

    Return the reason that the batch shows.
    """
    with pytest.raises(ApplicationError) as error:
        await target.copy(attempt)
    assert (error.value.type, error.value.non_retryable) == (Failure.STORAGE_UNAVAILABLE, False)
    copy = await target.shown()
    assert copy is not None
    assert copy.state is OutputCopyState.PENDING
    return copy.error


async def test_both_files_are_written_in_parts_with_names_of_the_batch(target: Target) -> None:
    assert await target.copy() is OutputCopyState.WRITTEN
    found = await asyncio.to_thread(target.objects)
    assert found == {"batches/batch_1_output.jsonl": OUTPUT, "batches/batch_1_error.jsonl": ERRORS}
    assert await target.shown() == OutputCopy(state=OutputCopyState.WRITTEN)
    assert len(target.proxy.requests("PUT uploadId")) == 3
    assert 'output_copies_total{result="written"} 1' in target.metrics.render().decode()


async def test_a_repeated_attempt_writes_nothing_more(target: Target) -> None:
    await target.copy()
    target.proxy.seen.clear()
    assert await target.copy(attempt=2) is OutputCopyState.WRITTEN
    assert target.proxy.seen == []


async def test_a_batch_without_files_has_nothing_to_write(target: Target) -> None:
    target.database = MemoryDatabase()
    await target.database.batches.upsert(target.order)
    await target.database.batch_ends.finish("t", "batch_1", an_outcome(output=None, error=None), after(30))
    assert await target.copy() is OutputCopyState.WRITTEN
    assert target.proxy.seen == []


async def test_the_copy_of_a_deleted_batch_fails_with_an_entry_in_the_log(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    target.database = MemoryDatabase()
    assert await target.copy() is OutputCopyState.FAILED
    assert 'output_copies_total{result="failed"} 1' in target.metrics.render().decode()
    (entry,) = (each for each in caplog.records if each.levelno == logging.ERROR)
    assert vars(entry)["batch_id"] == "batch_1"
    assert vars(entry)["error"] == "The batch was deleted before its files were written there."


async def test_a_worker_killed_halfway_leaves_no_parts_and_the_next_attempt_writes_all(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = asyncio.Event()

    def on_request(seen: Seen) -> None:
        if len(target.proxy.requests("PUT uploadId")) == 2:
            sent.set()

    async def no_more(bucket: object, key: str, upload_id: str) -> None:
        """Do nothing, because a killed process does not abort its upload."""

    target.proxy.on_request = on_request
    with monkeypatch.context() as killed:
        killed.setattr(multipart_upload, "abort_upload", no_more)
        attempt = asyncio.create_task(target.copy())
        await sent.wait()
        attempt.cancel()
        with suppress(asyncio.CancelledError):
            await attempt
    assert await asyncio.to_thread(target.unfinished_uploads) == 1
    assert await target.shown() is None
    assert await target.copy(attempt=2) is OutputCopyState.WRITTEN
    assert await asyncio.to_thread(target.unfinished_uploads) == 0
    assert (await asyncio.to_thread(target.objects))["batches/batch_1_output.jsonl"] == OUTPUT


async def test_parts_that_may_not_be_deleted_do_not_prevent_the_copy(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    target.proxy.fail("GET uploads", 403, "AccessDenied", times=2)
    assert await target.copy(attempt=2) is OutputCopyState.WRITTEN
    assert "parts of earlier attempts not deleted" in caplog.text


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "AccessDenied", "allow s3:PutObject there"),
        (404, "NoSuchBucket", "there is no such bucket"),
        (400, "KMS.DisabledException", "check that it exists and is enabled"),
    ],
)
async def test_a_bucket_that_refuses_is_tried_again_and_the_batch_says_why(
    target: Target, status: int, code: str, reason: str
) -> None:
    target.proxy.refuses = (status, code)
    said = await failed(target)
    assert said.startswith(f"S3 refuses to write '{target.url}/batch_1_output.jsonl': ")
    assert reason in said
    target.proxy.refuses = None
    assert await target.copy(attempt=2) is OutputCopyState.WRITTEN
    assert await target.shown() == OutputCopy(state=OutputCopyState.WRITTEN)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDown"),
        (403, "InvalidAccessKeyId"),
        (404, "404"),  # a proxy in front of the bucket has lost its route
    ],
)
async def test_a_bucket_that_is_down_is_tried_again_and_says_nothing_of_the_operators_installation(
    target: Target,
    status: int,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("batchwright.storage.s3.storage._PATIENCE_SECONDS", 0.0)
    target.proxy.refuses = (status, code)
    with caplog.at_level(logging.WARNING):
        assert await failed(target) == "Object storage is unavailable."
    assert "test-secret" not in caplog.text
    target.proxy.refuses = None
    assert await target.copy(attempt=2) is OutputCopyState.WRITTEN


async def test_an_error_of_the_own_storage_is_not_the_buckets(target: Target) -> None:
    target.storage.failing = StorageUnavailable("disk")
    assert await failed(target) == "Object storage is unavailable."
    assert await asyncio.to_thread(target.objects) == {}


async def test_a_location_that_is_no_longer_allowed_ends_the_copy(target: Target) -> None:
    for locations in ({}, {"t": {"read": [target.url]}}, {"t": {"write": [target.url + "/deeper"]}}):
        assert await target.copy(data_locations=locations) is OutputCopyState.FAILED
    copy = await target.shown()
    assert copy == OutputCopy(
        state=OutputCopyState.FAILED, error=f"Tenant 't' may no longer write to '{target.url}'."
    )
    assert target.proxy.seen == []


async def test_a_file_that_was_deleted_before_ends_the_copy(target: Target) -> None:
    await target.database.files.delete("t", "file-error")
    assert await target.copy() is OutputCopyState.FAILED
    copy = await target.shown()
    assert copy is not None
    assert copy.error == "The file 'file-error' was deleted before it was written there."


async def test_a_file_that_the_storage_does_not_find_is_tried_again(target: Target) -> None:
    await target.storage.delete("of/output")
    assert await failed(target) == "Object storage does not find a file of the batch."
    assert await asyncio.to_thread(target.unfinished_uploads) == 0
    await target.storage.put("of/output", OUTPUT)
    assert await target.copy(attempt=2) is OutputCopyState.WRITTEN


async def test_giving_up_keeps_the_last_reason_and_a_success(target: Target) -> None:
    give_up = target.activities().give_up_output_copy
    assert await ActivityEnvironment().run(give_up, target.order) is OutputCopyState.FAILED
    assert await target.shown() == OutputCopy(
        state=OutputCopyState.FAILED, error="No worker wrote the files in time."
    )
    assert await target.copy() is OutputCopyState.WRITTEN
    assert await ActivityEnvironment().run(give_up, target.order) is OutputCopyState.WRITTEN


async def test_giving_up_sends_heartbeats_while_the_database_does_not_answer(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = SlowDatabaseEnvironment(monkeypatch)
    environment.slow_down(target.database.batches, "get")
    give_up = target.activities().give_up_output_copy
    assert await environment.run(give_up, target.order) is OutputCopyState.FAILED


async def test_an_attempt_that_fails_after_the_end_leaves_the_end_as_it_is(target: Target) -> None:
    await ActivityEnvironment().run(target.activities().give_up_output_copy, target.order)
    target.storage.failing = StorageUnavailable("disk")
    with pytest.raises(ApplicationError):
        await target.copy()
    assert await target.shown() == OutputCopy(
        state=OutputCopyState.FAILED, error="No worker wrote the files in time."
    )


async def test_an_overtaken_attempt_does_not_replace_the_success(target: Target) -> None:
    await target.copy()
    await target.database.batches.record_output_copy("t", "batch_1", OutputCopy(error="late"))
    assert await target.shown() == OutputCopy(state=OutputCopyState.WRITTEN)
