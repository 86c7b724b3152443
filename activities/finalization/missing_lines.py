"""Find the planned lines of a batch that have no result, and settle each of them with an error."""

import asyncio
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import msgspec

from batchwright.activities.results.result_index import ResultIndex
from batchwright.activities.services.backend_jobs import RunningJob
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.rules import object_keys
from batchwright.rules.ids import request_id
from batchwright.rules.input.line_parser import DECODE_ERRORS, read_fields, read_text
from batchwright.rules.planning.plan_format import ENTRY_BYTES, PlanDamaged, unpack_entries
from batchwright.rules.results.error_tally import line_error
from batchwright.rules.results.output_lines import error_line
from batchwright.storage.base import ObjectMissing, Storage

_LENGTH_BITS = 32


class LinePosition(NamedTuple):
    offset: int
    length: int


class MissingLines:
    """Collects the lines of a batch that have no result, in the order of the input.

    Attributes:
        found: number of planned lines that have a result.
        models: counts of each planned model. A line without a result counts as failed.
        by_model: number of lines without a result, by model.
        first_of: for each model with lines without a result, the offset of the first such line in the order
            of sending.
    """

    def __init__(self) -> None:
        self.found = 0
        self.models: list[ModelCounts] = []
        self.by_model: Counter[str] = Counter()
        self.first_of: dict[str, int] = {}
        self._packed: list[int] = []

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, number: int) -> LinePosition:
        packed = self._packed[number]
        return LinePosition(packed >> _LENGTH_BITS, packed & (1 << _LENGTH_BITS) - 1)

    def __contains__(self, offset: int) -> bool:
        at = bisect_left(self._packed, offset << _LENGTH_BITS)
        return at < len(self._packed) and self._packed[at] >> _LENGTH_BITS == offset

    def compare(self, share: ModelShare, plan: bytes, completed: "array[int]", failed: "array[int]") -> None:
        """Find the lines in a model's plan that have no result. Record them and the counts of the model.

        Args:
            share: the model's part of the batch, with the number of lines that ingestion recorded.
            plan: bytes of the plan, which lists the model's lines in the order of sending.
            completed: offsets of all lines that succeeded, ascending.
            failed: offsets of all lines that failed, ascending.
        """
        lines = successes = failures = 0
        for offset, length, _ in unpack_entries(plan):
            lines += 1
            if _contains(completed, offset):
                successes += 1
            elif _contains(failed, offset):
                failures += 1
            else:
                self._packed.append(offset << _LENGTH_BITS | length)
                self.first_of.setdefault(share.model, offset)
        self.found += successes + failures
        self.by_model[share.model] += lines - successes - failures
        self._packed.sort()
        resumed = share.resumed_completed, share.resumed_failed
        count = ModelCounts(
            model=share.model,
            lines=lines + sum(resumed),
            completed=successes + resumed[0],
            failed=lines - successes + resumed[1],
        )
        self.models.append(count)


def _contains(ascending: "array[int]", offset: int) -> bool:
    at = bisect_left(ascending, offset)
    return at < len(ascending) and ascending[at] == offset


async def read_plan(storage: Storage, prefix: str, share: ModelShare) -> bytes:
    """Read a model's plan from storage. The plan lists the model's lines in the order of sending.

    Raises:
        PlanDamaged: the plan does not have the number of lines that ingestion recorded.
    """
    key = object_keys.plan(prefix, share.safe_model)
    data = await storage.get(key)
    if len(data) != share.lines * ENTRY_BYTES:
        raise PlanDamaged(f"Plan {key!r} has {len(data)} bytes; {share.lines} lines need {ENTRY_BYTES} each.")
    return data


async def find_missing(
    storage: Storage,
    prefix: str,
    models: list[ModelShare],
    completed: "array[int]",
    failed: "array[int]",
) -> MissingLines:
    missing = MissingLines()
    for share in models:
        plan = await read_plan(storage, prefix, share)
        await asyncio.to_thread(missing.compare, share, plan, completed, failed)
    return missing


