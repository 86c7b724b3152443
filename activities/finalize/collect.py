"""Reads every segment of a batch once."""

import asyncio
from collections.abc import Iterable, Iterator

from activities.finalize.settled import Settled
from activities.finalize.spool import Spool
from activities.side_by_side import side_by_side
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage, StorageUnavailable

_LISTINGS = 5
_AT_ONCE = 8
_AT_ONCE_BYTES = 8 * 1024 * 1024
_Read = tuple[str, bytes]


class Collector:
    """Segments are read a few at a time, few enough for their bytes to fit in memory."""

    def __init__(self, storage: Storage, spool: Spool, settled: Settled) -> None:
        self._storage = storage
        self._spool = spool
        self._settled = settled
        self._seen: set[str] = set()

    async def take(self, key: str) -> int:
        """One segment; how many settled lines it has: none where there is no such object."""
        data = await self._get(key)
        return 0 if data is None else await asyncio.to_thread(self._settled.take, key, data)

    async def take_root(self, root: str) -> int:
        """Every segment under `root`, where nobody writes any more; how many settled lines they have."""
        return sum([await self.take(info.key) async for info in self._storage.list(root)])

    async def take_all(self, root: str) -> None:
        """Every segment under `root`.

        A slice that was cut off may still be compacting: a segment that vanishes after the listing lives on
        in another, which the next listing shows. Raises StorageUnavailable if that never comes to rest.
        """
        for _ in range(_LISTINGS):
            fresh = [info async for info in self._storage.list(root) if info.key not in self._seen]
            await asyncio.to_thread(self._spool.require, sum(info.size for info in fresh))
            if await self._take_fresh(fresh):
                return
        raise StorageUnavailable(f"Segments under {root!r} keep vanishing while they are read.")

    async def _take_fresh(self, fresh: list[ObjectInfo]) -> bool:
        """Whether all of them were still there."""
        complete, read = True, list[_Read]()
        for group in [*_groups(fresh), []]:
            coming, _ = await side_by_side(self._read(group), asyncio.to_thread(self._take_read, read))
            read = [(key, data) for key, data in coming if data is not None]
            complete = complete and len(read) == len(group)
        return complete

    async def _read(self, group: list[str]) -> list[tuple[str, bytes | None]]:
        found = await asyncio.gather(*(self._get(key) for key in group))
        return list(zip(group, found, strict=True))

    def _take_read(self, segments: list[_Read]) -> None:
        """While the next ones are read."""
        for key, data in segments:
            self._settled.take(key, data)
            self._seen.add(key)

    async def _get(self, key: str) -> bytes | None:
        try:
            return await self._storage.get(key)
        except ObjectMissing:
            return None


def _groups(infos: Iterable[ObjectInfo]) -> Iterator[list[str]]:
    """Keys to read at once: at most a few, and no more bytes than that unless one alone has more."""
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
