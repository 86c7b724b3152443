"""Gives the lines that ask what another one asked that one's result, whatever it is."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable

from activities.finalize.settled import Choice, Settled
from activities.finalize.spool import Spool
from activities.finalize.unsettled import whole_lines
from batchwright.contracts.finalization import FinalizeRequest
from batchwright.contracts.ingestion import ModelShare
from batchwright.database.rows import ModelCount
from batchwright.rules import keys
from batchwright.rules.dead_letters import LastAttempt
from batchwright.rules.duplicates import Duplicate, retold, unpacked
from batchwright.rules.ids import request_id
from batchwright.rules.plan import PlanDamaged
from batchwright.rules.segments import Kind, Record
from batchwright.storage.base import Storage

_AT_ONCE_BYTES = 4 * 1024 * 1024


class Doubles:
    """Once every other line of the batch has its result. Their own count no usage: nobody asked them."""

    def __init__(
        self, storage: Storage, request: FinalizeRequest, spool: Spool, settled: Settled, choice: Choice
    ) -> None:
        self._storage, self._request, self._spool, self._settled = storage, request, spool, settled
        self._entries = {True: choice.output, False: choice.error}
        self._offsets = {success: settled.offsets_of(part) for success, part in self._entries.items()}
        self._finals = dict(settled.finals(choice))

    async def settle(self, models: list[ModelCount]) -> list[ModelCount]:
        """The models' counts with these lines. Raises PlanDamaged where there are not as many as planned."""
        counts = {count.model: count for count in models}
        for share in self._request.models:
            if share.duplicates:
                counts[share.model] = await self._settle(share, counts[share.model])
        return list(counts.values())

    async def _settle(self, share: ModelShare, count: ModelCount) -> ModelCount:
        completed = lines = 0
        key = keys.duplicates(self._request.prefix, share.safe)
        async for some in whole_lines(self._storage.read(key)):
            duplicates = list(unpacked(some))
            lines += len(duplicates)
            completed += await asyncio.to_thread(self._add, duplicates)
        if lines != share.duplicates:
            raise PlanDamaged(f"{key!r} has {lines} lines; {share.duplicates} were committed.")
        changes = {
            "lines": count.lines + lines,
            "completed": count.completed + completed,
            "failed": count.failed + lines - completed,
        }
        return count.model_copy(update=changes)

    def _add(self, duplicates: Iterable[Duplicate]) -> int:
        """How many succeeded."""
        records: list[Record] = []
        completed = size = 0
        for one in duplicates:
            made = self._records(one)
            completed += made[-1].success
            size += sum(len(record.payload) for record in made)
            records += made
            if size >= _AT_ONCE_BYTES:
                self._store(records, size)
                records, size = [], 0
        self._store(records, size)
        return completed

    def _store(self, records: list[Record], size: int) -> None:
        self._spool.require(size)
        self._settled.add(records)

    def _records(self, one: Duplicate) -> list[Record]:
        success, entry = self._entry(one.first)
        id = request_id(self._request.order.batch_id, one.offset)
        line = retold(self._settled.payload(entry), id, one.custom_id)
        result = Record(Kind.SETTLED, one.offset, line, success)
        final = self._finals.get(one.first)
        if final is None:
            return [result]
        last = LastAttempt.model_validate_json(final).model_copy(update={"custom_id": one.custom_id})
        return [Record(Kind.ATTEMPT, one.offset, last.model_dump_json().encode(), final=True), result]

    def _entry(self, offset: int) -> tuple[bool, int]:
        """Whether the line at `offset` succeeded, and where its result is. Raises PlanDamaged."""
        for success, offsets in self._offsets.items():
            at = bisect_left(offsets, offset)
            if at < len(offsets) and offsets[at] == offset:
                return success, self._entries[success][at]
        raise PlanDamaged(f"There is no line at byte {offset} that another one could have its answer of.")
