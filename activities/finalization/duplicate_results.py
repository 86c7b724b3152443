"""Settle duplicate lines: each gets a copy of the result of the earlier line that it repeats."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from batchwright.activities.finalization.missing_line_settler import whole_lines
from batchwright.activities.stored_results.input_order_index import ResultIndex, SelectedResults
from batchwright.activities.stored_results.record_rows import RecordRow, offset_of
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.rules.growing_bytes import sorted_rows
from batchwright.rules.ids import request_id
from batchwright.rules.json_text import storable
from batchwright.rules.planning.duplicate_list import Duplicate, decode_duplicates
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.dead_letters import FinalAttempt
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.output_lines import copy_result
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import Storage

_BATCH_BYTES = 4 * 1024 * 1024
# Offset of the earlier line, offset of the duplicate, position and length of its custom_id in the local file,
# and number of its model.
_ROW = struct.Struct(">QQQII")


class _Original(NamedTuple):
    """The result of an earlier line that duplicates repeat.

    Attributes:
        failed: 1 if the result is a failure, otherwise 0.
        dead_letter: record of why the line failed; None if there is none.
    """

    failed: int
    line: bytes
    dead_letter: bytes | None


class DuplicateSettler:
    """The step that copies the results of original lines to the duplicate lines that repeat them.

    All other lines must already have results. Duplicates were not sent, so they do not change the number of
    used tokens.
    """

    def __init__(
        self,
        storage: Storage,
        request: FinalizeRequest,
        spool: ResultSpool,
        index: ResultIndex,
        selected: SelectedResults,
    ) -> None:
        self._storage, self._request, self._spool, self._index = storage, request, spool, index
        self._selected = selected
        self._rows = spool.new_bytes()
        self._completed = [0] * len(request.models)
        self.errors = ErrorTally()  # errors of duplicates whose originals failed

    async def settle(self, models: list[ModelCounts]) -> list[ModelCounts]:
        """Add a result for each duplicate line to the index of results. Return the new counts of all models.

        Args:
            models: the counts of all models without duplicates. The returned counts include them.

        Raises:
            PlanDamaged: a list of duplicates does not have the number of lines that ingestion recorded. Or a
                duplicate repeats a line that has no result.
        """
        for number, share in enumerate(self._request.models):
            if share.duplicates:
                await self._read(number)
        await self._spool.run_in_thread(self._add_results)
        counts = {count.model: count for count in models}
        for share, completed in zip(self._request.models, self._completed, strict=True):
            if share.duplicates:
                count = counts[share.model]
                changes = {
                    "lines": count.lines + share.duplicates,
                    "completed": count.completed + completed,
                    "failed": count.failed + share.duplicates - completed,
                }
                counts[share.model] = count.model_copy(update=changes)
        return list(counts.values())

    async def _read(self, number: int) -> None:
        """Read the stored list of a model's duplicate lines. The models of a batch are numbered from 0."""
        lines, share = 0, self._request.models[number]
        key = object_keys.duplicates(self._request.ingest_prefix, share.safe_model)
        async for some in whole_lines(self._storage.read(key)):
            lines += await self._spool.run_in_thread(self._add_rows, number, some)
        if lines != share.duplicates:
            raise PlanDamaged(f"{key!r} has {lines} lines; {share.duplicates} were committed.")

    def _add_rows(self, number: int, lines: list[bytes]) -> int:
        """Remember the positions of duplicate lines, and write their custom_ids to the spool (a local file).

        Return the number of duplicates.

        Args:
            number: number of the model in the batch, counted from 0.
            lines: lines of the model's list of duplicates, one for each duplicate.
        """
        duplicates = list(decode_duplicates(lines))
        names = [one.custom_id.encode("utf-8", "surrogatepass") for one in duplicates]
        self._spool.require(sum(map(len, names)))
        position = self._spool.append(b"".join(names))
        rows: list[bytes] = []
        for (offset, first, _), name in zip(duplicates, names, strict=True):
            try:
                rows.append(_ROW.pack(first, offset, position, len(name), number))
            except struct.error as error:
                raise PlanDamaged(f"An offset of the duplicate {name!r} is out of range: {error}.") from error
            position += len(name)
        self._rows.append(b"".join(rows))
        return len(duplicates)

    def _add_results(self) -> None:
        """Add the results of all duplicates to the index, in the order of the lines that they repeat."""
        records: list[SegmentRecord] = []
        models = [share.model for share in self._request.models]
        number: int
        size, last, original = 0, -1, _Original(0, b"", None)
        originals = _Originals(self._index, self._selected)
        for first, offset, position, length, number in map(_ROW.unpack, sorted_rows(self._rows, _ROW.size)):
            if first != last:
                last, original = first, originals.find(first)
            name = self._spool.read_parts([(position, length)], b"").decode("utf-8", "surrogatepass")
            copies = self._records(original, Duplicate(offset, first, name))
            if original.failed:
                self.errors.add(line_error(copies[-1].payload, models[number]))
            else:
                self._completed[number] += 1
            size += sum(len(record.payload) for record in copies)
            records += copies
            if size >= _BATCH_BYTES:
                self._index_records(records, size)
                records, size = [], 0
        self._index_records(records, size)
        self._rows.clear()

    def _index_records(self, records: list[SegmentRecord], size: int) -> None:
        self._spool.require(size)
        self._index.add_records(records)

    def _records(self, original: _Original, duplicate: Duplicate) -> list[SegmentRecord]:
        id = request_id(self._request.order.batch_id, duplicate.offset)
        line = copy_result(original.line, id, duplicate.custom_id)
        result = SegmentRecord(RecordKind.SETTLED, duplicate.offset, line, not original.failed)
        if original.dead_letter is None:
            return [result]
        last = FinalAttempt.model_validate_json(original.dead_letter).model_copy(
            update={"custom_id": storable(duplicate.custom_id)}
        )
        return [
            SegmentRecord(RecordKind.ATTEMPT, duplicate.offset, last.model_dump_json().encode(), final=True),
            result,
        ]


class _Originals:
    """The results and dead letters of the lines that duplicates repeat (originals).

    A dead letter is a record of why a line finally failed. Call `find` for the originals in the order of the
    input.
    """

    def __init__(self, index: ResultIndex, selected: SelectedResults) -> None:
        self._index = index
        self._parts: list[Iterator[RecordRow]] = [iter(selected.output), iter(selected.error)]
        self._next = [next(part, None) for part in self._parts]
        self._dead_letters = index.dead_letters(selected)
        self._dead_letter = next(self._dead_letters, None)

    def find(self, offset: int) -> _Original:
        """Return the result of the line at `offset` in the input, with the line's dead letter if it has one.

        Raises:
            PlanDamaged: the line has no result.
        """
        for failed, part in enumerate(self._parts):
            row = self._next[failed]
            while row is not None and offset_of(row[0]) < offset:
                row = next(part, None)
            self._next[failed] = row
            if row is not None and offset_of(row[0]) == offset:
                return _Original(failed, self._index.line(row), self._find_dead_letter(offset))
        raise PlanDamaged(f"There is no line at byte {offset} to which a duplicate line refers.")

    def _find_dead_letter(self, offset: int) -> bytes | None:
        """Return the last dead letter of the line (record of why it failed); None if the line has none."""
        found = None
        while self._dead_letter is not None and self._dead_letter[0] <= offset:
            if self._dead_letter[0] == offset:
                found = self._dead_letter[1]
            self._dead_letter = next(self._dead_letters, None)
        return found
