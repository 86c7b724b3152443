"""What a batch takes over from the one it resumes: the results of the same input's lines, in its order."""

import os
from typing import BinaryIO

from activities.errors import failure
from activities.ingest.spool import Spool
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import Failure
from batchwright.contracts.openai import Usage
from batchwright.database.rows import ModelCount
from batchwright.rules.ids import request_id
from batchwright.rules.results import ResultDamaged, line_id, settles, usage_in, with_id
from batchwright.rules.segments import Kind, Record, SegmentWriter

_SEGMENT_BYTES = 4 * 1024 * 1024
_NAMED = 1_000  # models counted by name
_OTHERS = "(other models)"
_SHOWN_NAME = 256


class ResultFile:
    """Lines in the input's order; `success` says whether they are of the output file. Used as a context."""

    def __init__(self, spool: Spool, *, success: bool) -> None:
        self.success = success
        self.id = ""  # of the next line; empty: there is none
        self._reader: BinaryIO = os.fdopen(os.dup(spool.file.fileno()), "rb")
        self._line = b""

    def begin(self) -> None:
        """Once all of the file is there. Raises ResultDamaged."""
        self._reader.seek(0)
        self._advance()

    def pop(self) -> bytes:
        """The next line without its newline. Raises ResultDamaged where the one after it is none."""
        line = self._line
        self._advance()
        return line

    def close(self) -> None:
        self._reader.close()

    def _advance(self) -> None:
        self._line = self._reader.readline().rstrip(b"\n")
        self.id = line_id(self._line) if self._line else ""


class Adoption:
    """Asked for each line of the input, one after the other; what it takes goes to segments on local disk.

    `complete`: the other batch's files have a line for every line of the input.
    """

    def __init__(self, order: BatchOrder, files: list[ResultFile], spool: Spool, *, complete: bool) -> None:
        assert order.origin is not None
        self.segments: list[tuple[int, int]] = []  # position in the spool, bytes
        self.counts: dict[str, ModelCount] = {}
        self._own, self._origin = order.batch_id, order.origin.batch_id
        self._files = files
        self._spool = spool
        self._complete = complete
        self._writer = SegmentWriter()
        self._end = 0

    @property
    def lines(self) -> int:
        return sum(count.lines for count in self.counts.values())

    def begin(self) -> None:
        """Before the first line. Raises Failure.RESULTS_DAMAGED."""
        try:
            for file in self._files:
                file.begin()
        except ResultDamaged as error:
            raise self._damaged(str(error)) from error

    def take(self, offset: int, model: str) -> bool:
        """Whether the line at `offset` has its result already. Raises Failure.RESULTS_DAMAGED."""
        wanted = request_id(self._origin, offset)
        try:
            for file in self._files:
                if file.id == wanted:
                    return self._take(file.pop(), file.success, offset, model)
        except ResultDamaged as error:
            raise self._damaged(str(error)) from error
        if self._complete:
            raise self._damaged(f"they have nothing for the line at byte {offset} of the input")
        return False

    def finish(self) -> None:
        """After the last line. Raises Failure.RESULTS_DAMAGED where results are left over."""
        for file in self._files:
            if file.id:
                raise self._damaged(f"{file.id} is of no line of the input")
        self._flush()

    def segment(self, number: int) -> bytes:
        position, length = self.segments[number]
        return os.pread(self._spool.file.fileno(), length, position)

    def _take(self, line: bytes, success: bool, offset: int, model: str) -> bool:
        if not success and not settles(line):
            return False
        usage = usage_in(line) if success else Usage()
        own = with_id(line, request_id(self._own, offset))
        self._writer.add(Record(Kind.SETTLED, offset, own, success, usage))
        self._count(model, success)
        if self._writer.size >= _SEGMENT_BYTES:
            self._flush()
        return True

    def _count(self, model: str, success: bool) -> None:
        name = model[:_SHOWN_NAME]
        name = name if name in self.counts or len(self.counts) < _NAMED else _OTHERS
        before = self.counts.get(name) or ModelCount(model=name, lines=0)
        self.counts[name] = ModelCount(
            model=name,
            lines=before.lines + 1,
            completed=before.completed + success,
            failed=before.failed + (not success),
        )

    def _flush(self) -> None:
        if len(self._writer):
            data = self._writer.finish()
            self._spool.write(data)
            self.segments.append((self._end, len(data)))
            self._end += len(data)
            self._writer = SegmentWriter()

    def _damaged(self, why: str) -> Exception:
        return failure(
            Failure.RESULTS_DAMAGED, f"The results of {self._origin!r} cannot be taken over: {why}."
        )
