"""Write the objects of one ingestion attempt: plans, shards, slice tables and the model map.

A plan lists a model's lines in the order of sending. A shard contains these lines in the same order. A slice
is a range of a plan and its shard, and a slice table lists the slices. The model map lists the name that each
model has in storage keys.
"""

import asyncio
import time
from array import array
from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec import UNSET

from batchwright.activities.concurrency import map_concurrently, run_both
from batchwright.activities.ingestion.duplicate_detection import (
    DuplicateDetector,
    DuplicatePositions,
    read_duplicates,
)
from batchwright.activities.ingestion.input_spool import InputSpool
from batchwright.activities.ingestion.resumption import ResumedResults
from batchwright.activities.ingestion.scanner import IngestionContext, Scanner
from batchwright.activities.services.model_access import display_name, model_not_allowed, model_not_served
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.inference.limits.fleet_rate_limits import EffectiveRates
from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.rules.ids import request_id, safe_name
from batchwright.rules.input.line_parser import parse_line, read_fields, read_text
from batchwright.rules.input.line_rules import describe_body_problems
from batchwright.rules.planning.duplicate_list import encode_duplicates
from batchwright.rules.planning.plan_format import SLICE_BYTES, PlanEntry, pack_entry, pack_slice
from batchwright.rules.planning.prefix_order import ModelLines, PlanLine
from batchwright.rules.planning.slicing import (
    MAX_SLICE_LINES,
    MIN_LARGE_SLICE_LINES,
    Slicer,
    lines_alike,
    min_equal_slice_lines,
)
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.output_lines import error_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import Storage

_PIECE_BYTES = 1024 * 1024
_PIECE_LINES = 4096
_MODELS_AT_ONCE = 4
_LARGE_INPUT_LINES = 200_000  # for larger inputs, models are written one by one to limit the memory


class ModelMap(msgspec.Struct):
    """The content of the stored file `model_map.json`: the name that each model has in storage keys.

    Attributes:
        line_count: number of lines of the input.
    """

    model_to_safe: dict[str, str]
    safe_to_model: dict[str, str]
    line_count: int


class _DeadlinePassed(Exception):
    """The exception that is raised if the batch's deadline passes while lines are prepared for sending."""


class _PlanTables:
    """The plan and the slice table of one model, to which lines are added one by one.

    The plan lists the lines in the order of sending, with 16 bytes for each line. The slice table lists the
    slices, which are ranges of lines.
    """

    def __init__(self, slicer: Slicer, plan: GrowingBytes) -> None:
        self.plan = plan
        self.slices = bytearray()
        self._slicer = slicer
        self._uncut: list[PlanLine] = []  # lines of a group (with the same system prompt) that may go on

    def add(self, lines: list[PlanLine]) -> None:
        entries = [pack_entry((line.offset, line.length, line.prefix_hash)) for line in lines]
        self.plan.append(b"".join(entries))
        self._uncut += lines
        self._cut()

    def finish(self) -> None:
        self._cut(is_end=True)
        if (record := self._slicer.finish()) is not None:
            self.slices += pack_slice(record)

    def _cut(self, *, is_end: bool = False) -> None:
        """Pass lines to the slicer, except the last group, which may not be complete yet.

        A group consists of adjacent lines with the same system prompt. If `is_end` is True, or if the last
        group is too large for a slice, all lines are passed.
        """
        lines = self._uncut
        alike = lines_alike([line.prefix_hash for line in lines])
        begin = next((place for place, count in enumerate(alike) if place + count == len(lines)), 0)
        end = len(lines) if is_end else begin
        if len(lines) - end >= MAX_SLICE_LINES:
            end = len(lines)
            alike[begin:] = (count + MAX_SLICE_LINES for count in alike[begin:])
        for line, count in zip(lines[:end], alike, strict=False):
            if (record := self._slicer.add(line.length, line.work_units, count)) is not None:
                self.slices += pack_slice(record)
        self._uncut = lines[end:]


