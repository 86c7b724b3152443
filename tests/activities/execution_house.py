"""A planned slice in memory, and a worker's tools round a backend that is a function."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.execution import Execution
from activities.slices.ownership import Beat, Word
from activities.slices.progress import ProgressReporter
from activities.slices.tools import Tools
from activities.slices.waiting import WaitingSignals
from batchwright.contracts.batch import WaitingReason
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import HANDED_BACK, SliceRequest, SliceResult
from batchwright.contracts.openai import Endpoint
from batchwright.contracts.registry import GatewayConfig, ModelConfig
from batchwright.database.base import ProgressTable
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import ModelCount, SliceProgress
from batchwright.inference.backends import retries_of
from batchwright.inference.circuit import Circuit
from batchwright.inference.clients import Clients
from batchwright.inference.routes import Backend, Route
from batchwright.rules import keys
from batchwright.rules.plan import PlanEntry, SliceRecord, pack_entry, pack_slice
from batchwright.rules.segments import Kind, Record, SegmentWriter, read_records
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase
from tests.fakes.engine import PooledEngine
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage

MODEL, TENANT = "m", "tenant-a"
BATCH = "batch_" + "0" * 32
FOLDER = keys.slice_results(TENANT, BATCH, MODEL, 0)

ONE_BACKEND = ModelConfig(backends=[GatewayConfig(url="http://backend")])

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]
Reply = Callable[[str], httpx.Response]


def body_of(number: int) -> bytes:
    return b'{"model":"m", "messages":[{"role":"user","content":"%d"}]}' % number


def line_of(number: int) -> bytes:
    return b'{"custom_id":"c-%d","body":%s}' % (number, body_of(number))


async def plan_slice(storage: MemoryStorage, lines: list[bytes]) -> list[int]:
    """The plan, shard and slice table of one slice; the offsets of its lines."""
    offsets: list[int] = []
    entries, offset = b"", 0
    for line in lines:
        offsets.append(offset)
        entries += pack_entry(PlanEntry(offset, len(line) + 1, 0))
        offset += len(line) + 1
    shard = b"".join(line + b"\n" for line in lines)
    record = SliceRecord(0, 0, 0, len(lines), len(shard), len(lines))
    await storage.put(keys.plan("p", MODEL), entries)
    await storage.put(keys.shard("p", MODEL), shard)
    await storage.put(keys.slice_table("p", MODEL), pack_slice(record))
    return offsets


def request(**changes: object) -> SliceRequest:
    plain = SliceRequest(
        batch_id=BATCH,
        tenant=TENANT,
        endpoint=Endpoint.CHAT_COMPLETIONS,
        prefix="p",
        model=MODEL,
        safe=MODEL,
        number=0,
        closes_at=datetime.now(UTC) + timedelta(hours=1),
    )
    return plain.model_copy(update=changes)


def ok(content: str) -> httpx.Response:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return httpx.Response(200, json={"echo": content, "usage": usage}, headers={"x-request-id": "r-1"})


def status(code: int, **headers: str) -> httpx.Response:
    return httpx.Response(code, json={"error": {"message": "no"}}, headers=headers)


@dataclass
class FakeServer:
    """Temporal's side of the beats: says `word`, remembers what it was told."""

    word: Word = Word.GO_ON
    heard: list[SliceResult] = field(default_factory=list[SliceResult])

    def beat(self) -> Beat:
        async def beat(details: SliceResult) -> Word:
            self.heard.append(details)
            return self.word

        return beat


def _now() -> float:
    """By the clock of the moment, which a test may have put there."""
    return time.monotonic()


class Routes:
    """Every model has a route of its own to the same backends; `is_served` takes all of them away."""

    def __init__(self, settings: Settings, clients: Clients, config: ModelConfig) -> None:
        self._settings, self.config, self._clients = settings, config, clients
        self.is_served = True
        self._routes: dict[str, Route] = {}

    def route_of(self, model: str) -> Route | None:
        if not self.is_served:
            return None
        if model not in self._routes:
            self._routes[model] = self._made(model, self.config)
        return self._routes[model]

    def add_fallback(self, model: str, name: str, config: ModelConfig) -> Route:
        route = self.route_of(model)
        assert route is not None
        made = self._made(name, config)
        route.fallbacks = [made]
        return made

    def _made(self, model: str, config: ModelConfig) -> Route:
        retries = retries_of(self._settings, config)
        route = Route(model, retries, self._settings.circuit_failures, _now)
        made = [Backend(backend.url, self._clients.of(backend)) for backend in config.backends]
        route.follow(config, made, retries)
        return route


