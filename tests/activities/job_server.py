"""Slices before a backend that runs jobs: one that is asked after them, and one that calls back."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime

import httpx
from temporalio.activity import ActivityCancellationDetails

from activities.slices.callbacks import CallbackWatch
from activities.slices.work import Attempt
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.contracts.registry import GatewayConfig, ModelConfig
from batchwright.rules.callbacks import PATH, read_token
from batchwright.rules.segments import Kind
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution_house import (
    House,
    line_of,
    ok,
    plan_slice,
)
from tests.fakes.database import MemoryDatabase

SECRET = "s" * 32
TEMPLATES = {"poll_endpoint_template": "/status/{id}", "cancel_endpoint_template": "/cancel/{id}"}


def config_of(kind: str = "poll", **jobs: object) -> ModelConfig:
    told = {"poll_interval": 0.01, **(TEMPLATES if kind == "poll" else {}), **jobs}
    return ModelConfig.model_validate(
        {"backends": [GatewayConfig(url="http://backend")], "kind": kind, "jobs": told}
    )


class JobServer:
    """A house before a backend of jobs. `says` is what it tells of a job, by its number; else it goes on."""

    def __init__(self, config: ModelConfig, **settings: object) -> None:
        self.database = MemoryDatabase()
        self.house = House(ok, config=config, **settings)
        self.house.answer = self._answer
        self.house.tools.callbacks = CallbackWatch(self.database.callbacks, self.house.settings)
        self.submits: list[httpx.Request] = []
        self.looks: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.says: dict[int, httpx.Response] = {}
        self.says_all: httpx.Response | None = None
        self.loses_storage = False  # as soon as a job is submitted
        self.taken = httpx.Response(202, json={"status": "processing"})

    @property
    def keys(self) -> list[str]:
        return [submit.headers["idempotency-key"] for submit in self.submits]

    async def die(self, running: "asyncio.Task[SliceResult]") -> None:
        """The worker is gone: its attempt writes nothing more, and the next one begins."""
        details = ActivityCancellationDetails(timed_out=True)
        self.house.environment.cancel(cancellation_details=details)
        [error] = await asyncio.gather(running, return_exceptions=True)
        assert getattr(error, "type", "") == Failure.OWNERSHIP_LOST
        self.house.next_worker()

    async def plan(self, lines: int = 3) -> list[int]:
        return await plan_slice(self.house.storage, [line_of(n) for n in range(lines)])

    async def kinds(self) -> Counter[Kind]:
        return Counter(record.kind for record in await self.house.records())

    async def jobs(self) -> list[str]:
        """The ids that lie in storage, as they were written."""
        records = [record for record in await self.house.records() if record.kind is Kind.SUBMITTED]
        found = [Attempt.model_validate_json(record.payload).job for record in records]
        return [job.id for job in found if job is not None]

    async def errors(self) -> list[dict[str, str]]:
        records = await self.house.settled()
        return [json.loads(record.payload)["error"] for record in records.values()]

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        path = asked.url.path
        if asked.method == "GET" and path.startswith("/status/"):
            self.looks[path.removeprefix("/status/")] += 1
            number = int(path.rpartition("-")[2])
            return _again(
                self.says.get(number) or self.says_all or httpx.Response(200, json={"status": "running"})
            )
        if path.startswith("/cancel/"):
            self.cancelled.append(path.removeprefix("/cancel/"))
            return httpx.Response(200, json={})
        self.submits.append(asked)
        if self.loses_storage:
            self.house.storage.failing = StorageUnavailable("away")
        if self.taken.status_code != 202:
            return _again(self.taken)
        return httpx.Response(202, json={"status": "processing", "job_id": f"job-{len(self.submits)}"})


def _again(answer: httpx.Response) -> httpx.Response:
    return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))


def done(text: str = "hi") -> httpx.Response:
    return httpx.Response(
        200, json={"status": "Completed", "result": {"echo": text, "usage": {"prompt_tokens": 3}}}
    )


class CallingServer(JobServer):
    """Its jobs call back."""

    def __init__(self, *, url: str = "http://api", **jobs: object) -> None:
        config = config_of("callback", **jobs)
        super().__init__(config, callback_url=url, callback_secret=SECRET)
        self.watch = self.house.tools.callbacks
        assert isinstance(self.watch, CallbackWatch)

    @property
    def tokens(self) -> list[str]:
        return [submit.headers["x-callback-url"].removeprefix(f"http://api{PATH}") for submit in self.submits]

    async def call(self, place: int, body: bytes | None, size: int = 0) -> None:
        found = read_token(self.tokens[place], SECRET)
        assert found is not None
        await self.database.callbacks.accept(
            found.id, body, size or len(body or b""), datetime.fromtimestamp(found.expires_at, UTC)
        )
        await self.look()

    async def look(self) -> None:
        assert isinstance(self.watch, CallbackWatch)
        await self.watch.look()
