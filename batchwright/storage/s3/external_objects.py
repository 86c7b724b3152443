"""Reads and writes objects in buckets that do not belong to Batchwright."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from batchwright.rules.stored_objects.object_keys import Bucket
from batchwright.rules.stored_objects.object_locations import SCHEME, ObjectLocation
from batchwright.settings import Settings
from batchwright.storage.base import ObjectRefused, ObjectWriter, StorageError, StorageUnavailable
from batchwright.storage.s3.download import S3Download
from batchwright.storage.s3.errors import refusal_of, write_refusal_of
from batchwright.storage.s3.multipart_upload import S3Upload, sweep_uploads
from batchwright.storage.s3.storage import bucket_of, ignore_retry, open_bucket

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

logger = logging.getLogger(__name__)


async def read_object(
    client: "S3Client", settings: Settings, location: ObjectLocation, check_size: Callable[[int], None]
) -> AsyncGenerator[bytes]:
    """Yield the bytes of the object at `location` in pieces. All pieces are of one version of the object.

    Args:
        client: an open client.
        check_size: called before each piece with the size of the whole object in bytes. To stop the download,
            `check_size` raises an error.

    Raises:
        ObjectMissing: there is no such object.
        ObjectChanged: the object was replaced while it was read.
        ObjectRefused: S3 refuses to return this object. The message says what to check.
        StorageUnavailable: the object cannot be read, even after retries.
    """
    bucket = bucket_of(client, settings, Bucket(location.bucket, ""), ignore_retry)
    download = S3Download(bucket, location.key, 0, None)
    try:
        while piece := await download.next():
            check_size(download.end)
            yield piece
    except StorageUnavailable as error:
        if reason := refusal_of(error.__cause__):
            url = f"{SCHEME}{location.bucket}/{location.key}"
            raise ObjectRefused(f"S3 refuses to return '{url}': {reason}.") from error
        raise
    finally:
        download.close()


@asynccontextmanager
async def object_writer(
    settings: Settings, location: ObjectLocation, *, is_repeated: bool
) -> AsyncGenerator[ObjectWriter]:
    """Context manager for writing an object. S3's address and credentials come from the settings.

    When the block ends, the object is complete, and has replaced an earlier object with the same key. If the
    block raises an exception, no object is written.

    Args:
        location: the object.
        is_repeated: True if this is not the first attempt to write the object. The parts that earlier
            attempts have sent to S3 are then deleted, because S3 charges for these parts. If the deletion
            fails, only a warning is logged.

    Raises:
        ObjectRefused: S3 refuses to write this object. The message says what to check.
        StorageUnavailable: the object cannot be written, even after retries.
    """
    async with open_bucket(settings, Bucket(location.bucket, location.key), ignore_retry) as bucket:
        if is_repeated:
            try:
                await sweep_uploads(bucket, timedelta())
            except StorageError as error:  # the credentials may not allow it
                logger.warning("parts of earlier attempts not deleted", extra={"error": str(error)})
        writer = _Writer(S3Upload(bucket, ""), location)
        try:
            yield writer
            await writer.finish()
        except BaseException:
            await asyncio.shield(writer.upload.abort())
            raise


class _Writer:
    """A writer that uploads an object. All methods raise ObjectRefused if S3 refuses to write the object."""

    def __init__(self, upload: S3Upload, location: ObjectLocation) -> None:
        self.upload, self._location = upload, location

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._translated():
            await self.upload.write(data)

    async def finish(self) -> None:
        with self._translated():
            await self.upload.finish()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except StorageUnavailable as error:
            if reason := write_refusal_of(error.__cause__):
                url = f"{SCHEME}{self._location.bucket}/{self._location.key}"
                raise ObjectRefused(f"S3 refuses to write '{url}': {reason}.") from error
            raise
