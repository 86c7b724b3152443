"""Settle duplicate lines: each gets a copy of the result of the earlier line that it repeats."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable

from batchwright.activities.finalization.missing_lines import whole_lines
from batchwright.activities.results.result_index import ResultIndex, SelectedResults
from batchwright.activities.results.result_spool import ResultSpool
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.rules import object_keys
from batchwright.rules.ids import request_id
from batchwright.rules.json_text import storable
from batchwright.rules.planning.duplicate_lines import Duplicate, copy_result, decode_duplicates
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.dead_letters import FinalAttempt
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.storage.base import Storage

_BATCH_BYTES = 4 * 1024 * 1024


class DuplicateSettler:
    """Copies the results of original lines to their duplicates, after all other lines have results.

    Duplicates were not sent, so they do not change the token usage.
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
        self._entries = {True: selected.output, False: selected.error}
        self._offsets = {success: index.offsets_of(part) for success, part in self._entries.items()}
        self._dead_letters = dict(index.dead_letters(selected))
        self.errors = ErrorTally()  # errors of duplicates whose originals failed

    async def settle(self, models: list[ModelCounts]) -> list[ModelCounts]:
        """Add a result for each duplicate line to the index. Return new counts, which include the duplicates.

        Args:
            models: the counts of all models, without duplicates.

        Raises:
            PlanDamaged: a list of duplicates does not have the number of lines that ingestion recorded.
        """
        counts = {count.model: count for count in models}
        for share in self._request.models:
            if share.duplicates:
                counts[share.model] = await self._settle(share, counts[share.model])
        return list(counts.values())

    async def _settle(self, share: ModelShare, count: ModelCounts) -> ModelCounts:
        completed = lines = 0
        key = object_keys.duplicates(self._request.ingest_prefix, share.safe_model)
        async for some in whole_lines(self._storage.read(key)):
            duplicates = list(decode_duplicates(some))
            lines += len(duplicates)
            completed += await asyncio.to_thread(self._add, duplicates, share.model)
        if lines != share.duplicates:
            raise PlanDamaged(f"{key!r} has {lines} lines; {share.duplicates} were committed.")
        changes = {
            "lines": count.lines + lines,
            "completed": count.completed + completed,
            "failed": count.failed + lines - completed,
        }
        return count.model_copy(update=changes)

    def _add(self, duplicates: Iterable[Duplicate], model: str) -> int:
        """Add the results of duplicates to the index. Return how many of them are successes."""
        records: list[SegmentRecord] = []
        completed = size = 0
        for duplicate in duplicates:
            copies = self._records(duplicate)
            result = copies[-1]
            completed += result.success
            if not result.success:
                self.errors.add(line_error(result.payload, model))
            size += sum(len(record.payload) for record in copies)
            records += copies
            if size >= _BATCH_BYTES:
                self._index_records(records, size)
                records, size = [], 0
        self._index_records(records, size)
        return completed

    def _index_records(self, records: list[SegmentRecord], size: int) -> None:
        self._spool.require(size)
        self._index.add_records(records)

    def _records(self, duplicate: Duplicate) -> list[SegmentRecord]:
        success, entry = self._entry(duplicate.first)
        id = request_id(self._request.order.batch_id, duplicate.offset)
        line = copy_result(self._index.line(entry), id, duplicate.custom_id)
        result = SegmentRecord(RecordKind.SETTLED, duplicate.offset, line, success)
        dead_letter = self._dead_letters.get(duplicate.first)
        if dead_letter is None:
            return [result]
        last = FinalAttempt.model_validate_json(dead_letter).model_copy(
            update={"custom_id": storable(duplicate.custom_id)}
        )
        return [
            SegmentRecord(RecordKind.ATTEMPT, duplicate.offset, last.model_dump_json().encode(), final=True),
            result,
        ]

    def _entry(self, offset: int) -> tuple[bool, int]:
        """Find the result of the line at `offset` in the input.

        Return whether it is a success, and its entry number. The entry number is the result's position in the
        index.

        Raises:
            PlanDamaged: the line has no result.
        """
        for success, offsets in self._offsets.items():
            at = bisect_left(offsets, offset)
            if at < len(offsets) and offsets[at] == offset:
                return success, self._entries[success][at]
        raise PlanDamaged(f"There is no line at byte {offset} to which a duplicate line refers.")
