"""A batch before finalization. The test decides what its input, plans (orders of lines) and results are."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from batchwright.activities.finalization.activity import Finalization
from batchwright.activities.services.backend_job_cancellation import RouterLookup
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.contracts.terms import BatchStatus, Endpoint, Usage, ValidationError
from batchwright.database.database import Database
from batchwright.database.records import FileRow
from batchwright.rules.ids import derived_file_id, request_id
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.planning.plan_format import PlanEntry, pack_entry
from batchwright.rules.results.dead_letters import FinalAttempt
from batchwright.rules.results.output_lines import error_line, result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.routers import NoRouters
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage

BATCH_ID = "batch_" + "0" * 32
TENANT = "acme"
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
INPUT_KEY = "input"


Event = Callable[[], Awaitable[object]]


class EventfulStorage(MemoryStorage):
    """A storage in memory that calls `events[key]` once, just before the object with this key is read."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, Event] = {}

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key in self.events:
            await self.events.pop(key)()
        return await super().get(key, start, length)


class OutputLine(msgspec.Struct):
    """A line of the output file or the error file, with the fields that tests check."""

    id: str
    custom_id: str
    response: msgspec.Raw
    error: dict[str, str] | None


def an_order() -> BatchOrder:
    return BatchOrder(
        batch_id=BATCH_ID,
        tenant=TENANT,
        input_file_id="file-in",
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=CREATED,
        deadline=CREATED + timedelta(days=1),
    )


