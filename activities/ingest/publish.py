"""Writes what ingestion found under the attempt's own prefix: shards, plans, slice tables, the model map."""

import asyncio
from array import array
from collections.abc import Iterator
from itertools import islice

import msgspec

from activities.ingest.access import Access, not_allowed, not_served
from activities.ingest.adoption import Adoption
from activities.ingest.scan import Scanner
from activities.ingest.spool import Spool
from activities.ingest.twins import Twins, read_twins
from activities.ingest.window import Window, WindowOver
from activities.side_by_side import few_at_once, side_by_side
from activities.slices.pace import Rates
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import LineCode
from batchwright.contracts.ingestion import ModelShare
from batchwright.database.rows import ModelCount
from batchwright.rules import keys
from batchwright.rules.answers import error_line
from batchwright.rules.duplicates import packed
from batchwright.rules.ids import request_id, safe_name
from batchwright.rules.lines import parse_line
from batchwright.rules.ordering import ModelLines, PlanLine
from batchwright.rules.plan import SLICE_BYTES, pack_entry, pack_slice
from batchwright.rules.segments import Kind, Record, SegmentWriter
from batchwright.rules.slicing import LEAST_LINES, Slicer, fewest_lines
from batchwright.settings import Settings
from batchwright.storage.base import Storage

_PIECE_BYTES = 1024 * 1024
_PIECE_LINES = 4096
_MODELS_AT_ONCE = 4
_MANY_LINES = 200_000  # of an input: their order alone takes memory enough


class ModelMap(msgspec.Struct):
    """`model_map.json` (S0-21); `line_count` counts the lines of the input."""

    model_to_safe: dict[str, str]
    safe_to_model: dict[str, str]
    line_count: int


class _Tables:
    """A model's plan and slice table as they grow: 16 bytes a line."""

    def __init__(self, slicer: Slicer) -> None:
        self.plan = bytearray()
        self.slices = bytearray()
        self._slicer = slicer

    def add(self, lines: list[PlanLine]) -> None:
        self.plan += b"".join([pack_entry((line.offset, line.length, line.prefix_hash)) for line in lines])
        for line in lines:
            if (record := self._slicer.add(line.length, line.work_units)) is not None:
                self.slices += pack_slice(record)

    def finish(self) -> None:
        if (record := self._slicer.finish()) is not None:
            self.slices += pack_slice(record)


