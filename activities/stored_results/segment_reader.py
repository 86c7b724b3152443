"""Read the segments of a batch, stored objects with many results each, into the result index."""

import asyncio
from collections.abc import Iterable, Iterator

from batchwright.activities.concurrency import run_both
from batchwright.activities.stored_results.input_order_index import ResultIndex
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage, StorageUnavailable

_MAX_LISTINGS = 5
_AT_ONCE = 8
_AT_ONCE_BYTES = 8 * 1024 * 1024
_Read = tuple[str, bytes]


class SegmentReader:
    """A reader that adds segments (stored objects with many results each) from storage to the result index.

    Only a few segments are in memory at a time.
    """

    def __init__(self, storage: Storage, spool: ResultSpool, index: ResultIndex) -> None:
        self._storage = storage
        self._spool = spool
        self._index = index

    async def read_segment(self, key: str) -> int:
        """Read one segment and return the number of its results; 0 if storage does not have the segment."""
        data = await self._get(key)
        return 0 if data is None else await self._spool.run_in_thread(self._index.add_segment, key, data)

    async def read_prefix(self, root: str) -> int:
        """Read all segments whose storage keys begin with `root`. Return the number of results.

        Call this only after all processes have stopped writing and merging these segments.
        """
        return sum([await self.read_segment(info.key) async for info in self._storage.list(root)])

    async def read_live_prefix(self, root: str) -> None:
        """Read all segments whose storage keys begin with `root`, while a slice may be merging some of them.

        A merge replaces several segments by one new segment. If a segment disappears, the segments are listed
        again to find the new one.

        Raises:
            StorageUnavailable: segments have disappeared after each of five listings.
        """
        seen = frozenset[str]()
        for _ in range(_MAX_LISTINGS):
            if await self._read_groups(await self._new_groups(root, seen)):
                return
            seen = self._index.segments()
        raise StorageUnavailable(f"Segments under {root!r} keep disappearing while they are read.")

    async def _new_groups(self, root: str, seen: frozenset[str]) -> list[list[str]]:
        """List the segments whose storage keys begin with `root`, without those in `seen`.

        Return the storage keys of the segments in groups. The segments of a group are read at the same time.
        """
        new = [info async for info in self._storage.list(root) if info.key not in seen]
        await self._spool.run_in_thread(self._spool.require, sum(info.size for info in new))
        return list(_groups(new))

    async def _read_groups(self, groups: list[list[str]]) -> bool:
        """Read segments, given by their storage keys. Return False if at least one no longer exists."""
        complete, read = True, list[_Read]()
        for group in [*groups, []]:
            found, _ = await run_both(
                self._read(group), self._spool.run_in_thread(self._index_segments, read)
            )
            read = [(key, data) for key, data in found if data is not None]
            complete = complete and len(read) == len(group)
        return complete

    async def _read(self, group: list[str]) -> list[tuple[str, bytes | None]]:
        found = await asyncio.gather(*(self._get(key) for key in group))
        return list(zip(group, found, strict=True))

    def _index_segments(self, segments: list[_Read]) -> None:
        """Add the results in these segments to the index.

        This runs in a thread. Meanwhile, the event loop reads more segments.
        """
        for key, data in segments:
            self._index.add_segment(key, data)

    async def _get(self, key: str) -> bytes | None:
        try:
            return await self._storage.get(key)
        except ObjectMissing:
            return None


def _groups(infos: Iterable[ObjectInfo]) -> Iterator[list[str]]:
    """Divide stored objects into groups that are read at the same time. Yield the storage keys of each group.

    A group has at most 8 objects and 8 MiB. A larger object is a group by itself.
    """
    group: list[str] = []
    size = 0
    for info in infos:
        if group and (len(group) == _AT_ONCE or size + info.size > _AT_ONCE_BYTES):
            yield group
            group, size = [], 0
        group.append(info.key)
        size += info.size
    if group:
        yield group