class MissingLineSettler:
    """Gives an error result to each line that has no result, and adds it to the index.

    The error has the code `request.missing_line_code` and the line's custom_id, which is read from the input.
    """

    def __init__(
        self, storage: Storage, request: FinalizeRequest, missing: MissingLines, index: ResultIndex
    ) -> None:
        self._storage = storage
        self._request = request
        self._missing = missing
        self._index = index
        self._examples: dict[int, bytes] = dict.fromkeys(missing.first_of.values(), b"")
        self.running_jobs: dict[int, RunningJob] = {}  # jobs of these lines by offset, after `settle`

    async def settle(self, input_key: str | None) -> list[ErrorCount]:
        """Give every line without a result an error as its result. Return the number of errors by model.

        Each returned count also has one of the errors as an example.

        Args:
            input_key: storage key of the input file. If it is None or the object is missing, the lines are
                read from the shards, which contain the lines in the order of sending.

        Raises:
            ObjectMissing: both the input and a shard are missing.
            PlanDamaged: the input has no line at a position in the plan.
        """
        missing = self._missing
        try:
            await self._settle_from_input(input_key)
        except ObjectMissing:
            for share in self._request.models:
                plan = await read_plan(self._storage, self._request.ingest_prefix, share)
                await self._settle_from_shard(plan, share.safe_model)
        return [
            line_error(self._examples[first], model).model_copy(update={"count": missing.by_model[model]})
            for model, first in missing.first_of.items()
        ]

    async def _settle_from_input(self, key: str | None) -> None:
        if key is None:
            raise ObjectMissing(f"The input file {self._request.order.input_file_id!r} is gone.")
        cutter = _LineCutter(self._missing)
        async for piece in self._storage.read(key, cutter.start, cutter.end - cutter.start):
            await asyncio.to_thread(self._add_cut, cutter, piece)
        self._add(cutter.rest())

    def _add_cut(self, cutter: "_LineCutter", piece: bytes) -> None:
        self._add(cutter.feed(piece))

    async def _settle_from_shard(self, plan: bytes, safe_model: str) -> None:
        entries = unpack_entries(plan)
        lines = whole_lines(self._storage.read(object_keys.shard(self._request.ingest_prefix, safe_model)))
        async for some in lines:
            pairs = [(entry.offset, line) for line, entry in zip(some, entries, strict=False)]
            missing = [pair for pair in pairs if pair[0] in self._missing]
            await asyncio.to_thread(self._add, missing)

    def _add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        code = self._request.missing_line_code
        errors = [(offset, self._error(offset, line, code)) for offset, line in lines]
        self._examples.update(error for error in errors if error[0] in self._examples)
        self._index.add_errors(errors)

    def _error(self, offset: int, line: bytes, code: LineCode) -> bytes:
        id = request_id(self._request.order.batch_id, offset)
        message = LINE_MESSAGES[code]
        attempts = [_ATTEMPT_DECODER.decode(record) for record in self._index.earlier_attempts(offset)]
        errors = [(one.count, one.backend_error) for one in attempts if one.backend_error]
        if errors:
            message = f"{message} The backend's last error: {max(errors)[1]}"
        # The end of a job raises `jobs`. So of two otherwise equal records, that with a job is newer.
        latest = max(attempts, key=lambda one: (one.count, one.jobs, one.job is not None), default=None)
        if latest is not None and latest.job is not None:
            self.running_jobs[offset] = RunningJob(id, latest.job.upstream, latest.job.id)
        return error_line(id, _custom_id(offset, line), code, message)


class _JobRecord(msgspec.Struct):
    upstream: str
    id: str = ""


class _AttemptRecord(msgspec.Struct):
    """The fields of a stored attempt that this module reads."""

    count: int = 0
    jobs: int = 0
    job: _JobRecord | None = None
    backend_error: str = ""


_ATTEMPT_DECODER = msgspec.json.Decoder(_AttemptRecord)


class _LineCutter:
    """Cuts the lines without a result out of the input, which it receives piece by piece."""

    def __init__(self, missing: MissingLines) -> None:
        self._missing = missing
        self._next = 0
        self._buffer = bytearray()
        self.start = missing[0].offset  # input offset of the buffer's first byte
        self.end = sum(missing[len(missing) - 1])

    def feed(self, piece: bytes) -> list[tuple[int, bytes]]:
        self._buffer += piece
        lines: list[tuple[int, bytes]] = []
        while self._next < len(self._missing):
            offset, length = self._missing[self._next]
            at = offset - self.start
            if at + length > len(self._buffer):
                break
            lines.append((offset, bytes(self._buffer[at : at + length])))
            self._next += 1
        # Drop the bytes before the next missing line.
        next_offset = self._missing[self._next].offset if self._next < len(self._missing) else self.end
        passed = min(next_offset - self.start, len(self._buffer))
        del self._buffer[:passed]
        self.start += passed
        return lines

    def rest(self) -> list[tuple[int, bytes]]:
        """Return the last line of the input, as [(offset, line)], if it has no newline and needs a result.

        In all other cases, return an empty list. Call this at the end of the input.

        Raises:
            PlanDamaged: the input ends before a planned line.
        """
        if self._next < len(self._missing) - 1 or (self._next < len(self._missing) and not self._buffer):
            raise PlanDamaged(f"The input ends before its line at byte {self._missing[self._next].offset}.")
        return [(self._missing[self._next].offset, bytes(self._buffer))] if self._buffer else []


def _custom_id(offset: int, line: bytes) -> str:
    """Return the custom_id of the line.

    Raises:
        PlanDamaged: the bytes are not a request, so a position in the plan is wrong.
    """
    try:
        custom_id = read_text(read_fields(line).custom_id)
    except DECODE_ERRORS:
        custom_id = None
    if custom_id is None:
        raise PlanDamaged(f"The plan says there is a line at byte {offset} of the input, but there is none.")
    return custom_id


async def whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Split a stream of bytes into lines, without newlines.

    After each piece of the stream, the lines that end in this piece are yielded as one list.
    """
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield lines
    if rest:
        yield [rest]
