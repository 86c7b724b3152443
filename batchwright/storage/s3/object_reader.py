"""Reads an object that does not belong to Batchwright."""

from collections.abc import AsyncGenerator

from batchwright.rules.locations import ObjectLocation
from batchwright.rules.object_keys import Bucket
from batchwright.settings import Settings
from batchwright.storage.retries import StorageOperation
from batchwright.storage.s3.download import S3Download
from batchwright.storage.s3.storage import open_bucket


async def read_object(settings: Settings, location: ObjectLocation) -> AsyncGenerator[bytes]:
    """Yield the bytes of an object in pieces, with the server and the credentials of the settings.

    All bytes are of one version of the object.

    Raises:
        ObjectMissing: there is no such object.
        ObjectChanged: the object was replaced while it was read.
        StorageUnavailable: the object cannot be read, even after retries.
    """
    async with open_bucket(settings, Bucket(location.bucket, ""), _ignore_retry) as bucket:
        download = S3Download(bucket, location.key, 0, None)
        try:
            while piece := await download.next():
                yield piece
        finally:
            download.close()


def _ignore_retry(operation: StorageOperation) -> None:
    """Count nothing: the metrics count the operations of Batchwright's own storage."""