class Publisher:
    """The writer of the stored objects of one ingestion attempt: plans, shards (the lines) and slice tables.

    The storage keys of the objects begin with the attempt's own prefix.
    """

    def __init__(
        self,
        context: IngestionContext,
        storage: Storage,
        rates: EffectiveRates,
        prefix: str,
        spool: InputSpool,
    ) -> None:
        """Create the writer of one attempt.

        Args:
            rates: the rate limits in effect, which decide how many lines slices have.
            prefix: beginning of the storage keys of the attempt's objects.
            spool: the local copy of the input.
        """
        self._context = context
        self._settings = context.settings
        self._storage = storage
        self._rates = rates
        self._prefix = prefix
        self._spool = spool
        self._total = 0  # lines of the input
        self.errors = ErrorTally()  # errors of the lines that failed in ingestion and are written

    async def publish(self, scanner: Scanner) -> list[ModelShare]:
        """Store all objects of this ingestion attempt. Return the counts of each model.

        The objects are stored in this order:

        1. For each model: its lines (shard), their order of sending (plan), the division into slices (slice
           table), and the list of duplicate lines.
        2. The error results of the lines that failed during ingestion.
        3. If the batch resumes another batch: the results that are reused.
        4. The model map, which lists the name that each model has in storage keys.

        If the deadline passes before the shard, plan and slice table of a model are complete, none of the
        model's lines will be sent. This model gets only the plan and the list of duplicate lines, and has 0
        slices.
        """
        self._total = scanner.total
        ranks = array("I")
        if self._settings.plan_order == "prefix" and not self._context.deadline.passed(time.time()):
            ranks = await self._spool.run_in_thread(scanner.prefixes.ranks, self._spool.read_line)

        async def publish_model(model: str) -> ModelShare:
            lines = scanner.models.pop(model)
            try:
                share = await self._publish_model(model, lines, ranks)
            except _DeadlinePassed:
                share = await self._publish_plan_only(model, lines)
            share = await self._publish_duplicates(share, scanner.duplicates)
            if scanner.resumed and (count := scanner.resumed.counts.get(model)):
                resumed = {"resumed_completed": count.completed, "resumed_failed": count.failed}
                share = share.model_copy(update=resumed)
            return share

        at_once = _MODELS_AT_ONCE if scanner.total < _LARGE_INPUT_LINES else 1
        shares = await map_concurrently(publish_model, sorted(scanner.models), at_once=at_once)
        await self._publish_unserved(scanner)
        if scanner.resumed:
            await self._publish_resumed(scanner.resumed)
        await self._publish_map(shares, scanner.total)
        return shares

    async def _publish_model(self, model: str, lines: ModelLines, ranks: "array[int]") -> ModelShare:
        """Write one model's shard (its lines), plan (their order) and slice table.

        Return the number of lines and slices.

        Args:
            ranks: result of `PromptPrefixes.ranks`, if the lines are sent in the order of their prompt
                prefixes (system messages and tools); otherwise empty.

        Raises:
            _DeadlinePassed: the deadline passed before everything was written.
        """
        self._check_deadline()
        safe_model = safe_name(model)
        tables = _PlanTables(self._slicer(model, len(lines)), self._spool.new_bytes())
        ordered = await self._spool.run_in_thread(lines.in_order, ranks, self._spool.read_line)
        async with self._storage.writer(object_keys.shard(self._prefix, safe_model)) as shard:
            piece = await self._spool.run_in_thread(_next_piece, ordered, tables, self._spool)
            while piece:
                self._check_deadline()
                preparing = self._spool.run_in_thread(_next_piece, ordered, tables, self._spool)
                piece, _ = await run_both(preparing, shard.write(piece))
        tables.finish()
        await run_both(
            self._write_plan(safe_model, tables.plan),
            self._storage.put(object_keys.slice_table(self._prefix, safe_model), bytes(tables.slices)),
        )
        slices = len(tables.slices) // SLICE_BYTES
        queue = self._rates.queue_of(model)
        return ModelShare(model=model, safe_model=safe_model, lines=len(lines), slices=slices, queue=queue)

    async def _write_plan(self, safe_model: str, plan: GrowingBytes) -> None:
        key = object_keys.plan(self._prefix, safe_model)
        if len(plan) <= _PIECE_BYTES:
            await self._storage.put(key, await self._spool.run_in_thread(plan.read, 0, len(plan)))
            return
        pieces = plan.pieces(_PIECE_BYTES)
        async with self._storage.writer(key) as writer:
            while piece := await self._spool.run_in_thread(next, pieces, b""):
                await writer.write(piece)

    async def _publish_plan_only(self, model: str, lines: ModelLines) -> ModelShare:
        """Write the plan of a model whose lines will not be sent, and no slices.

        The plan is the list of the model's lines. Finalization needs it to write a result for each of them.
        Return the number of lines, with 0 slices.
        """
        safe_model = safe_name(model)
        entries = lines.entries()
        async with self._storage.writer(object_keys.plan(self._prefix, safe_model)) as plan:
            while piece := await self._spool.run_in_thread(_pack_entries, entries):
                await plan.write(piece)
        return ModelShare(model=model, safe_model=safe_model, lines=len(lines), slices=0)

    def _check_deadline(self) -> None:
        if self._context.deadline.passed(time.time()):
            raise _DeadlinePassed

    async def _publish_duplicates(self, share: ModelShare, detector: DuplicateDetector | None) -> ModelShare:
        """Write the list of the model's duplicate lines. Return `share` with the number of duplicates.

        Args:
            share: the counts of the model, without duplicates.
            detector: None if duplicates are not detected for this batch.
        """
        positions = detector.positions(share.model) if detector else None
        if not positions:
            return share
        async with self._storage.writer(object_keys.duplicates(self._prefix, share.safe_model)) as writer:
            for start in range(0, len(positions), _PIECE_LINES):
                await writer.write(
                    await self._spool.run_in_thread(_pack_duplicates, positions, self._spool, start)
                )
        return share.model_copy(update={"duplicates": len(positions)})

    def _slicer(self, model: str, lines: int) -> Slicer:
        """Return the object that divides a model's lines into slices.

        If the model has a rate limit, each turn (attempt to send a slice) sends at most N lines, and N is the
        same for all turns. The slices of the model then have a multiple of N lines. Otherwise the last turn
        of each slice would send fewer than N lines, but would use as much of the rate limit as N lines.
        """
        pacing = self._rates.pacing_of(model)
        if pacing is None:
            fewest = min_equal_slice_lines(self._total)
            return Slicer(MAX_SLICE_LINES, plan_lines=lines, fewest=fewest)
        return Slicer(MIN_LARGE_SLICE_LINES - MIN_LARGE_SLICE_LINES % pacing.lines)

    async def _publish_unserved(self, scanner: Scanner) -> None:
        """Write an error result for each line that failed during ingestion. These lines are not sent."""
        positions = zip(scanner.unserved.offsets, scanner.unserved.lengths, strict=True)
        number = 0
        while segment := await self._spool.run_in_thread(self._next_error_segment, positions):
            await self._storage.put(object_keys.unserved_segment(self._prefix, number), segment)
            number += 1

    async def _publish_resumed(self, resumed: ResumedResults) -> None:
        for number in range(len(resumed.segments)):
            data = await asyncio.to_thread(resumed.segment, number)
            await self._storage.put(object_keys.resumed_segment(self._prefix, number), data)

    def _next_error_segment(self, positions: Iterator[tuple[int, int]]) -> bytes:
        """Return a segment with the error results of the lines at the next `positions`.

        The segment ends when it has about `_PIECE_BYTES`. If no position is left, return no bytes.

        Args:
            positions: offset and length of each line that is in no segment yet.
        """
        segment = SegmentWriter()
        for offset, length in positions:
            id = request_id(self._context.order.batch_id, offset)
            payload, model = self._error_of(id, self._spool.read_line(offset, length))
            self.errors.add(line_error(payload, display_name(model)))
            segment.add(SegmentRecord(RecordKind.SETTLED, offset, payload))
            if segment.size >= _PIECE_BYTES:
                break
        return segment.finish() if len(segment) else b""

    def _error_of(self, id: str, data: bytes) -> tuple[bytes, str]:
        """Create the error result of a line that failed during ingestion.

        Return the error result, as a line of the error file, and the model of the line. The model is empty if
        the request itself is invalid, or if the line names no model and there is no default model.

        Args:
            id: request id of the line.
            data: the line, as it is in the input.
        """
        order = self._context.order
        if order.policy.lines_fail_alone:
            fields = read_fields(data)
            if fields.body is UNSET:  # the API leaves out the body of a request over the limit
                problems = (
                    f"The request is too large: it may have at most {self._settings.max_line_bytes} bytes. "
                    "Shorten it, or divide it into several requests."
                )
            else:
                problems = describe_body_problems(order.endpoint, fields.body)
            if problems:
                custom_id = read_text(fields.custom_id) or ""
                return error_line(id, custom_id, LineCode.INVALID_REQUEST, problems), ""
        line = parse_line(data)
        model = line.model or self._settings.default_model
        code, message = self._rejection(model)
        return error_line(id, line.custom_id, code, message), model

    def _rejection(self, model: str) -> tuple[LineCode, str]:
        if self._context.access.rejection_code(model) is LineCode.POLICY_REJECTED:
            return LineCode.POLICY_REJECTED, model_not_allowed(model)
        if model:
            return LineCode.MODEL_NOT_FOUND, model_not_served(model)
        endpoint = self._context.order.endpoint.value
        reason = f"The request names no model, and there is no default model for {endpoint}"
        return LineCode.MODEL_NOT_FOUND, f"{reason}: name one in `model`."

    async def _publish_map(self, shares: list[ModelShare], total: int) -> None:
        """Write the model map, which lists the name that each model has in storage keys.

        The map must be written last: if it exists, the ingestion attempt has written all its objects.
        """
        model_map = ModelMap(
            model_to_safe={share.model: share.safe_model for share in shares},
            safe_to_model={share.safe_model: share.model for share in shares},
            line_count=total,
        )
        await self._storage.put(object_keys.model_map(self._prefix), msgspec.json.encode(model_map))


