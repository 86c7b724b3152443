"""Reads an object that does not belong to Batchwright."""

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from batchwright.rules.stored_objects.object_keys import Bucket
from batchwright.rules.stored_objects.object_locations import SCHEME, ObjectLocation
from batchwright.settings import Settings
from batchwright.storage.base import ObjectRefused, StorageUnavailable
from batchwright.storage.s3.download import S3Download
from batchwright.storage.s3.errors import refusal_of
from batchwright.storage.s3.storage import bucket_of, ignore_retry

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


async def read_object(
    client: "S3Client", settings: Settings, location: ObjectLocation, check_size: Callable[[int], None]
) -> AsyncGenerator[bytes]:
    """Yield the bytes of the object at `location` in pieces. `client` is open.

    All bytes are of one version of the object.

    Args:
        check_size: called with the size of the object in bytes before the first piece is yielded. It may
            raise an error to stop.

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
