"""Writes objects to S3: small objects in one request, large objects in parts.

S3 keeps the parts of an unfinished upload, and charges for them, until `sweep_uploads` aborts the upload.
"""

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, TypedDict

from botocore.exceptions import ClientError

from batchwright.storage.base import StorageError
from batchwright.storage.retries import StorageOperation
from batchwright.storage.s3.bucket import S3Bucket
from batchwright.storage.s3.errors import NO_SUCH_UPLOAD, error_code

if TYPE_CHECKING:
    from types_aiobotocore_s3.literals import ServerSideEncryptionType
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

logger = logging.getLogger(__name__)
MIB = 1024 * 1024
_MARK = "batchwright-upload"  # metadata by which an upload recognises its own finished object
_ABORT_SECONDS = 10.0


async def sweep_uploads(bucket: S3Bucket, older_than: timedelta) -> int:
    """Abort unfinished uploads that began at least `older_than` ago. Return how many were aborted.

    Only uploads below the configured key prefix are aborted.
    """
    count, horizon = 0, datetime.now(UTC) - older_than
    async for key, upload_id, started_at in _unfinished_uploads(bucket):
        if started_at < horizon:
            await abort_upload(bucket, key, upload_id)
            count += 1
    return count


async def abort_upload(bucket: S3Bucket, key: str, upload_id: str) -> None:
    """Abort an upload and delete its parts. If the upload has already ended, nothing happens."""

    async def attempt() -> None:
        try:
            await bucket.client.abort_multipart_upload(
                Bucket=bucket.name, Key=bucket.at(key), UploadId=upload_id
            )
        except ClientError as error:
            if error_code(error) != NO_SUCH_UPLOAD:
                raise

    await bucket.call(StorageOperation.DELETE, "end the upload of", key, attempt)


async def _unfinished_uploads(bucket: S3Bucket) -> AsyncIterator[tuple[str, str, datetime]]:
    key_marker, id_marker = "", ""
    while True:
        page = await bucket.call(
            StorageOperation.LIST,
            "list the uploads below",
            "",
            lambda key_marker=key_marker, id_marker=id_marker: bucket.client.list_multipart_uploads(
                Bucket=bucket.name,
                Prefix=bucket.place.prefix,
                KeyMarker=key_marker,
                UploadIdMarker=id_marker,
            ),
        )
        for upload in page.get("Uploads", []):
            key = upload.get("Key", "").removeprefix(bucket.place.prefix)
            if "UploadId" in upload and "Initiated" in upload:
                yield key, upload["UploadId"], upload["Initiated"]
        if not page.get("IsTruncated"):
            return
        key_marker, id_marker = page["NextKeyMarker"], page["NextUploadIdMarker"]


class _Encryption(TypedDict, total=False):
    ServerSideEncryption: "ServerSideEncryptionType"
    SSEKMSKeyId: str


def _encryption(bucket: S3Bucket) -> _Encryption:
    parameters: _Encryption = {}
    if bucket.encryption.method is not None:
        parameters["ServerSideEncryption"] = bucket.encryption.method
    if bucket.encryption.key_id:
        parameters["SSEKMSKeyId"] = bucket.encryption.key_id
    return parameters


def _body(data: bytes) -> bytes | io.BytesIO:
    """Return `data` as the body of a request: small data unchanged, large data as a stream.

    A stream is sent piece by piece, so that a large body does not block the event loop.
    """
    return data if len(data) <= MIB else io.BytesIO(data)


async def put_object(bucket: S3Bucket, key: str, data: bytes) -> None:
    """Write a whole object with the content `data` in one request."""
    await bucket.call(
        StorageOperation.STORE,
        "write",
        key,
        lambda: bucket.client.put_object(
            Bucket=bucket.name, Key=bucket.at(key), Body=_body(data), **_encryption(bucket)
        ),
    )


class S3Upload:
    """An upload of one object, piece by piece.

    After the last piece, call `finish`, which makes the object visible. If `finish` fails, or to give up the
    upload, call `abort`.
    """

    def __init__(self, bucket: S3Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._buffer = io.BytesIO()  # gives its bytes to the part without a copy
        self._id = ""  # id of the multipart upload, once it has begun
        self._mark = token_hex(16)
        self._etags: dict[int, str] = {}
        self._parts: list[asyncio.Task[None]] = []

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add data to the buffer, and start to send each part that is full.

        If too many parts are being sent already, wait first. Raises StorageUnavailable if this part or an
        earlier part could not be sent.
        """
        left = memoryview(data).cast("B")
        while left:
            # The first 1,000 parts have the same size, because some servers require this. Later parts are
            # larger, so that the 10,000 parts that S3 allows can hold 270 GiB.
            size = MIB * min(32, 8 << (len(self._parts) // 1000))
            left = left[self._buffer.write(left[: size - self._buffer.tell()]) :]
            if self._buffer.tell() == size:
                await self._send_part()

    async def finish(self) -> None:
        if not self._parts:
            await put_object(self._bucket, self._key, self._buffer.getvalue())
            return
        if self._buffer.tell():
            await self._send_part()
        for part in self._parts:
            await part
        await self._bucket.call(StorageOperation.STORE, "write", self._key, self._complete)

    async def abort(self) -> None:
        """Delete the parts that were sent. If S3 does not respond, `sweep_uploads` deletes them later."""
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
                "unfinished upload is left for the sweep", extra={"key": self._key, "error": str(error)}
            )

    async def _send_part(self) -> None:
        for part in self._parts:
            if part.done():
                part.result()
        data, self._buffer = self._buffer.getvalue(), io.BytesIO()
        if not self._id:
            self._id = await self._bucket.call(StorageOperation.STORE, "write", self._key, self._create)
        await self._bucket.part_slots.acquire()
        number = len(self._parts) + 1
        part = asyncio.create_task(self._upload_part(number, data))
        # Not in a `finally` of the task: a task cancelled before its first step would never reach it.
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

    async def _upload_part(self, number: int, data: bytes) -> None:
        async def attempt() -> str:
            sent = await self._bucket.client.upload_part(
                Bucket=self._bucket.name,
                Key=self._bucket.at(self._key),
                UploadId=self._id,
                PartNumber=number,
                Body=_body(data),
            )
            return sent["ETag"]

        self._etags[number] = await self._bucket.call(StorageOperation.STORE, "write", self._key, attempt)

    async def _complete(self) -> None:
        """Complete the upload, so that the object becomes visible.

        If an earlier attempt has created the object and its response was lost, S3 may answer the retry with
        an error. The error is ignored if the object exists and was created by this upload.
        """
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
            if not await self._is_completed():
                raise

    async def _is_completed(self) -> bool:
        try:
            found = await self._bucket.client.head_object(
                Bucket=self._bucket.name, Key=self._bucket.at(self._key)
            )
        except ClientError as error:
            if error_code(error) != "404":
                raise
            return False
        return found["Metadata"].get(_MARK) == self._mark