def _pack_entries(entries: Iterator[PlanEntry]) -> bytes:
    """Return the next part of a plan as bytes, at most 64 KiB. Return no bytes at the end."""
    return b"".join(map(pack_entry, islice(entries, _PIECE_LINES)))


def settled_counts(scanner: Scanner) -> dict[str, ModelCounts]:
    """Count, for each model, the lines that have a result before any line of the batch is sent.

    These are the lines whose results were copied from a resumed batch, and the lines that failed during
    ingestion.
    """
    settled = dict(scanner.resumed.counts) if scanner.resumed else {}
    for count in scanner.unserved.counts():
        before = settled.get(count.model) or ModelCounts(model=count.model, lines=0)
        lines, failed = before.lines + count.lines, before.failed + count.failed
        settled[count.model] = before.model_copy(update={"lines": lines, "failed": failed})
    return settled


def _pack_duplicates(positions: DuplicatePositions, spool: InputSpool, start: int) -> bytes:
    return encode_duplicates(read_duplicates(positions, spool.read_line, start, _PIECE_LINES))


def _next_piece(ordered: Iterator[PlanLine], tables: _PlanTables, spool: InputSpool) -> bytearray:
    """Return the next lines in the order of sending, about 1 MiB, and record them in `tables`.

    The caller writes them to the shard, the stored copy of a model's lines. After the last line, return no
    bytes.
    """
    lines: list[PlanLine] = []
    size = 0
    for line in ordered:
        lines.append(line)
        size += line.length
        if size >= _PIECE_BYTES or len(lines) == _PIECE_LINES:
            break
    tables.add(lines)
    return spool.read_lines([(line.offset, line.length) for line in lines])
