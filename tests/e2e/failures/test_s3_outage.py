"""A bucket rejects requests while a batch runs: the batch is delayed, and no line is sent again."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types import Batch

from tests.clients import http_client
from tests.conftest import S3_SERVERS
from tests.constants import with_constants
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.fakes.s3_proxy import S3Proxy, proxied

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
WRITES = ("PUT", "PUT uploadId", "POST uploads", "POST uploadId", "DELETE")
READS = ("GET", "GET list-type", "HEAD")
REFUSED = 6  # requests, before the bucket is well again


class StackOnS3(NamedTuple):
    stack: Stack
    proxy: S3Proxy

    def refuse(self, code: str, *what: str) -> None:
        for kind in what:
            self.proxy.fail(kind, 403, code, times=1_000_000)

    def heal(self) -> None:
        self.proxy.faults.clear()

    async def has_refused(self) -> bool:
        return sum(1_000_000 - fault.times for fault in self.proxy.faults) >= REFUSED


@pytest.fixture(scope="module", params=S3_SERVERS)
def server(request: pytest.FixtureRequest) -> S3Server:
    return request.getfixturevalue(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def s3_stack(server: S3Server) -> AsyncGenerator[StackOnS3]:
    async with proxied(server.url) as proxy:
        settings = server.settings(fresh_prefix(), proxy.url) | with_constants(storage_patience_seconds=2)
        # A worker on a busy machine must not count as lost: its slices would be sent again elsewhere.
        settings["BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS"] = "120"
        stack = dev(data=None, **server.keys, **settings)
        # In a thread: the proxy has to answer while the stack starts and stops.
        opened = await asyncio.to_thread(stack.__enter__)
        try:
            yield StackOnS3(opened, proxy)
        finally:
            await asyncio.to_thread(stack.__exit__, None, None, None)


@pytest.fixture
def it(s3_stack: StackOnS3) -> StackOnS3:
    """The stack on S3. Its bucket does not reject any requests yet."""
    s3_stack.heal()
    return s3_stack


async def batch_through(s3_stack: StackOnS3, code: str, *what: str) -> Batch:
    """Run a batch, let the bucket reject requests in the middle of it, and return the ended batch.

    The backend answers the lines of one model only after the rejections have begun.

    Args:
        code: error code of the rejections.
        what: kinds of requests that are rejected.
    """
    lines = chat_lines(MODELS, each=150)
    async with s3_stack.stack.client() as client:
        async with s3_stack.stack.backend.hold(MODELS[0]) as hold:
            batch = await hold.submit(client, lines)
            await settled(client, batch.id, 50)
            s3_stack.refuse(code, *what)
        await until(s3_stack.has_refused)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        s3_stack.heal()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    return done


async def test_credentials_that_expire_during_a_batch_delay_it_and_lose_no_line(it: StackOnS3) -> None:
    done = await batch_through(it, "ExpiredToken", *WRITES, *READS)
    requests = await it.stack.requests_by_id()
    assert (done.status, done.error_file_id) == ("completed", None)
    assert set(requests.values()) == {1}


async def test_a_bucket_that_becomes_read_only_during_a_batch_delays_it_and_loses_no_line(
    it: StackOnS3,
) -> None:
    done = await batch_through(it, "AccessDenied", *WRITES)
    requests = await it.stack.requests_by_id()
    assert (done.status, done.error_file_id) == ("completed", None)
    assert set(requests.values()) == {1}


async def test_files_that_cannot_be_written_are_abandoned_and_a_resumption_writes_them(
    it: StackOnS3,
) -> None:
    """The bucket refuses reads when the last lines get their answers. So all results are stored, but no file
    can be written.
    """
    lines = chat_lines(MODELS, each=50)
    async with (
        it.stack.client() as client,
        http_client(base_url=it.stack.now.api) as http,
    ):
        async with it.stack.backend.hold(MODELS[0]) as hold:
            batch = await hold.submit(client, lines)
            await settled(client, batch.id, 100)
            it.refuse("AccessDenied", *READS)
        path = f"/admin/batches/{batch.id}"

        async def is_abandoned() -> bool:
            return (await http.post(path + "/abandon")).status_code == 200

        await until(is_abandoned)
        await until(lambda: has_status(client, batch.id, "failed"))
        it.heal()
        resumed = await client.post(f"/batches/{batch.id}/x/resume", cast_to=Batch)
        done = await ended(client, resumed.id)
        await check_conservation(client, done, lines)
        requests = await it.stack.requests_by_id()
    assert done.status == "completed"
    assert set(requests.values()) == {1}


async def has_status(client: AsyncOpenAI, batch_id: str, status: str) -> bool:
    return (await client.batches.retrieve(batch_id)).status == status
