"""Objects in a bucket of S3, or of a server that speaks it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import TypedDict

from batchwright.storage.base import DatedObject, ObjectInfo, ObjectMissing, Storage, StorageUnavailable
from batchwright.storage.keys import check_key, check_prefix, is_key
from batchwright.storage.retries import Operation
from batchwright.storage.s3 import unfinished
from batchwright.storage.s3.bucket import S3Bucket
from batchwright.storage.s3.download import Download
from batchwright.storage.s3.upload import Upload, put

_DELETED_AT_ONCE = 16
_CHECKED_BY_WRITING_SECONDS = 300.0  # in a bucket with versions each such check leaves some


# An object without a date is not taken for an old one.
_NEW = datetime.max.replace(tzinfo=UTC)


class _Page(TypedDict, total=False):
    ContinuationToken: str
    StartAfter: str


class S3Storage(Storage):
    """Needs of the server what every one has: no conditional writes, no deletion of many at once."""

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._checked = replace(bucket, retries=bucket.retries.none())
        self._wrote_at: float | None = None  # when a check last did

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[Upload, None]:
        upload = Upload(self._bucket, check_key(key))
        try:
            yield upload
            await upload.finish()
        except BaseException:
            await asyncio.shield(upload.abort())
            raise

    async def put(self, key: str, data: bytes) -> None:
        await put(self._bucket, check_key(key), data)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if length == 0:
            await self.stat(key)
            return
        download = Download(self._bucket, check_key(key), start, length)
        try:
            while piece := await download.next():
                yield piece
        finally:
            download.close()

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        pieces = [piece async for piece in self.read(key, start, length)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def stat(self, key: str) -> ObjectInfo:
        client, bucket = self._bucket.client, self._bucket
        at = bucket.at(check_key(key))
        try:
            found = await bucket.call(
                Operation.RETRIEVE, "read", key, lambda: client.head_object(Bucket=bucket.name, Key=at)
            )
        except ObjectMissing:
            await self._look(bucket)  # the bucket may be what is missing; a HEAD does not tell
            raise
        return ObjectInfo(key, found["ContentLength"])

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for found in self.inventory(prefix):
            yield ObjectInfo(found.key, found.size)

    async def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        client, bucket = self._bucket.client, self._bucket
        at, token = bucket.at(check_prefix(prefix)), _Page()
        if after:
            token = _Page(StartAfter=bucket.at(check_key(after)))
        while True:
            page = await bucket.call(
                Operation.LIST,
                "list",
                prefix,
                lambda token=token: client.list_objects_v2(Bucket=bucket.name, Prefix=at, **token),
            )
            for found in page.get("Contents", []):
                key = found.get("Key", "").removeprefix(bucket.place.prefix)
                # Not the empty objects that consoles show as folders; some servers ignore StartAfter.
                if is_key(key) and key > after:
                    yield DatedObject(key, found.get("Size", 0), found.get("LastModified", _NEW))
            if "NextContinuationToken" not in page:
                return
            token = _Page(ContinuationToken=page["NextContinuationToken"])

    async def delete(self, key: str) -> None:
        client, bucket = self._bucket.client, self._bucket
        at = bucket.at(check_key(key))
        await bucket.call(
            Operation.DELETE, "delete", key, lambda: client.delete_object(Bucket=bucket.name, Key=at)
        )

    async def delete_prefix(self, prefix: str) -> int:
        keys = [info.key async for info in self.list(prefix)]
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            await self._delete_all(keys[first : first + _DELETED_AT_ONCE])
        return len(keys)

    async def _delete_all(self, keys: Sequence[str]) -> None:
        ends = await asyncio.gather(*(self.delete(key) for key in keys), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    async def check(self) -> None:
        """Lists; every five minutes, and until that has gone well, it also writes, reads and deletes."""
        now = time.monotonic()
        if self._wrote_at is None or now - self._wrote_at >= _CHECKED_BY_WRITING_SECONDS:
            await self._write_and_read()
            self._wrote_at = now
        else:
            await self._look(self._checked)

    async def _write_and_read(self) -> None:
        key, checked = f"check-{token_hex(8)}", S3Storage(self._checked)
        try:
            await checked.put(key, b"ok")
            if await checked.get(key) != b"ok":
                raise StorageUnavailable(f"{self._bucket.place.url} gives back other bytes than it got.")
        except ObjectMissing as error:
            raise StorageUnavailable(f"{self._bucket.place.url} lost what it got.") from error
        await checked.delete(key)

    async def _look(self, bucket: S3Bucket) -> None:
        """Lists one key: of all requests the one that says in words what is wrong."""
        client = bucket.client
        await bucket.call(
            Operation.LIST,
            "list",
            "",
            lambda: client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.place.prefix, MaxKeys=1),
        )

    async def sweep(self, older_than: timedelta) -> int:
        """Ends the multipart uploads below the prefix that began that long ago."""
        return await unfinished.sweep(self._bucket, older_than)
