"""One object being written: at once if it is small, else in parts that go out while the next is filled."""

import asyncio
import io
import logging
from secrets import token_hex
from typing import TYPE_CHECKING, TypedDict

from botocore.exceptions import ClientError

from batchwright.storage.base import StorageError
from batchwright.storage.retries import Operation
from batchwright.storage.s3.bucket import S3Bucket
from batchwright.storage.s3.errors import code_of
from batchwright.storage.s3.unfinished import abort_upload

if TYPE_CHECKING:
    from types_aiobotocore_s3.literals import ServerSideEncryptionType
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
_MARK = "batchwright-upload"  # metadata that tells our finished object from any other of its name
_ABORT_SECONDS = 10.0


def part_bytes(number: int) -> int:
    """Equal parts up to 7.8 GiB, as some servers want them; 10,000 parts, S3's most, hold 270 GiB."""
    return MIB * min(32, 8 << ((number - 1) // 1000))


class _Encryption(TypedDict, total=False):
    ServerSideEncryption: "ServerSideEncryptionType"
    SSEKMSKeyId: str


def _encryption(bucket: S3Bucket) -> _Encryption:
    asked: _Encryption = {}
    if bucket.encryption.method is not None:
        asked["ServerSideEncryption"] = bucket.encryption.method
    if bucket.encryption.key_id:
        asked["SSEKMSKeyId"] = bucket.encryption.key_id
    return asked


def _body(data: bytes) -> bytes | io.BytesIO:
    """Of a stream the server is asked first whether it wants it: a round trip that small objects do without.

    A large one sent as bytes would hold up the event loop.
    """
    return data if len(data) <= MIB else io.BytesIO(data)


async def put(bucket: S3Bucket, key: str, data: bytes) -> None:
    """A whole object in one request."""
    await bucket.call(
        Operation.STORE,
        "write",
        key,
        lambda: bucket.client.put_object(
            Bucket=bucket.name, Key=bucket.at(key), Body=_body(data), **_encryption(bucket)
        ),
    )


class Upload:
    """Either `finish` or `abort` ends it. Nobody sees the object before `finish`."""

    def __init__(self, bucket: S3Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._buffer = io.BytesIO()  # gives its bytes away without a copy
        self._id = ""  # of the multipart upload, once there is one
        self._mark = token_hex(16)
        self._etags: dict[int, str] = {}
        self._parts: list[asyncio.Task[None]] = []

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Waits while too many parts are on their way. Raises StorageUnavailable where one is lost."""
        left = memoryview(data).cast("B")
        while left:
            size = part_bytes(len(self._parts) + 1)
            left = left[self._buffer.write(left[: size - self._buffer.tell()]) :]
            if self._buffer.tell() == size:
                await self._send_part()

    async def finish(self) -> None:
        if not self._parts:
            await put(self._bucket, self._key, self._buffer.getvalue())
            return
        if self._buffer.tell():
            await self._send_part()
        for part in self._parts:
            await part
        await self._bucket.call(Operation.STORE, "write", self._key, self._complete)

    async def abort(self) -> None:
        """Leaves nothing, or what a sweep will find where S3 does not answer."""
        for part in self._parts:
            part.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)
        if not self._id:
            return
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await abort_upload(self._bucket, self._key, self._id)
        except (StorageError, TimeoutError) as error:
            logger.warning(
                "an unfinished upload is left to the sweep", extra={"key": self._key, "error": str(error)}
            )

    async def _send_part(self) -> None:
        for part in self._parts:
            if part.done():
                part.result()
        data, self._buffer = self._buffer.getvalue(), io.BytesIO()
        if not self._id:
            self._id = await self._bucket.call(Operation.STORE, "write", self._key, self._create)
        await self._bucket.part_slots.acquire()
        number = len(self._parts) + 1
        part = asyncio.create_task(self._part(number, data))
        # Not in a `finally` of the part: one that is cancelled before its first step would never come to it.
        part.add_done_callback(lambda _: self._bucket.part_slots.release())
        self._parts.append(part)

    async def _create(self) -> str:
        created = await self._bucket.client.create_multipart_upload(
            Bucket=self._bucket.name,
            Key=self._bucket.at(self._key),
            Metadata={_MARK: self._mark},
            **_encryption(self._bucket),
        )
        return created["UploadId"]

    async def _part(self, number: int, data: bytes) -> None:
        async def attempt() -> str:
            sent = await self._bucket.client.upload_part(
                Bucket=self._bucket.name,
                Key=self._bucket.at(self._key),
                UploadId=self._id,
                PartNumber=number,
                Body=_body(data),
            )
            return sent["ETag"]

        self._etags[number] = await self._bucket.call(Operation.STORE, "write", self._key, attempt)

    async def _complete(self) -> None:
        """May come after one whose answer was lost: S3 then knows no such upload, but has the object."""
        parts: list[CompletedPartTypeDef] = [
            {"PartNumber": number, "ETag": etag} for number, etag in sorted(self._etags.items())
        ]
        try:
            await self._bucket.client.complete_multipart_upload(
                Bucket=self._bucket.name,
                Key=self._bucket.at(self._key),
                UploadId=self._id,
                MultipartUpload={"Parts": parts},
            )
        except ClientError:
            if not await self._is_there():
                raise

    async def _is_there(self) -> bool:
        try:
            found = await self._bucket.client.head_object(
                Bucket=self._bucket.name, Key=self._bucket.at(self._key)
            )
        except ClientError as error:
            if code_of(error) != "404":
                raise
            return False
        return found["Metadata"].get(_MARK) == self._mark
