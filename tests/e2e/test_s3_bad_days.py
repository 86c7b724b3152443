"""A bucket that refuses for a while in mid-batch: that costs time, and no request is asked again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from openai.types import Batch

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.fakes.s3_proxy import S3Proxy, proxied

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
WRITES = ("PUT", "PUT uploadId", "POST uploads", "POST uploadId", "DELETE")
READS = ("GET", "GET list-type", "HEAD")
REFUSED = 6  # requests, before the bucket is well again


class House(NamedTuple):
    stack: Stack
    proxy: S3Proxy

    def refuse(self, code: str, *what: str) -> None:
        for kind in what:
            self.proxy.fail(kind, 403, code, times=1_000_000)

    def heal(self) -> None:
        self.proxy.faults.clear()

    async def has_refused(self) -> bool:
        return sum(1_000_000 - fault.times for fault in self.proxy.faults) >= REFUSED


@asynccontextmanager
async def house(server: S3Server) -> AsyncGenerator[House]:
    async with proxied(server.url) as proxy:
        settings = server.settings(fresh_prefix(), proxy.url) | {"BATCHWRIGHT_STORAGE_PATIENCE_SECONDS": "2"}
        stack = dev(data=None, **server.keys, **settings)
        # In a thread: the proxy has to answer while the stack starts and stops.
        opened = await asyncio.to_thread(stack.__enter__)
        try:
            yield House(opened, proxy)
        finally:
            await asyncio.to_thread(stack.__exit__, None, None, None)


async def batch_through(house: House, code: str, *what: str) -> Batch:
    """A batch that has begun when the refusals do, and ends after them."""
    lines = chat_lines(MODELS, each=150)
    async with house.stack.client() as client:
        for model in MODELS:
            await house.stack.faults(model=model, kind="slow", seconds=1.0, rate=1.0)
        batch = await submit(client, lines)
        await settled(client, batch.id, 50)
        house.refuse(code, *what)
        await until(house.has_refused)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        house.heal()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    return done


async def test_credentials_that_expire_in_mid_batch_cost_time_and_no_line(s3: S3Server) -> None:
    async with house(s3) as it:
        done = await batch_through(it, "ExpiredToken", *WRITES, *READS)
        asked = await it.stack.asked()
    assert (done.status, done.error_file_id) == ("completed", None)
    assert set(asked.values()) == {1}


async def test_a_bucket_that_turns_read_only_in_mid_batch_costs_time_and_no_line(s3: S3Server) -> None:
    async with house(s3) as it:
        done = await batch_through(it, "AccessDenied", *WRITES)
        asked = await it.stack.asked()
    assert (done.status, done.error_file_id) == ("completed", None)
    assert set(asked.values()) == {1}
