"""Downloads one object. If the connection breaks, a new connection continues at the same byte."""

from typing import TYPE_CHECKING, TypedDict

from botocore.exceptions import ClientError, IncompleteReadError

from batchwright.storage.base import ObjectChanged
from batchwright.storage.retries import StorageOperation
from batchwright.storage.s3.bucket import S3Bucket
from batchwright.storage.s3.errors import error_code

if TYPE_CHECKING:
    from aiobotocore.response import StreamingBody

PIECE = 1024 * 1024
_PAST_THE_END = ("InvalidRange", "416")


class _Range(TypedDict, total=False):
    Range: str


class S3Download:
    """A download of an object's bytes, piece by piece, beginning at the position `start`.

    If `length` is None, all bytes up to the end are downloaded. Otherwise at most `length` bytes are
    downloaded. Always call `close` at the end.
    """

    def __init__(self, bucket: S3Bucket, key: str, start: int, length: int | None) -> None:
        self._bucket, self._key = bucket, key
        self._at = start  # position of the next byte from S3
        self._last = "" if length is None else str(start + length - 1)  # last requested byte
        self._end = -1  # end of the available bytes, known after the first response
        self._etag = ""
        self._piece = bytearray()
        self._body: StreamingBody | None = None

    @property
    def end(self) -> int:
        """Position in the object after the last byte to download; -1 before the first call of `next`."""
        return self._end

    async def next(self) -> bytes:
        """Return the next piece of the object, or empty bytes at the end.

        Each piece except the last one has PIECE bytes.

        Raises:
            ObjectMissing: there is no such object.
            StorageUnavailable: the download failed even after retries.
            ObjectChanged: the object was replaced during the download.
        """
        if self._at == self._end:
            return b""
        await self._bucket.call(StorageOperation.RETRIEVE, "read", self._key, self._fill)
        piece, self._piece = bytes(self._piece), bytearray()
        return piece

    def close(self) -> None:
        if self._body is not None:
            self._body.close()  # pyright: ignore[reportUnknownMemberType]
            self._body = None

    async def _fill(self) -> None:
        """Receive bytes until the current piece is full or the object ends.

        A repeated call after an error continues at the same byte.
        """
        try:
            body = self._body or await self._open()
            while body is not None and (wanted := min(PIECE - len(self._piece), self._end - self._at)):
                data = await body.read(wanted)
                if not data:
                    raise IncompleteReadError(actual_bytes=self._at, expected_bytes=self._end)
                self._piece += data
                self._at += len(data)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> "StreamingBody | None":
        ranged = _Range(Range=f"bytes={self._at}-{self._last}") if self._at or self._last else _Range()
        try:
            answer = await self._bucket.client.get_object(
                Bucket=self._bucket.name, Key=self._bucket.at(self._key), **ranged
            )
        except ClientError as error:
            if error_code(error) not in _PAST_THE_END or self._end >= 0:
                raise
            self._end = self._at
            return None
        self._body = answer["Body"]
        etag, end = answer["ETag"], self._at + answer["ContentLength"]
        # Compared here, because not every server supports If-Match.
        if self._end >= 0 and (etag, end) != (self._etag, self._end):
            raise ObjectChanged(f"{self._key!r} in {self._bucket.place.url} changed while it was read.")
        self._etag, self._end = etag, end
        return self._body
