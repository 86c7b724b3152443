"""Runs slices in tests: fake storage with one slice, and a worker whose backend is a function.

A slice is a part of a batch's lines that a worker sends in one activity.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.execution.activity import Execution
from batchwright.activities.execution.slice_state.lease import Heartbeat, HeartbeatReply, SliceLease
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.backend_job_callbacks import CallbackWatch
from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.holds_caps_and_weights import StoredTenantSettings
from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.activities.services.worker_slices.slice_demand import MAX_SLICES
from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceRequest, SliceResult
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import SliceProgress
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.database.tables.batches.progress import (
    BatchSpending,
    ProgressSample,
    ProgressTable,
    SettledLines,
    SliceKey,
)
from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.limits.tenant_and_model_limits import TenantSettings
from batchwright.inference.registry.backend_registry import retry_policy_of
from batchwright.inference.router import ModelRouter
from batchwright.inference.upstream import Backend
from batchwright.rules.planning.plan_format import PlanEntry, SliceRecord, pack_entry, pack_slice
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.permissions import UnrestrictedPermissions
from tests.fakes.rates import FixedRates
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage
from tests.fakes.transport import PooledEngine
from tests.segments import read_records

MODEL, TENANT = "m", "tenant-a"
BATCH = "batch_" + "0" * 32
FOLDER = object_keys.slice_results(TENANT, BATCH, MODEL, 0)

ONE_BACKEND = ModelConfig(backends=[GatewayConfig(url="http://backend")])

AsyncReply = Callable[[httpx.Request], Awaitable[httpx.Response]]
Reply = Callable[[str], httpx.Response]


def body_of(number: int) -> bytes:
    return b'{"model":"m", "messages":[{"role":"user","content":"%d"}]}' % number


def line_of(number: int) -> bytes:
    return b'{"custom_id":"c-%d","body":%s}' % (number, body_of(number))


async def plan_slice(
    storage: MemoryStorage, lines: list[bytes], prefix: str = "p", prefix_hashes: Sequence[int] = ()
) -> list[int]:
    """Store the lines as one slice, with all objects that ingestion writes for a slice.

    Return the byte offsets of the lines.

    Args:
        prefix_hashes: hash of each line's system prompt. By default, no line has a system prompt.
    """
    offsets: list[int] = []
    entries, offset = b"", 0
    for line, prefix_hash in zip(lines, prefix_hashes or [0] * len(lines), strict=True):
        offsets.append(offset)
        entries += pack_entry(PlanEntry(offset, len(line) + 1, prefix_hash))
        offset += len(line) + 1
    shard = b"".join(line + b"\n" for line in lines)
    record = SliceRecord(0, 0, 0, len(lines), len(shard), len(lines))
    await storage.put(object_keys.plan(prefix, MODEL), entries)
    await storage.put(object_keys.shard(prefix, MODEL), shard)
    await storage.put(object_keys.slice_table(prefix, MODEL), pack_slice(record))
    return offsets


def held_lease() -> SliceLease:
    """Return the lease of an attempt that cannot lose it."""
    return SliceLease(FakeHeartbeatServer().beat(), heartbeat_timeout=None)


def in_seconds(seconds: float) -> datetime:
    """Return the time `seconds` from now, by the clock that `skipped_waits` may have replaced."""
    return datetime.fromtimestamp(time.time() + seconds, UTC)


def request(**changes: object) -> SliceRequest:
    plain = SliceRequest(
        batch_id=BATCH,
        tenant=TENANT,
        endpoint=Endpoint.CHAT_COMPLETIONS,
        ingest_prefix="p",
        model=MODEL,
        safe_model=MODEL,
        number=0,
        deadline=in_seconds(3600),
    )
    return plain.model_copy(update=changes)


def ok(content: str) -> httpx.Response:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return httpx.Response(200, json={"echo": content, "usage": usage}, headers={"x-request-id": "r-1"})


def status(code: int, **headers: str) -> httpx.Response:
    return httpx.Response(code, json={"error": {"message": "no"}}, headers=headers)


@dataclass
class FakeHeartbeatServer:
    """A fake server that receives the heartbeats of a slice.

    It answers each heartbeat with `reply`, and adds its details to `heartbeats`.
    """

    reply: HeartbeatReply = HeartbeatReply.OK
    heartbeats: list[SliceResult] = field(default_factory=list[SliceResult])

    def beat(self) -> Heartbeat:
        async def beat(details: SliceResult) -> HeartbeatReply:
            self.heartbeats.append(details)
            return self.reply

        return beat


def _now() -> float:
    """Return `time.monotonic()`. It is looked up at each call, because a test may replace it."""
    return time.monotonic()


class FakeRouters:
    """A fake of the worker's routers. Each model has its own router, and all routers use the same backends.

    If a test sets `is_served` to False, no model has a router.
    """

    def __init__(self, settings: Settings, clients: ClientPool, config: ModelConfig) -> None:
        self._settings, self.config, self._clients = settings, config, clients
        self.is_served = True
        self._routes: dict[str, ModelRouter] = {}

    def router_for(self, model: str) -> ModelRouter | None:
        if not self.is_served:
            return None
        if model not in self._routes:
            self._routes[model] = self._create_route(model, self.config)
        return self._routes[model]

    def add_fallback(self, model: str, name: str, config: ModelConfig) -> ModelRouter:
        route = self.router_for(model)
        assert route is not None
        fallback = self._create_route(name, config)
        route.fallbacks = [fallback]
        return fallback

    def _create_route(self, model: str, config: ModelConfig) -> ModelRouter:
        retries = retry_policy_of(self._settings, config)
        route = ModelRouter(model, retries, self._settings.circuit_failures, _now)
        backends = [Backend(backend.url, self._clients.client_for(backend)) for backend in config.backends]
        route.update(config, backends, retries)
        return route


class ProgressLog(ProgressTable):
    """A fake progress table that records each call in `upserts`.

    While `is_unavailable` is True, calls raise DatabaseUnavailable.
    """

    def __init__(self) -> None:
        self.upserts: list[list[SliceProgress]] = []
        self.caps: dict[BatchKey, BatchSpending] = {}
        self.is_unavailable = False

    async def record(self, rows: list[SliceProgress]) -> None:
        if self.is_unavailable:
            raise DatabaseUnavailable("away")
        self.upserts.append(rows)

    async def slices(self, tenant: str, batch_id: str) -> dict[tuple[str, int], SettledLines]:
        return {}

    async def spending(self, batches: Mapping[BatchKey, Sequence[SliceKey]]) -> dict[BatchKey, BatchSpending]:
        return {key: self.caps[key] for key in batches if key in self.caps}

    async def reach_cap(self, batch: BatchKey, amount: int) -> bool:
        is_reached = self.caps[batch].cap <= amount
        self.caps[batch] = self.caps[batch]._replace(is_ending=is_reached)
        return is_reached

    async def sample(self, at: datetime) -> None:
        return None

    async def samples(self, tenant: str, batch_id: str) -> list[ProgressSample]:
        return []


async def _always_cancelled(tenant: str, batch_id: str) -> bool:
    return True


class ExecutionFixture:
    """A fixture that runs slices on a worker with fake storage, database, heartbeats and backend.

    Attributes:
        sent: contents of the requests that the backend received, in order.
        reply: returns the backend's response to a request with this content. A test may replace it.
        listing: returns the response to GET /v1/models, which shows whether the backend is reachable.
    """

    def __init__(self, reply: Reply, **settings: object) -> None:
        """Create the worker.

        Args:
            reply: Returns the backend's response to a request with this content.
            settings: Settings of the worker. Three names are special: `config` is the configuration of all
                models, `shares` are the weights and caps of tenants, and `sockets=True` sends real
                requests to its backends.
        """
        config, sockets = settings.pop("config", ONE_BACKEND), settings.pop("sockets", False)
        shares = settings.pop("shares", None)
        assert shares is None or isinstance(shares, StoredTenantSettings)
        assert isinstance(config, ModelConfig)
        self.sent: list[str] = []
        self.requests: list[httpx.Request] = []
        self.reply = reply
        self.answer: AsyncReply = self._reply
        self.listing: Reply = lambda _: httpx.Response(200, json={"data": []})
        self.storage, self.progress = MemoryStorage(), ProgressLog()
        self.server = FakeHeartbeatServer()
        self.reported_reasons: list[tuple[str, WaitingReason]] = []
        self.settings = load(**{"initial_backoff_seconds": 0.001, **settings})
        self.metrics = Metrics()
        self.environment = ActivityEnvironment()
        self.environment.info = dataclasses.replace(
            self.environment.info, heartbeat_timeout=timedelta(seconds=30)
        )
        self.engine = PooledEngine(httpx.MockTransport(self._handle))
        mocked = ClientPool(self.settings, lambda settings, tls, connect: self.engine)
        self.clients = ClientPool(self.settings) if sockets else mocked
        self.backends = FakeRouters(self.settings, self.clients, config)
        database = MemoryDatabase()
        self.context = WorkerContext(
            storage=self.storage,
            routers=self.backends,
            progress=ProgressReporter(self.progress),
            metrics=self.metrics,
            settings=self.settings,
            waiting_reasons=WaitingReasonPublisher(self._tell, database.waiting),
            costs=BatchCosts(self.progress),
            heartbeat=self.server.beat,
            rates=FixedRates(),
            tenant_settings=shares or TenantSettings(),
            permissions=UnrestrictedPermissions(),
            callbacks=CallbackWatch(database.callbacks, self.settings),
            calls=database.calls,
            is_cancelled=_always_cancelled,
            missing_dependencies=lambda: "",
            quarantine_lock=asyncio.Lock(),
        )

    async def run(self, request: SliceRequest) -> SliceResult:
        self.execution = Execution(self.context)
        return await self.environment.run(self.execution.run_slice, request)

    def start(self, request: SliceRequest) -> "asyncio.Task[SliceResult]":
        return asyncio.create_task(self.run(request))

    async def failure(self, request: SliceRequest) -> ApplicationError:
        """Run the slice, which must fail, and return its error."""
        try:
            result = await self.run(request)
        except ApplicationError as error:
            return error
        raise AssertionError(f"the slice returned {result!r}")

    async def turn(self, request: SliceRequest) -> SliceResult | None:
        """Run the slice until it is finished, or until the worker interrupts or defers it.

        Return its result; None if it is not finished.
        """
        try:
            return await self.run(request)
        except ApplicationError as error:
            if error.type not in (Failure.TURN_OVER, Failure.DEFERRED):
                raise
            return None

    def occupy_all_places(self) -> None:
        """Let this tenant's slices use all slots of the worker, while another tenant's batches wait.

        A slice then gives up its slot as soon as its time limit is over.
        """
        for number in range(MAX_SLICES):
            self.context.demand.take(MODEL, number)
        self.context.demand.set_waiting({MODEL: {"other": MAX_SLICES}})

    def next_attempt(self, *details: SliceResult) -> None:
        """Begin the activity's next attempt, as Temporal does if the last attempt ended without a crash.

        The new attempt gets `details`, by default those of an attempt that has read its lines.
        """
        last = details or (SliceResult(attempt=self.environment.info.attempt, has_read=True),)
        self._begin_attempt([*(each.model_dump() for each in last), RELEASED])

    def next_worker(self) -> None:
        """Begin the activity's next attempt, as Temporal does after a crash of the worker.

        The new attempt gets only the details of the last heartbeat.
        """
        self._begin_attempt([beat.model_dump() for beat in self.server.heartbeats[-1:]])

    def _begin_attempt(self, details: list[object]) -> None:
        info = self.environment.info
        self.environment = ActivityEnvironment()
        self.environment.info = dataclasses.replace(info, attempt=info.attempt + 1, heartbeat_details=details)

    async def records(self) -> list[SegmentRecord]:
        """Return all records in the slice's segments (its result objects), in the order of their names."""
        data = [await self.storage.get(info.key) async for info in self.storage.list(FOLDER)]
        return [record for piece in data for record in read_records(piece)]

    async def settled(self) -> dict[int, SegmentRecord]:
        """Return the final result of each line by its offset. Check that no line has two final results."""
        found = [record for record in await self.records() if record.kind is RecordKind.SETTLED]
        by_offset = {record.offset: record for record in found}
        assert len(by_offset) == len(found)
        return by_offset

    async def segment_names(self) -> list[str]:
        return [info.key async for info in self.storage.list(FOLDER)]

    async def store(self, *records: SegmentRecord, name: str = "0000-000001-aa-00001") -> None:
        writer = SegmentWriter()
        for record in records:
            writer.add(record)
        await self.storage.put(FOLDER + name, writer.finish())

    def hurry(self) -> None:
        """Speed up the clock of the model's circuit breaker, so that it soon allows requests again."""
        self.circuit(MODEL).clock = lambda: time.monotonic() * 1000

    def circuit(self, model: str) -> CircuitBreaker:
        route = self.backends.router_for(model)
        assert route is not None
        return route.circuit

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return self.listing("")
        self.requests.append(request)
        self.sent.append(content_of(request))
        return await self.answer(request)

    async def _reply(self, request: httpx.Request) -> httpx.Response:
        return self.reply(content_of(request))

    async def _tell(self, batch_id: str, reason: WaitingReason) -> None:
        self.reported_reasons.append((batch_id, reason))


def content_of(request: httpx.Request) -> str:
    """Return the content of the first message of a chat request; empty for a request to another endpoint."""
    messages = json.loads(request.content or b"{}").get("messages")
    return messages[0]["content"] if messages else ""


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is True. Only the timeout of the test limits the wait."""
    while not condition():
        await asyncio.sleep(0.005)