class ProgressLog(ProgressTable):
    """Remembers every upsert; while `is_away` it answers like a database that is."""

    def __init__(self) -> None:
        self.upserts: list[list[SliceProgress]] = []
        self.is_away = False

    async def record(self, rows: list[SliceProgress]) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.upserts.append(rows)

    async def totals(self, tenant: str, batch_id: str) -> list[ModelCount]:
        return []


class House:
    """Everything a slice needs, open to tests; `sent` are the contents asked for, in order.

    `listing` answers whoever looks whether the backend is there.
    """

    def __init__(self, reply: Reply, **settings: object) -> None:
        """`config` among the settings is the models' registry entry; with `sockets` it is really asked."""
        config, sockets = settings.pop("config", ONE_BACKEND), settings.pop("sockets", False)
        assert isinstance(config, ModelConfig)
        self.sent: list[str] = []
        self.requests: list[httpx.Request] = []
        self.reply = reply
        self.answer: Answer = self._reply
        self.listing: Reply = lambda _: httpx.Response(200, json={"data": []})
        self.storage, self.progress = MemoryStorage(), ProgressLog()
        self.server = FakeServer()
        self.told: list[tuple[str, WaitingReason]] = []
        self.settings = load(**{"initial_backoff_seconds": 0.001, **settings})
        self.metrics = Metrics()
        self.environment = ActivityEnvironment()
        self.environment.info = dataclasses.replace(
            self.environment.info, heartbeat_timeout=timedelta(seconds=30)
        )
        self.engine = PooledEngine(httpx.MockTransport(self._handle))
        mocked = Clients(self.settings, lambda settings, tls, connect: self.engine)
        self.clients = Clients(self.settings) if sockets else mocked
        self.backends = Routes(self.settings, self.clients, config)
        self.tools = Tools(
            storage=self.storage,
            backends=self.backends,
            progress=ProgressReporter(self.progress),
            metrics=self.metrics,
            settings=self.settings,
            waiting=WaitingSignals(self._tell, MemoryDatabase().waiting),
            beat=self.server.beat,
        )

    async def run(self, request: SliceRequest) -> SliceResult:
        self.execution = Execution(self.tools)
        return await self.environment.run(self.execution.run_slice, request)

    def start(self, request: SliceRequest) -> "asyncio.Task[SliceResult]":
        return asyncio.create_task(self.run(request))

    async def failure(self, request: SliceRequest) -> ApplicationError:
        """The error the slice ends with."""
        try:
            result = await self.run(request)
        except ApplicationError as error:
            return error
        raise AssertionError(f"the slice returned {result!r}")

    async def turn(self, request: SliceRequest) -> SliceResult | None:
        """What the slice returned, or None where it gave its slot back."""
        try:
            return await self.run(request)
        except ApplicationError as error:
            if error.type not in (Failure.TURN_OVER, Failure.DEFERRED):
                raise
            return None

    def next_attempt(self) -> None:
        """A fresh attempt of the same activity, after one that ended by itself."""
        self._begin_attempt([{"attempt": self.environment.info.attempt}, HANDED_BACK])

    def next_worker(self) -> None:
        """A fresh attempt after one whose worker died: all it has left is its last beat."""
        self._begin_attempt([beat.model_dump() for beat in self.server.heard[-1:]])

    def _begin_attempt(self, details: list[object]) -> None:
        info = self.environment.info
        self.environment = ActivityEnvironment()
        self.environment.info = dataclasses.replace(info, attempt=info.attempt + 1, heartbeat_details=details)

    async def records(self) -> list[Record]:
        """What lies in the slice's segments, in the order of names."""
        data = [await self.storage.get(info.key) async for info in self.storage.list(FOLDER)]
        return [record for piece in data for record in read_records(piece)]

    async def settled(self) -> dict[int, Record]:
        """By offset; each line once."""
        found = [record for record in await self.records() if record.kind is Kind.SETTLED]
        by_offset = {record.offset: record for record in found}
        assert len(by_offset) == len(found)
        return by_offset

    async def segment_names(self) -> list[str]:
        return [info.key async for info in self.storage.list(FOLDER)]

    async def store(self, *records: Record, name: str = "0000-000001-aa-00001") -> None:
        writer = SegmentWriter()
        for record in records:
            writer.add(record)
        await self.storage.put(FOLDER + name, writer.finish())

    def hurry(self) -> None:
        """The model's circuit sees time pass a thousand times faster."""
        self.circuit(MODEL).clock = lambda: time.monotonic() * 1000

    def circuit(self, model: str) -> Circuit:
        route = self.backends.route_of(model)
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
        self.told.append((batch_id, reason))


def content_of(request: httpx.Request) -> str:
    """Of a chat; a request of another endpoint has none."""
    messages = json.loads(request.content or b"{}").get("messages")
    return messages[0]["content"] if messages else ""


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until it holds; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.005)
