"""The configured S3 bucket: its client, key prefix and retries, and the translation of errors."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from batchwright.rules.stored_objects.object_keys import Bucket
from batchwright.storage.retries import OperationRetries, StorageOperation
from batchwright.storage.s3.errors import S3_ERRORS, to_storage_error

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.literals import ServerSideEncryptionType

T = TypeVar("T")

PARTS_IN_FLIGHT = 2  # in a whole process; a part has 8 MiB or more


@dataclass(frozen=True)
class S3Encryption:
    """Encryption that S3 must use for each new object.

    If `method` is None, the bucket's default encryption is used. `key_id` is the KMS key; empty for S3's
    default key.
    """

    method: "ServerSideEncryptionType | None" = None
    key_id: str = ""


@dataclass(frozen=True)
class S3Bucket:
    client: "S3Client"
    place: Bucket
    retries: OperationRetries
    encryption: S3Encryption
    part_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARTS_IN_FLIGHT))

    @property
    def name(self) -> str:
        return self.place.name

    def at(self, key: str) -> str:
        """Return the name that an object has in the bucket: the configured prefix, followed by the object's
        `key`.
        """
        return self.place.prefix + key

    async def call(
        self, operation: StorageOperation, doing: str, key: str, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Call `attempt` and return its result. Call it again after transient errors.

        Args:
            operation: kind of operation, for metrics and logs.
            doing: the action, such as `read`, for error messages.
            key: key of the object, for error messages.
            attempt: sends the request. It must be safe to call this function several times.

        Raises:
            ObjectMissing: there is no such object. Not raised if `operation` is STORE.
            StorageFull: no space is left.
            StorageUnavailable: S3 refuses the request, or is still unreachable after the last retry.
        """
        try:
            return await self.retries.run(operation, attempt)
        except S3_ERRORS as error:
            is_write = operation is StorageOperation.STORE
            raise to_storage_error(error, doing, key, self.place.url, is_write=is_write) from error
