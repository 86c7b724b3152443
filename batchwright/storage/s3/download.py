"""One object being read: a connection that breaks is opened again where it broke."""

from typing import TYPE_CHECKING, TypedDict

from botocore.exceptions import ClientError, IncompleteReadError

from batchwright.storage.base import StorageUnavailable
from batchwright.storage.retries import Operation
from batchwright.storage.s3.bucket import S3Bucket
from batchwright.storage.s3.errors import code_of

if TYPE_CHECKING:
    from aiobotocore.response import StreamingBody

PIECE = 1024 * 1024
_PAST_THE_END = ("InvalidRange", "416")


class _Range(TypedDict, total=False):
    Range: str


class Download:
    """The bytes from `start`, at most `length`, piece by piece; `close` is due at the end in any case."""

    def __init__(self, bucket: S3Bucket, key: str, start: int, length: int | None) -> None:
        self._bucket, self._key = bucket, key
        self._at = start  # of the next byte to come from S3
        self._last = "" if length is None else str(start + length - 1)  # that is asked for
        self._end = -1  # of what there is: known with the first answer
        self._etag = ""
        self._piece = bytearray()
        self._body: StreamingBody | None = None

    async def next(self) -> bytes:
        """The next piece, of PIECE bytes but for the last; empty at the end.

        Raises:
            ObjectMissing
            StorageUnavailable: retries brought no byte, or the object was replaced meanwhile.
        """
        if self._at == self._end:
            return b""
        await self._bucket.call(Operation.RETRIEVE, "read", self._key, self._fill)
        piece, self._piece = bytes(self._piece), bytearray()
        return piece

    def close(self) -> None:
        if self._body is not None:
            self._body.close()  # pyright: ignore[reportUnknownMemberType]
            self._body = None

    async def _fill(self) -> None:
        """What it got before it failed is kept: the next attempt goes on behind that."""
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
            if code_of(error) not in _PAST_THE_END or self._end >= 0:
                raise
            self._end = self._at
            return None
        self._body = answer["Body"]
        self._agree(answer["ETag"], self._at + answer["ContentLength"])
        return self._body

    def _agree(self, etag: str, end: int) -> None:
        """Two objects are never mixed; compared here, as not every server heeds If-Match."""
        if self._end >= 0 and (etag, end) != (self._etag, self._end):
            raise StorageUnavailable(f"{self._key!r} in {self._bucket.place.url} changed while it was read.")
        self._etag, self._end = etag, end
