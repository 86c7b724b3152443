"""Reads an object in S3 that a batch names as its input, and decompresses it if it is compressed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from batchwright.contracts.terms import ValidationError
from batchwright.rules.input.compression import DamagedArchive, expanded_name
from batchwright.rules.input.expanded_content import ExpandedContent
from batchwright.rules.input.validation_errors import ValidationCode
from batchwright.rules.stored_objects.object_keys import Bucket
from batchwright.rules.stored_objects.object_locations import ObjectLocation, parse_object
from batchwright.settings import Settings
from batchwright.storage.base import ObjectChanged, ObjectMissing, ObjectRefused

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


class InputRefused(Exception):
    """An object cannot be the input of a batch. `error` is shown to the client."""

    def __init__(self, code: ValidationCode, message: str) -> None:
        super().__init__(message)
        self.error = ValidationError(code=code.value, message=message, param="input_file_id")


class StoredBytes(NamedTuple):
    """How many bytes a tenant has stored, and the tenant's quota of stored bytes. A quota of 0 means no
    quota.
    """

    used: int = 0
    quota: int = 0

    def check(self, size: int) -> None:
        """Check that the tenant may store an input of at least `size` bytes.

        Raises:
            InputRefused: with the input, the tenant would exceed the quota.
        """
        if self.quota and self.used + size > self.quota:
            raise self.refused(size)

    def refused(self, size: int) -> InputRefused:
        message = (
            f"The input has at least {size} bytes. With the tenant's other files, that is more than the "
            f"{self.quota} bytes that it may store. Delete files, or let them expire."
        )
        return InputRefused(ValidationCode.STORAGE_QUOTA_EXCEEDED, message)


class InputObjects:
    """A reader of objects that batches name as their inputs. All reads use one S3 client, which the first
    read opens.

    Call `aclose` at the end, when no read is running.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opened, self._opening = AsyncExitStack(), asyncio.Lock()
        self._client: S3Client | None = None

    async def read(
        self, location: ObjectLocation, check_size: Callable[[int], None]
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of the object at `location` in pieces. All pieces are of one version of the object.

        For the parameters and the errors, see the function `read_object` in `s3/external_objects.py`. Also
        raises StorageUnavailable if the settings of S3 are invalid.
        """
        # Imported only if needed, and in a thread: it takes a second and 40 MB.
        await asyncio.to_thread(import_module, "batchwright.storage.s3.external_objects")
        from batchwright.storage.s3.external_objects import read_object
        from batchwright.storage.s3.storage import open_client

        async with self._opening:
            if self._client is None:
                opening = open_client(self.settings, Bucket(location.bucket, ""))
                self._client = await self._opened.enter_async_context(opening)
        async with aclosing(read_object(self._client, self.settings, location, check_size)) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the client. A later read opens a new one."""
        self._client = None
        await self._opened.aclose()


class ReferencedInput:
    """An object in S3 with the input of a batch. It is read once, and only one piece of it is in memory at a
    time.

    Args:
        url: URL of the object. The caller has checked the form of the URL, and that the tenant may read the
            object.
        stored: how many bytes the tenant has stored, and its quota. The input counts towards this quota,
            because it will be copied to Batchwright's storage.

    Attributes:
        bytes: number of bytes that were read so far, after decompression.
    """

    def __init__(self, objects: InputObjects, url: str, stored: StoredBytes) -> None:
        self._objects, self._url, self._stored = objects, url, stored
        self._location = parse_object(url)
        self._content = ExpandedContent(expands=True)
        self.bytes = 0

    @property
    def filename(self) -> str:
        """Name of the object without its folders. If the object is compressed, the name's ending (such as
        `.gz`) is removed.

        Read all pieces before you use this name. Only then is it known if the object is compressed.
        """
        name = self._location.name
        return expanded_name(name) if self._content.is_expanded else name

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the decompressed bytes of the input in pieces. All pieces are of one version of the object.

        Raises:
            InputRefused: the object does not exist, was replaced while it was read, is damaged or too large,
                or S3 refuses to return it.
            StorageUnavailable: S3 does not respond, even after retries, or the settings of S3 are invalid.
        """
        try:
            async with aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        except ObjectMissing:
            message = f"There is no object '{self._url}'. Correct the URL, or write the object first."
            raise InputRefused(ValidationCode.INPUT_NOT_FOUND, message) from None
        except ObjectChanged:
            message = (
                f"The object '{self._url}' was replaced while it was read. Try again once it is complete."
            )
            raise InputRefused(ValidationCode.INPUT_CHANGED, message) from None
        except ObjectRefused as error:
            raise InputRefused(ValidationCode.INPUT_UNREADABLE, str(error)) from None
        except DamagedArchive as error:
            raise InputRefused(ValidationCode.DAMAGED_ARCHIVE, str(error)) from None

    async def _pieces(self) -> AsyncGenerator[bytes]:
        async with aclosing(self._objects.read(self._location, self._check_size)) as received:
            async for piece in received:
                async for part in self._checked(self._content.feed(piece)):
                    yield part
        async for part in self._checked(self._content.finish()):
            yield part

    async def _checked(self, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        async for part in parts:
            self.bytes += len(part)
            self._check_size(self.bytes)
            yield part

    def _check_size(self, size: int) -> None:
        """Check that an input of at least `size` bytes is allowed. Called again and again while it is read.

        Raises:
            InputRefused: `size` bytes are more than a batch may have, or would exceed the tenant's quota.
        """
        limit = self._objects.settings.max_batch_file_bytes
        if size > limit:
            message = f"The input is too large: a batch takes at most {limit} bytes. Split it into several."
            raise InputRefused(ValidationCode.INPUT_TOO_LARGE, message)
        self._stored.check(size)