class SettledBatch:
    """A batch of `lines` lines before finalization.

    Line n has the custom_id "line-n", and is for model n % len(models). Lines are sent in reverse order.

    Args:
        unserved: numbers of the lines whose model no backend serves.
        ingestion_errors: the errors of these lines, as ingestion reports them.
        ending: text between two lines of the input.
    """

    def __init__(
        self,
        *,
        lines: int,
        models: tuple[str, ...] = ("a", "b"),
        unserved: Iterable[int] = (),
        ingestion_errors: Iterable[ErrorCount] = (),
        ending: str = "\n",
        storage: Storage | None = None,
        tables: Database | None = None,
    ) -> None:
        self.memory = EventfulStorage()
        self.storage: Storage = storage or self.memory
        self.database = MemoryDatabase()
        self.tables: Database = tables or self.database
        self.metrics = Metrics(CollectorRegistry())
        self.routers: RouterLookup = NoRouters()
        self.spool_dir: Path | None = None
        self.env = ActivityEnvironment()
        self.order = an_order()
        self.prefix = object_keys.ingest_prefix(TENANT, BATCH_ID, "commit")
        self.models = models
        self.unserved = frozenset(unserved)
        self.ingestion_errors = list(ingestion_errors)
        texts = [f'{{"custom_id":"line-{n}","body":{{"model":"m"}}}}' for n in range(lines)]
        self.input = ending.join(texts).encode()
        self.lines = _cut(self.input)

    async def prepare(self) -> None:
        """Store the input, the database rows and the plans (orders of lines) of the batch, but no results."""
        await self.storage.put(INPUT_KEY, self.input)
        await self.tables.files.insert(
            FileRow(
                id="file-in",
                tenant=TENANT,
                purpose="batch",
                filename="in.jsonl",
                bytes=len(self.input),
                created_at=CREATED,
                storage_key=INPUT_KEY,
            )
        )
        await self.tables.batches.upsert(self.order)
        await self._begin()
        for model in self.models:
            await self._plan(model)
        if self.unserved:
            records = [self.failure(n, LineCode.MODEL_NOT_FOUND) for n in sorted(self.unserved)]
            await self.storage.put(object_keys.unserved_segment(self.prefix, 0), a_segment(records))

    async def _begin(self) -> None:
        counts = [ModelCounts(model=m, lines=len(self.planned(m))) for m in self.models]
        refused = len(self.unserved)
        ghost = [ModelCounts(model="ghost", lines=refused, failed=refused)] if refused else []
        await self.tables.batches.start(
            TENANT,
            BATCH_ID,
            total=len(self.lines),
            models=[*counts, *ghost],
            at=CREATED,
            unserved=refused,
            errors=self.ingestion_errors,
        )

    def planned(self, model: str) -> list[int]:
        """Return the numbers of the model's lines in the order in which they are sent."""
        mine = range(self.models.index(model), len(self.lines), len(self.models))
        return [n for n in reversed(mine) if n not in self.unserved]

    def success(self, n: int, answer: str = "answer", tokens: int = 0) -> SegmentRecord:
        line = result_line(
            self._id(n), f"line-{n}", status_code=200, backend_request_id="", body=f'"{answer}"'.encode()
        )
        usage = Usage(input_tokens=tokens)
        return SegmentRecord(RecordKind.SETTLED, self.lines[n].offset, line, success=True, usage=usage)

    def failure(self, n: int, code: LineCode = LineCode.REQUEST_TIMEOUT) -> SegmentRecord:
        return SegmentRecord(
            RecordKind.SETTLED, self.lines[n].offset, error_line(self._id(n), f"line-{n}", code, "why")
        )

    def attempt(self, n: int, number: int, *, final: bool = False) -> SegmentRecord:
        """Return the record of a failed attempt of line n.

        If `final` is True, return a dead letter (the record that the line failed for good).
        """
        if final:
            last = FinalAttempt(count=number, failed_at=1.0, custom_id=f"line-{n}", model="a", status=500)
            payload = last.model_dump_json().encode()
        else:
            payload = b'{"count":%d,"backend_error":"error %d"}' % (number, number)
        return SegmentRecord(RecordKind.ATTEMPT, self.lines[n].offset, payload, final=final)

    async def put(self, records: list[SegmentRecord], *, attempt: int = 1, sequence: int = 0) -> str:
        """Store the records as a segment (an object with results of a slice), and return its key.

        Args:
            attempt: Number of the activity's attempt that wrote the segment.
            sequence: Number of the segment within the attempt.
        """
        folder = object_keys.slice_results(TENANT, BATCH_ID, "a", 0)
        key = object_keys.segment(folder, 0, attempt, "nonce", sequence)
        await self.storage.put(key, a_segment(records))
        return key

    def request(
        self,
        status: BatchStatus = BatchStatus.COMPLETED,
        missing_line_code: LineCode = LineCode.BATCH_FAILED,
        errors: list[ValidationError] | None = None,
    ) -> FinalizeRequest:
        shares = [
            ModelShare(model=m, safe_model=m, lines=len(self.planned(m)), slices=1) for m in self.models
        ]
        return FinalizeRequest(
            order=self.order,
            ingest_prefix=self.prefix,
            models=shares,
            total=len(self.lines),
            status=status,
            missing_line_code=missing_line_code,
            errors=errors or [],
        )

    async def finalize(self, request: FinalizeRequest | None = None) -> FinalizeResult:
        settings = load(spool_dir=self.spool_dir)
        finalization = Finalization(self.tables, self.storage, settings, self.metrics, self.routers)
        return await self.env.run(finalization.finalize, request or self.request())

    async def file(self, kind: str) -> FileRow | None:
        return await self.tables.files.get(TENANT, derived_file_id(BATCH_ID, kind))

    async def content(self, kind: str) -> bytes:
        row = await self.file(kind)
        return b"" if row is None else await self.storage.get(row.storage_key)

    async def written(self, kind: str) -> list[OutputLine]:
        decoder = msgspec.json.Decoder(OutputLine)
        return [decoder.decode(line) for line in (await self.content(kind)).splitlines()]

    async def ids(self, kind: str) -> list[str]:
        return [line.custom_id for line in await self.written(kind)]

    async def _plan(self, model: str) -> None:
        lines = [self.lines[n] for n in self.planned(model)]
        entries = [pack_entry(PlanEntry(line.offset, line.length, 0)) for line in lines]
        await self.storage.put(object_keys.plan(self.prefix, model), b"".join(entries))
        shard = b"".join((line.data or b"") + b"\n" for line in lines)
        await self.storage.put(object_keys.shard(self.prefix, model), shard)

    def _id(self, n: int) -> str:
        return request_id(BATCH_ID, self.lines[n].offset)


def a_segment(records: list[SegmentRecord]) -> bytes:
    writer = SegmentWriter()
    for record in records:
        writer.add(record)
    return writer.finish()


def names(numbers: Iterable[int]) -> list[str]:
    """Return the custom_ids of the lines with these numbers."""
    return [f"line-{n}" for n in numbers]


def _cut(data: bytes) -> list[InputLine]:
    splitter = LineSplitter(max_line_bytes=1000)
    return [*splitter.feed(data), *splitter.finish()]


async def a_batch(
    *,
    lines: int,
    models: tuple[str, ...] = ("a", "b"),
    unserved: Iterable[int] = (),
    ending: str = "\n",
    storage: Storage | None = None,
) -> SettledBatch:
    batch = SettledBatch(lines=lines, models=models, unserved=unserved, ending=ending, storage=storage)
    await batch.prepare()
    return batch
