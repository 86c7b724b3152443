"""Settle the lines of a batch that have no result: each gets an error as its result."""

from collections.abc import AsyncIterator, Iterable

from batchwright.activities.finalization.missing_lines import MissingLine, MissingLines
from batchwright.activities.services.backend_job_cancellation import RunningJob
from batchwright.activities.stored_results.input_order_index import ResultIndex
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.rules.ids import request_id
from batchwright.rules.input.line_parser import DECODE_ERRORS, read_fields, read_text
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.attempt_records import parse_attempt
from batchwright.rules.results.error_tally import line_error
from batchwright.rules.results.output_lines import error_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectMissing, Storage


class MissingLineSettler:
    """The step that gives each line without a result an error, and adds this error to the index of results.

    The error has the code `request.missing_line_code` and the line's custom_id, which is read from the input.
    """

    def __init__(
        self,
        storage: Storage,
        spool: ResultSpool,
        request: FinalizeRequest,
        missing: MissingLines,
        index: ResultIndex,
    ) -> None:
        self._storage = storage
        self._spool = spool
        self._request = request
        self._missing = missing
        self._index = index
        self._examples: dict[int, bytes] = dict.fromkeys(missing.first_of.values(), b"")
        self.running_jobs: dict[int, RunningJob] = {}  # jobs of these lines by offset, after `settle`

    async def settle(self, input_key: str | None) -> list[ErrorCount]:
        """Give every line without a result an error as its result. Return the number of errors per model.

        Each returned count also has one of the errors as an example.

        Args:
            input_key: storage key of the input file. If the key is None, or if the input file is missing, the
                lines are read from the shards, which contain the lines in the order of sending.

        Raises:
            ObjectMissing: both the input and a shard are missing.
            PlanDamaged: the input has no line at a position in the plan.
        """
        missing = self._missing
        try:
            await self._settle_from_input(input_key)
        except ObjectMissing:
            await self._settle_from_shards()
        return [
            line_error(self._examples[first], model).model_copy(update={"count": missing.by_model[model]})
            for model, first in missing.first_of.items()
        ]

    async def _settle_from_input(self, key: str | None) -> None:
        if key is None:
            raise ObjectMissing(f"The input file {self._request.order.input_file_id!r} is gone.")
        cutter = await self._spool.run_in_thread(_LineCutter, self._missing)
        async for piece in self._storage.read(key, cutter.start, cutter.end - cutter.start):
            await self._spool.run_in_thread(self._add_cut, cutter, piece)
        await self._spool.run_in_thread(lambda: self._add(cutter.rest()))

    def _add_cut(self, cutter: "_LineCutter", piece: bytes) -> None:
        self._add(cutter.feed(piece))

    async def _settle_from_shards(self) -> None:
        lines = _PlacedLines(self._missing)
        for number, share in enumerate(self._request.models):
            if not self._missing.by_model[share.model]:
                continue
            place = 0
            shard = self._storage.read(object_keys.shard(self._request.ingest_prefix, share.safe_model))
            async for some in whole_lines(shard):
                await self._spool.run_in_thread(self._add_placed, lines, number, place, some)
                place += len(some)

    def _add_placed(self, lines: "_PlacedLines", number: int, place: int, some: list[bytes]) -> None:
        self._add(lines.among(number, place, some))

    def _add(self, lines: Iterable[tuple[MissingLine, bytes]]) -> None:
        code = self._request.missing_line_code
        errors = [(line[0], self._error(line, data, code)) for line, data in lines]
        self._examples.update(error for error in errors if error[0] in self._examples)
        self._index.add_records([SegmentRecord(RecordKind.SETTLED, offset, line) for offset, line in errors])

    def _error(self, missing: MissingLine, line: bytes, code: LineCode) -> bytes:
        offset = missing[0]
        id = request_id(self._request.order.batch_id, offset)
        message = LINE_MESSAGES[code]
        attempts = [parse_attempt(self._index.line(row)) for row in self._missing.attempts_of(missing)]
        errors = [(one.count, one.backend_error) for one in attempts if one.backend_error]
        if errors:
            message = f"{message} The backend's last error: {max(errors)[1]}"
        latest = max(attempts, key=lambda one: one.order, default=None)
        if latest is not None and latest.job is not None:
            self.running_jobs[offset] = RunningJob(id, latest.job.upstream, latest.job.id)
        return error_line(id, _custom_id(offset, line), code, message)


class _PlacedLines:
    """A reader that selects the lines without a result from the lines of the shards.

    A shard is the stored copy of a model's lines. Shards are read only if the input file is missing. The
    caller must read the shards in the order of the models' numbers.
    """

    def __init__(self, missing: MissingLines) -> None:
        self._lines = missing.in_sending_order()
        self._next: MissingLine | None = None

    def among(self, number: int, place: int, lines: list[bytes]) -> list[tuple[MissingLine, bytes]]:
        """Return those of the given lines that have no result, each with its content.

        Args:
            number: number of the model whose shard contains the lines.
            place: how many lines of the shard come before `lines`.
            lines: consecutive lines of the shard.
        """
        found: list[tuple[MissingLine, bytes]] = []
        self._next = self._next or next(self._lines, None)
        while self._next is not None and self._next[2:4] < (number, place + len(lines)):
            _, _, model, at, _, _ = self._next
            if (model, at) >= (number, place):
                found.append((self._next, lines[at - place]))
            self._next = next(self._lines, None)
        return found


class _LineCutter:
    """A reader that receives the input piece by piece, and returns only the lines without a result."""

    def __init__(self, missing: MissingLines) -> None:
        self._lines = iter(missing)
        self._next = next(self._lines, None)
        assert self._next is not None
        self._buffer = bytearray()
        self.start = self._next[0]  # input offset of the buffer's first byte
        self.end = missing.end

    def feed(self, piece: bytes) -> list[tuple[MissingLine, bytes]]:
        self._buffer += piece
        lines: list[tuple[MissingLine, bytes]] = []
        while self._next is not None:
            offset, length, *_ = self._next
            at = offset - self.start
            if at + length > len(self._buffer):
                break
            lines.append((self._next, bytes(self._buffer[at : at + length])))
            self._next = next(self._lines, None)
        # Drop the bytes before the next missing line.
        next_offset = self.end if self._next is None else self._next[0]
        passed = min(next_offset - self.start, len(self._buffer))
        del self._buffer[:passed]
        self.start += passed
        return lines

    def rest(self) -> list[tuple[MissingLine, bytes]]:
        """Return the last line of the input, if it has no newline and needs a result; otherwise an empty
        list.

        Call this at the end of the input.

        Raises:
            PlanDamaged: the input ends before a planned line.
        """
        line = self._next
        if line is None:
            return []
        if not self._buffer or next(self._lines, None) is not None:
            raise PlanDamaged(f"The input ends before its line at byte {line[0]}.")
        return [(line, bytes(self._buffer))]


def _custom_id(offset: int, line: bytes) -> str:
    """Return the custom_id of a line. `offset` is the line's position in the input, for the error message.

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