class Publisher:
    """One attempt's objects; the commit is the activity's result, so none is ever renamed (S0-20)."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        order: BatchOrder,
        prefix: str,
        *,
        rates: Rates,
        access: Access,
        window: Window,
    ) -> None:
        self._storage = storage
        self._window = window
        self._rates = rates
        self._access = access
        self._settings = settings
        self._order = order
        self._prefix = prefix
        self._total = 0  # lines of the input

    async def publish(self, scanner: Scanner, spool: Spool) -> list[ModelShare]:
        """A few models at once, each a piece at a time; once the window is over plans only, no slices.

        Of a very large input it is one after another.
        """
        self._total = scanner.total
        ranks = array("I")
        if self._settings.plan_order == "prefix" and not self._window.is_over:
            ranks = await spool.off_loop(scanner.prefixes.ranks, spool.read_line)

        async def of_model(model: str) -> ModelShare:
            lines = scanner.models.pop(model)
            try:
                share = await self._publish_model(model, lines, ranks, spool)
            except WindowOver:
                share = await self._publish_places(model, lines, spool)
            share = await self._with_twins(share, scanner.twins, spool)
            return _with_adopted(share, scanner.adoption)

        most = _MODELS_AT_ONCE if scanner.total < _MANY_LINES else 1
        shares = await few_at_once(of_model, sorted(scanner.models), most=most)
        await self._publish_unserved(scanner, spool)
        await self._publish_adopted(scanner.adoption)
        await self._publish_map(shares, scanner.total)
        return shares

    async def _publish_model(
        self, model: str, lines: ModelLines, ranks: "array[int]", spool: Spool
    ) -> ModelShare:
        """Raises WindowOver."""
        self._go_on()
        safe = safe_name(model)
        tables = _Tables(self._slicer(model, len(lines)))
        ordered = lines.in_order(ranks, spool.read_line)
        async with self._storage.writer(keys.shard(self._prefix, safe)) as shard:
            piece = await spool.off_loop(_next_piece, ordered, tables, spool)
            while piece:
                self._go_on()
                making = spool.off_loop(_next_piece, ordered, tables, spool)
                piece, _ = await side_by_side(making, shard.write(piece))
        tables.finish()
        await side_by_side(
            self._storage.put(keys.plan(self._prefix, safe), bytes(tables.plan)),
            self._storage.put(keys.slice_table(self._prefix, safe), bytes(tables.slices)),
        )
        slices = len(tables.slices) // SLICE_BYTES
        queue = self._rates.queue_of(model)
        return ModelShare(model=model, safe=safe, lines=len(lines), slices=slices, queue=queue)

    async def _publish_places(self, model: str, lines: ModelLines, spool: Spool) -> ModelShare:
        """What the files of a batch need that is sent nothing of: which lines there are."""
        safe = safe_name(model)
        await self._storage.put(keys.plan(self._prefix, safe), await spool.off_loop(_places_of, lines))
        return ModelShare(model=model, safe=safe, lines=len(lines), slices=0)

    def _go_on(self) -> None:
        if self._window.is_over:
            raise WindowOver

    async def _with_twins(self, share: ModelShare, twins: Twins | None, spool: Spool) -> ModelShare:
        places = twins.of(share.model) if twins else ()
        if twins is None or not places:
            return share
        async with self._storage.writer(keys.duplicates(self._prefix, share.safe)) as writer:
            for start in range(0, len(places), _PIECE_LINES):
                await writer.write(await spool.off_loop(_twins_of, twins, share.model, spool, start))
        return share.model_copy(update={"duplicates": len(places)})

    def _slicer(self, model: str, lines: int) -> Slicer:
        """With a rate a slice is a number of whole turns, for each costs the same of it, full or not."""
        settings, pacing = self._settings, self._rates.pacing_of(model)
        if pacing is None:
            fewest = fewest_lines(settings.in_flight_of(model), self._total)
            return Slicer(settings.slice_lines, settings.slice_bytes, plan_lines=lines, fewest=fewest)
        most = min(settings.slice_lines, LEAST_LINES)
        return Slicer(most - most % pacing.lines, settings.slice_bytes)

    async def _publish_unserved(self, scanner: Scanner, spool: Spool) -> None:
        """The lines that nothing serves for this tenant, settled as errors in the order of the input."""
        if not len(scanner.unserved):
            return
        segment = SegmentWriter()
        places = zip(scanner.unserved.offsets, scanner.unserved.lengths, strict=True)
        while batch := list(islice(places, _PIECE_LINES)):
            await spool.off_loop(self._settle, segment, batch, spool)
        await self._storage.put(keys.unserved(self._prefix), await spool.off_loop(segment.finish))

    async def _publish_adopted(self, adoption: Adoption | None) -> None:
        for number in range(len(adoption.segments) if adoption else 0):
            assert adoption is not None
            data = await asyncio.to_thread(adoption.segment, number)
            await self._storage.put(keys.adopted(self._prefix, number), data)

    def _settle(self, segment: SegmentWriter, places: list[tuple[int, int]], spool: Spool) -> None:
        for offset, length in places:
            line = parse_line(spool.read_line(offset, length))
            code, why = self._why(line.model or self._settings.default_model)
            payload = error_line(request_id(self._order.batch_id, offset), line.custom_id, code, why)
            segment.add(Record(Kind.SETTLED, offset, payload))

    def _why(self, model: str) -> tuple[LineCode, str]:
        if self._access.refusal(model) is LineCode.POLICY_REJECTED:
            return LineCode.POLICY_REJECTED, not_allowed(model)
        if model:
            return LineCode.MODEL_NOT_FOUND, not_served(model)
        endpoint = self._order.endpoint.value
        why = f"The request names no model, and there is no default model for {endpoint}"
        return LineCode.MODEL_NOT_FOUND, f"{why}: name one in `model`."

    async def _publish_map(self, shares: list[ModelShare], total: int) -> None:
        """Written last: an attempt without it was not finished."""
        found = ModelMap(
            model_to_safe={share.model: share.safe for share in shares},
            safe_to_model={share.safe: share.model for share in shares},
            line_count=total,
        )
        await self._storage.put(keys.model_map(self._prefix), msgspec.json.encode(found))


def _places_of(lines: ModelLines) -> bytes:
    return b"".join(map(pack_entry, lines.entries()))


def settled_counts(scanner: Scanner) -> dict[str, ModelCount]:
    """By model, the lines that ingestion has results of: taken over, or served by nobody."""
    settled = dict(scanner.adoption.counts) if scanner.adoption else {}
    for count in scanner.unserved.counts():
        before = settled.get(count.model) or ModelCount(model=count.model, lines=0)
        lines, failed = before.lines + count.lines, before.failed + count.failed
        settled[count.model] = before.model_copy(update={"lines": lines, "failed": failed})
    return settled


def _with_adopted(share: ModelShare, adoption: Adoption | None) -> ModelShare:
    count = adoption and adoption.counts.get(share.model)
    if not count:
        return share
    return share.model_copy(update={"adopted_completed": count.completed, "adopted_failed": count.failed})


def _twins_of(twins: Twins, model: str, spool: Spool, start: int) -> bytes:
    return packed(read_twins(twins.of(model), spool.read_line, start, _PIECE_LINES))


def _next_piece(ordered: Iterator[PlanLine], tables: _Tables, spool: Spool) -> bytearray:
    """The next lines of the shard, about a piece of them; nothing when there are none left."""
    lines: list[PlanLine] = []
    size = 0
    for line in ordered:
        lines.append(line)
        size += line.length
        if size >= _PIECE_BYTES or len(lines) == _PIECE_LINES:
            break
    tables.add(lines)
    return spool.read_lines([(line.offset, line.length) for line in lines])
