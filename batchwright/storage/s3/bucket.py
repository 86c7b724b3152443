"""A bucket as the settings name it: the client, the prefix, and what every call to it goes through."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from batchwright.rules.locations import Bucket
from batchwright.storage.retries import Operation, Retries
from batchwright.storage.s3.errors import FAULTS, explained

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.literals import ServerSideEncryptionType

T = TypeVar("T")

PARTS_IN_FLIGHT = 2  # of all writers of a process: 16 MiB of 8 MiB parts


@dataclass(frozen=True)
class Encryption:
    """What is asked for with each new object; empty: what the bucket does by itself."""

    method: "ServerSideEncryptionType | None" = None
    key_id: str = ""


@dataclass(frozen=True)
class S3Bucket:
    client: "S3Client"
    place: Bucket
    retries: Retries
    encryption: Encryption = Encryption()
    part_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARTS_IN_FLIGHT))

    @property
    def name(self) -> str:
        return self.place.name

    def at(self, key: str) -> str:
        """The key as the bucket has it."""
        return self.place.prefix + key

    async def call(
        self, operation: Operation, doing: str, key: str, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """What `attempt` returns, after retries of what passes.

        Raises:
            ObjectMissing, StorageUnavailable, StorageFull: naming what was being done with `key`.
        """
        try:
            return await self.retries.run(operation, attempt)
        except FAULTS as error:
            raise explained(error, doing, key, self.place.url) from error
