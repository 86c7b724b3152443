"""A running batch whose results are read over the API."""

import asyncio
from collections.abc import AsyncIterable
from functools import cached_property

import httpx
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import StreamingResponse

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.error_handlers import handle_errors
from batchwright.api.middleware.head_method import HeadMethodMiddleware
from batchwright.api.routes.results import ResultRoutes
from batchwright.api.services.live_results.result_stream import LiveResults, ResultQuery
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.rules.results.segment_format import SegmentRecord
from batchwright.telemetry.metrics import Metrics
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, SettledBatch
from tests.fakes.api import Served
from tests.fakes.gateway import MemoryGateway
from tests.fakes.settings import load

SCOPE: dict[str, object] = {"type": "http", "method": "GET", "path": "/", "headers": list[object]()}


class LiveBatch:
    """A running batch, and an API that reads it. The last lines are `duplicates` copies of line 0."""

    def __init__(self, batch: SettledBatch, duplicates: int = 0) -> None:
        self.batch, self._written = batch, 0
        request = batch.request()
        shares = [
            share.model_copy(update={"duplicates": duplicates if n == 0 else 0})
            for n, share in enumerate(request.models)
        ]
        self.request = request.model_copy(update={"models": shares})
        self.gateway = MemoryGateway()
        self.gateway.ingestions[BATCH_ID] = IngestResult(
            ingest_prefix=batch.prefix, models=shares, total=request.total, unserved=len(batch.unserved)
        )
        self.deps = ApiDependencies(
            load(), batch.tables, batch.storage, self.gateway, Served(), Metrics(), recent_seconds=0
        )

    @cached_property
    def app(self) -> FastAPI:
        """An application with only the route of results. Building all routes takes longer than most tests."""
        app, router = FastAPI(), ResultRoutes(self.deps).router()
        app.include_router(router)
        app.add_middleware(HeadMethodMiddleware)
        handle_errors(app, [router])
        return app

    async def settle(self, *records: SegmentRecord) -> str:
        """Store the results as one segment, and return its key."""
        self._written += 1
        return await self.batch.put(list(records), sequence=self._written)

    async def get(self, tenant: str = TENANT, **query: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://api") as http:
            path = f"/v1/batches/{BATCH_ID}/x/results"
            return await http.get(path, params=query, headers={"X-Tenant": tenant})

    async def follow(self, results: LiveResults, query: ResultQuery) -> "Follower":
        row = await self.deps.database.batches.get(TENANT, BATCH_ID)
        assert row is not None
        response = await results.response(Request(SCOPE, silent), row, query)
        assert isinstance(response, StreamingResponse)
        return Follower(response.body_iterator)

    async def finish(self) -> None:
        await self.batch.finalize(self.request)


async def silent() -> dict[str, object]:
    """Return a message that never comes: the client sends nothing, and stays connected."""
    return await asyncio.get_running_loop().create_future()


class Follower:
    """A reader of a response that lasts until the batch has ended. `data` contains the bytes read so far."""

    def __init__(self, pieces: AsyncIterable[str | bytes | memoryview]) -> None:
        self._pieces = aiter(pieces)
        self.data = b""

    async def read_lines(self, count: int) -> None:
        """Read until `count` lines have been read in total."""
        while self.data.count(b"\n") < count:
            self.data += data_of(await anext(self._pieces))

    async def read_to_end(self) -> None:
        async for piece in self._pieces:
            self.data += data_of(piece)


def data_of(piece: str | bytes | memoryview) -> bytes:
    assert isinstance(piece, bytes)
    return piece


def lines_of(*records: SegmentRecord) -> bytes:
    return b"".join(record.payload + b"\n" for record in records)
