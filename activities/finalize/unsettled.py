"""Gives every line without a result its error line; the custom_ids come from the input, streamed once."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from activities.finalize.missing import Missing, read_plan
from activities.finalize.settled import Settled
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.finalization import FinalizeRequest
from batchwright.rules import keys
from batchwright.rules.answers import error_line
from batchwright.rules.ids import request_id
from batchwright.rules.lines import UNREADABLE, read_fields, read_text
from batchwright.rules.plan import PlanDamaged, unpack_entries
from batchwright.storage.base import ObjectMissing, Storage


class Unsettled:
    """Writes the error line of `request.unsettled` for each line of `missing` into `settled`."""

    def __init__(
        self, storage: Storage, request: FinalizeRequest, missing: Missing, settled: Settled
    ) -> None:
        self._storage = storage
        self._request = request
        self._missing = missing
        self._settled = settled

    async def settle(self, input_key: str | None) -> None:
        """Without the input the shards serve: they hold the same lines in another order.

        Raises:
            ObjectMissing: neither the input nor the shards are there.
            PlanDamaged: the lines are not where the plans say.
        """
        try:
            await self._from_input(input_key)
        except ObjectMissing:
            for share in self._request.models:
                plan = await read_plan(self._storage, self._request.prefix, share)
                await self._from_shard(plan, share.safe)

    async def _from_input(self, key: str | None) -> None:
        if key is None:
            raise ObjectMissing(f"The input file {self._request.order.input_file_id!r} is gone.")
        cutter = _Cutter(self._missing)
        async for piece in self._storage.read(key, cutter.start, cutter.end - cutter.start):
            await asyncio.to_thread(self._add_cut, cutter, piece)
        self._add(cutter.rest())

    def _add_cut(self, cutter: "_Cutter", piece: bytes) -> None:
        self._add(cutter.feed(piece))

    async def _from_shard(self, plan: bytes, safe: str) -> None:
        places = unpack_entries(plan)
        lines = whole_lines(self._storage.read(keys.shard(self._request.prefix, safe)))
        async for some in lines:
            pairs = [(place.offset, line) for line, place in zip(some, places, strict=False)]
            wanted = [pair for pair in pairs if pair[0] in self._missing]
            await asyncio.to_thread(self._add, wanted)

    def _add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        code = self._request.unsettled
        self._settled.add_errors([(offset, self._error(offset, line, code)) for offset, line in lines])

    def _error(self, offset: int, line: bytes, code: LineCode) -> bytes:
        id = request_id(self._request.order.batch_id, offset)
        return error_line(id, _custom_id(offset, line), code, LINE_MESSAGES[code])


class _Cutter:
    """Cuts the missing lines out of the input's pieces as they come by."""

    def __init__(self, missing: Missing) -> None:
        self._missing = missing
        self._next = 0
        self._buffer = bytearray()
        self.start = missing[0].offset  # of the buffer, in the input
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
        self._forget()
        return lines

    def rest(self) -> list[tuple[int, bytes]]:
        """The input's last line where the plan counts a newline that is not there."""
        if self._next < len(self._missing) - 1 or (self._next < len(self._missing) and not self._buffer):
            raise PlanDamaged(f"The input ends before its line at byte {self._missing[self._next].offset}.")
        return [(self._missing[self._next].offset, bytes(self._buffer))] if self._buffer else []

    def _forget(self) -> None:
        """Drops what no missing line needs any more."""
        wanted = self._missing[self._next].offset if self._next < len(self._missing) else self.end
        passed = min(wanted - self.start, len(self._buffer))
        del self._buffer[:passed]
        self.start += passed


def _custom_id(offset: int, line: bytes) -> str:
    """Raises PlanDamaged where the bytes are no request: the plan points beside the lines then."""
    try:
        custom_id = read_text(read_fields(line).custom_id)
    except UNREADABLE:
        custom_id = None
    if custom_id is None:
        raise PlanDamaged(f"The plan says there is a line at byte {offset} of the input; there is none.")
    return custom_id


async def whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Whole lines, some at a time."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield lines
    if rest:
        yield [rest]
