"""Find the lines of a batch that have no result.

Only planned lines are considered: the lines in a plan. Ingestion writes one plan for each model, which lists
the model's lines in the order of sending.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import repeat

from batchwright.activities.stored_results.input_order_index import ResultIndex, SelectedResults
from batchwright.activities.stored_results.record_rows import RecordRow, RecordRows
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.rules.growing_bytes import sorted_rows, unpacked_rows
from batchwright.rules.planning.plan_format import ENTRY_BYTES, PlanDamaged, walk_entries
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import Storage

_PLANNED = struct.Struct(">QIII")  # offset and length in the input, number of the model, place in its plan
# The same, then the number of the first row of the line's attempts, and of the first row after them.
_MISSING = struct.Struct(">QIIIII")
_PLACED = struct.Struct(f">II{_MISSING.size}s")  # number of the model, place in its plan, row of `_MISSING`
MissingLine = tuple[int, int, int, int, int, int]
_ENTRIES_AT_ONCE = 4096
_END = 1 << 64  # greater than any offset


class MissingLines:
    """The lines of a batch that have no result, in the order of the input.

    Attributes:
        found: number of planned lines (lines in a model's plan) that have a result.
        models: line counts of each model that has a plan. A line without a result counts as failed.
        by_model: number of lines without a result, by model.
        first_of: for each model, the position (in bytes) in the input of the first line in the model's plan
            that has no result. If all lines of a model have a result, the model has no entry.
    """

    def __init__(self, spool: ResultSpool, shares: list[ModelShare]) -> None:
        self.found = 0
        self.models: list[ModelCounts] = []
        self.by_model: Counter[str] = Counter()
        self.first_of: dict[str, int] = {}
        self._shares = shares
        self._new_bytes = spool.new_bytes
        self._planned = spool.new_bytes()
        self._rows = spool.new_bytes()
        self._attempts = RecordRows(spool.new_bytes())

    def __len__(self) -> int:
        return len(self._rows) // _MISSING.size

    def __iter__(self) -> Iterator[MissingLine]:
        return unpacked_rows(self._rows, _MISSING)

    @property
    def end(self) -> int:
        """Position in the input, in bytes, at which the last line without a result ends.

        Do not call this if every line has a result.
        """
        offset, length, *_ = _MISSING.unpack(
            self._rows.read(len(self._rows) - _MISSING.size, len(self._rows))
        )
        return offset + length

    def attempts_of(self, line: MissingLine) -> list[RecordRow]:
        """Return the rows of the stored records about the line's attempts.

        Each row says where a record is in the local file.
        """
        return self._attempts.between(line[4], line[5])

    def in_sending_order(self) -> Iterator[MissingLine]:
        """Yield the lines without a result, model by model. Lines of a model are in the order of its plan."""
        placed = self._new_bytes()
        for line in self:
            _, _, model, place, _, _ = line
            placed.append(_PLACED.pack(model, place, _MISSING.pack(*line)))
        for row in sorted_rows(placed, _PLACED.size):
            yield _MISSING.unpack(row[-_MISSING.size :])
        placed.clear()

    def add_plan(self, number: int, place: int, entries: bytes) -> None:
        """Add a part of a model's plan, so that `find` can find the lines of this part that have no result.

        A plan lists all lines of a model in the order in which they are sent.

        Args:
            number: number of the model in the batch, counted from 0.
            place: number of lines in the plan that come before this part.
            entries: the part of the plan, as stored bytes. It consists of one or more whole entries, one for
                each line.

        Raises:
            PlanDamaged: an entry is not the position of a line.
        """
        step = _ENTRIES_AT_ONCE * ENTRY_BYTES
        for at in range(0, len(entries), step):
            offsets, lengths, _ = zip(*walk_entries(entries[at : at + step]), strict=True)
            places = range(place + at // ENTRY_BYTES, place + len(entries) // ENTRY_BYTES)
            try:
                rows = b"".join(map(_PLANNED.pack, offsets, lengths, repeat(number), places))
            except struct.error as error:
                raise PlanDamaged(f"A plan has a line that begins before the input: {error}.") from error
            self._planned.append(rows)

    def find(self, index: ResultIndex, selected: SelectedResults) -> None:
        """Find the planned lines that have no result, and count the lines of each model.

        Call this once, after `add_plan` has added all plans.

        Args:
            index: all stored records about lines, including the records of attempts.
            selected: the result of each line that has one.
        """
        completed, failed = ([0] * len(self._shares) for _ in range(2))
        first: list[tuple[int, int]] = [(_END, 0)] * len(self._shares)  # place in the plan, and offset
        self._attempts = index.attempt_rows()
        end = len(self._attempts), _END
        attempts = enumerate(self._attempts.offsets())
        number, attempted = next(attempts, end)
        for offset, length, model, place in self._without_result(selected, completed, failed):
            first[model] = min(first[model], (place, offset))
            while attempted < offset:
                number, attempted = next(attempts, end)
            start = number
            while attempted == offset:
                number, attempted = next(attempts, end)
            self._rows.append(_MISSING.pack(offset, length, model, place, start, number))
        self._planned.clear()
        for number, share in enumerate(self._shares):
            self._count(share, completed[number], failed[number], first[number][1])

    def _without_result(
        self, selected: SelectedResults, completed: list[int], failed: list[int]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield the planned lines without a result, and count all other planned lines.

        Each item is (offset in the input, length, number of the model, place in the model's plan). The
        counts are added to `completed` and `failed`, which are indexed by the number of the model.
        """
        successes, failures = selected.output.offsets(), selected.error.offsets()
        success, failure = next(successes, _END), next(failures, _END)
        for row in map(_PLANNED.unpack, sorted_rows(self._planned, _PLANNED.size)):
            offset, _, model, _ = row
            while success < offset:
                success = next(successes, _END)
            if success == offset:
                completed[model] += 1
                continue
            while failure < offset:
                failure = next(failures, _END)
            if failure == offset:
                failed[model] += 1
                continue
            yield row

    def _count(self, share: ModelShare, completed: int, failed: int, first_missing: int) -> None:
        missing = share.lines - completed - failed
        self.found += completed + failed
        self.by_model[share.model] += missing
        if missing:
            self.first_of[share.model] = first_missing
        self.models.append(
            ModelCounts(
                model=share.model,
                lines=share.lines + share.resumed_completed + share.resumed_failed,
                completed=completed + share.resumed_completed,
                failed=failed + missing + share.resumed_failed,
            )
        )


async def find_missing(
    storage: Storage,
    spool: ResultSpool,
    request: FinalizeRequest,
    index: ResultIndex,
    selected: SelectedResults,
) -> MissingLines:
    """Compare the plans of all models with the selected results, and return the lines without a result.

    A plan lists a model's lines in the order of sending.

    Raises:
        PlanDamaged: a plan does not have the number of lines that ingestion recorded.
    """
    missing = MissingLines(spool, request.models)
    for number, share in enumerate(request.models):
        place, size, rest = 0, share.lines * ENTRY_BYTES, b""
        key = object_keys.plan(request.ingest_prefix, share.safe_model)
        async for piece in storage.read(key):
            entries = rest + piece
            end = len(entries) // ENTRY_BYTES * ENTRY_BYTES
            entries, rest = entries[:end], entries[end:]
            if entries:
                await spool.run_in_thread(missing.add_plan, number, place, entries)
            place += len(entries) // ENTRY_BYTES
        if (found := place * ENTRY_BYTES + len(rest)) != size:
            raise PlanDamaged(f"Plan {key!r} has {found} bytes; {share.lines} lines need {ENTRY_BYTES} each.")
    await spool.run_in_thread(missing.find, index, selected)
    return missing
