"""Worker with a fake backend that runs jobs. The worker polls the backend, or the backend calls back."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime

import httpx
from temporalio.activity import ActivityCancellationDetails

from batchwright.activities.execution.slice_state.line_queue import LineAttempt
from batchwright.activities.services.backend_job_callbacks import CallbackWatch
from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH, verify_token
from batchwright.rules.results.segment_format import RecordKind
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution.fixture import ExecutionFixture, line_of, ok, plan_slice
from tests.fakes.memory_database import MemoryDatabase

SECRET = "s" * 32
TEMPLATES = {"poll_endpoint_template": "/status/{id}", "cancel_endpoint_template": "/cancel/{id}"}


def config_of(kind: str = "poll", **jobs: object) -> ModelConfig:
    job_config = {"poll_interval": 0.01, **(TEMPLATES if kind == "poll" else {}), **jobs}
    return ModelConfig.model_validate(
        {"backends": [GatewayConfig(url="http://backend")], "kind": kind, "jobs": job_config}
    )


class JobServer:
    """A worker with a fake backend that runs jobs. The worker polls the backend for their results.

    `statuses` maps the number of a job, counted from 1, to the response to its polls. Jobs that are not in it
    are still running.
    """

    def __init__(self, config: ModelConfig, **settings: object) -> None:
        self.database = MemoryDatabase()
        self.execution = ExecutionFixture(ok, config=config, **settings)
        self.execution.answer = self._answer
        self.execution.context.callbacks = CallbackWatch(self.database.callbacks, self.execution.settings)
        self.submits: list[httpx.Request] = []
        self.polls: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.statuses: dict[int, httpx.Response] = {}
        self.every_status: httpx.Response | None = None
        self.loses_storage = False  # as soon as a job is submitted
        self.taken = httpx.Response(202, json={"status": "processing"})

    @property
    def keys(self) -> list[str]:
        return [submit.headers["idempotency-key"] for submit in self.submits]

    async def die(self, running: "asyncio.Task[SliceResult]") -> None:
        """Crash the worker: the running attempt of the activity stops and writes nothing, and the next
        attempt begins.
        """
        details = ActivityCancellationDetails(timed_out=True)
        self.execution.environment.cancel(cancellation_details=details)
        [error] = await asyncio.gather(running, return_exceptions=True)
        assert getattr(error, "type", "") == Failure.OWNERSHIP_LOST
        self.execution.next_worker()

    async def plan(self, lines: int = 3) -> list[int]:
        return await plan_slice(self.execution.storage, [line_of(n) for n in range(lines)])

    async def kinds(self) -> Counter[RecordKind]:
        return Counter(record.kind for record in await self.execution.records())

    async def jobs(self) -> list[str]:
        """Return the ids of the submitted jobs that are recorded in storage, in the order of recording."""
        records = [record for record in await self.execution.records() if record.kind is RecordKind.SUBMITTED]
        found = [LineAttempt.model_validate_json(record.payload).job for record in records]
        return [job.id for job in found if job is not None]

    async def errors(self) -> list[dict[str, str]]:
        records = await self.execution.settled()
        return [json.loads(record.payload)["error"] for record in records.values()]

    async def _answer(self, http_request: httpx.Request) -> httpx.Response:
        path = http_request.url.path
        if http_request.method == "GET" and path.startswith("/status/"):
            self.polls[path.removeprefix("/status/")] += 1
            number = int(path.rpartition("-")[2])
            return _again(
                self.statuses.get(number)
                or self.every_status
                or httpx.Response(200, json={"status": "running"})
            )
        if path.startswith("/cancel/"):
            self.cancelled.append(path.removeprefix("/cancel/"))
            return httpx.Response(200, json={})
        self.submits.append(http_request)
        if self.loses_storage:
            self.execution.storage.failing = StorageUnavailable("away")
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
    """A worker with a fake backend that runs jobs, and calls back when a job has ended."""

    def __init__(self, *, url: str = "http://api", **jobs: object) -> None:
        config = config_of("callback", **jobs)
        super().__init__(config, callback_url=url, callback_secret=SECRET)
        self.watch = self.execution.context.callbacks
        assert isinstance(self.watch, CallbackWatch)

    @property
    def tokens(self) -> list[str]:
        return [
            submit.headers["x-callback-url"].removeprefix(f"http://api{CALLBACK_PATH}")
            for submit in self.submits
        ]

    async def call(self, number: int, body: bytes | None, size: int = 0) -> None:
        await self.accept(number, body, size)
        await self.poll_callbacks()

    async def accept(self, number: int, body: bytes | None, size: int = 0) -> None:
        found = verify_token(self.tokens[number], SECRET)
        assert found is not None
        await self.database.callbacks.accept(
            found.id, body, size or len(body or b""), datetime.fromtimestamp(found.expires_at, UTC)
        )

    async def poll_callbacks(self) -> None:
        assert isinstance(self.watch, CallbackWatch)
        await self.watch.poll()
