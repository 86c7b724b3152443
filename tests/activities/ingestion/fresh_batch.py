"""A batch that has just been created, and access to the objects that ingestion writes for it."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import msgspec
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from batchwright.activities.ingestion.activity import Ingestion
from batchwright.activities.ingestion.publisher import ModelMap
from batchwright.activities.ingestion.served_models import ServedModels
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.ids import is_model_name
from batchwright.rules.planning.plan_format import (
    SLICE_BYTES,
    PlanEntry,
    SliceRecord,
    unpack_slice,
    walk_entries,
)
from batchwright.rules.results.segment_format import SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.telemetry.metrics import Metrics
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.rates import FixedRates
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage
from tests.segments import read_records

BATCH_ID = "batch_" + "0" * 32
TENANT = "acme"
FILE_ID = "file-in"
INPUT_KEY = "input"


def a_line(custom_id: str, model: str | None = "a", text: str = "hello", system: str = "be kind") -> bytes:
    """Return an input line for chat completions, or for /v1/responses if `model` is None."""
    if model is None:
        return json.dumps({"custom_id": custom_id, "body": {"input": text}}).encode()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return json.dumps({"custom_id": custom_id, "body": {"model": model, "messages": messages}}).encode()


class FakeModels:
    accepts_any_model = False

    def __init__(self, models: frozenset[str], aliases: Mapping[str, str] = MappingProxyType({})) -> None:
        self._models, self._aliases = models, aliases
        self.prices: dict[str, PriceConfig] = {}

    def prices_of(self, model: str) -> PriceConfig | None:
        return self.prices.get(model)

    def accepts_unlisted(self, model: str) -> bool:
        return self.accepts_any_model and is_model_name(model)

    async def served_now(self) -> frozenset[str]:
        return self._models | self._aliases.keys()

    def canonical(self, name: str) -> str:
        return self._aliases.get(name, name)


class FreshBatch:
    def __init__(
        self,
        *lines: bytes,
        served: tuple[str, ...] = ("a", "b"),
        aliases: Mapping[str, str] = MappingProxyType({}),
        ending: bytes = b"\n",
        endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS,
        profile: Profile = Profile.RELAXED,
        storage: MemoryStorage | None = None,
        window: timedelta = timedelta(days=1),
        rates: FixedRates | None = None,
        deduplicate: bool = False,
        **settings: object,
    ) -> None:
        self.rates = rates or FixedRates()
        self.input = ending.join(lines)
        self.storage = storage or MemoryStorage()
        self.database = MemoryDatabase()
        self.metrics = Metrics(CollectorRegistry())
        self.served, self.aliases, self.accepts_any_model = served, aliases, False
        self.settings: Mapping[str, object] = settings
        self.prices: dict[str, PriceConfig] = {}
        self.env = ActivityEnvironment()
        now = datetime.now(UTC).replace(microsecond=0)
        self.order = BatchOrder(
            batch_id=BATCH_ID,
            tenant=TENANT,
            input_file_id=FILE_ID,
            endpoint=endpoint,
            completion_window="24h",
            created_at=now,
            deadline=now + window,
            policy=BatchPolicy(profile=profile, deduplicate=deduplicate),
        )

    async def upload(self, *, tenant: str = TENANT, size: int | None = None) -> None:
        self.storage.objects[INPUT_KEY] = self.input
        await self.database.files.insert(
            FileRow(
                id=FILE_ID,
                tenant=tenant,
                purpose="batch",
                filename="in.jsonl",
                bytes=len(self.input) if size is None else size,
                created_at=self.order.created_at,
                storage_key=INPUT_KEY,
            )
        )

    async def ingest(self) -> IngestResult:
        """Run one attempt of the ingestion activity, and return its result."""
        served = FakeModels(frozenset(self.served), self.aliases)
        served.accepts_any_model, served.prices = self.accepts_any_model, self.prices
        models, settings = ServedModels(served, self.rates), load(**self.settings)
        ingestion = Ingestion(self.database, self.storage, models, settings, self.metrics)
        return await self.env.run(ingestion.ingest, self.order)

    def start(self) -> "asyncio.Task[IngestResult]":
        return asyncio.create_task(self.ingest())

    async def row(self) -> BatchRow:
        row = await self.database.batches.get(TENANT, BATCH_ID)
        assert row is not None
        return row

    def written(self) -> list[str]:
        """Return the sorted keys of all objects in storage except the input."""
        return sorted(self.storage.objects.keys() - {INPUT_KEY})

    def plan(self, result: IngestResult, share: ModelShare) -> list[PlanEntry]:
        plan = self.storage.objects[object_keys.plan(result.ingest_prefix, share.safe_model)]
        return [PlanEntry(*entry) for entry in walk_entries(plan)]

    def shard(self, result: IngestResult, share: ModelShare) -> bytes:
        return self.storage.objects[object_keys.shard(result.ingest_prefix, share.safe_model)]

    def slices(self, result: IngestResult, share: ModelShare) -> list[SliceRecord]:
        table = self.storage.objects[object_keys.slice_table(result.ingest_prefix, share.safe_model)]
        assert len(table) == share.slices * SLICE_BYTES
        parts = [table[at : at + SLICE_BYTES] for at in range(0, len(table), SLICE_BYTES)]
        return [unpack_slice(part, number) for number, part in enumerate(parts)]

    def model_map(self, result: IngestResult) -> ModelMap:
        return msgspec.json.decode(
            self.storage.objects[object_keys.model_map(result.ingest_prefix)], type=ModelMap
        )

    def unserved(self, result: IngestResult) -> list[SegmentRecord]:
        root = object_keys.unserved_root(result.ingest_prefix)
        segments = [data for key, data in sorted(self.storage.objects.items()) if key.startswith(root)]
        return [record for segment in segments for record in read_records(segment)]

    def line_at(self, entry: PlanEntry) -> bytes:
        """Return the input line at the position of an entry of the plan, always with a newline at its end."""
        return (self.input + b"\n")[entry.offset : entry.offset + entry.length]


async def a_batch(*lines: bytes, **how: object) -> FreshBatch:
    batch = FreshBatch(*lines, **how)  # pyright: ignore[reportArgumentType]
    await batch.upload()
    return batch
