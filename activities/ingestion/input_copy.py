"""Copies the input that a batch names by reference to the storage of Batchwright, where uploads are.

The copy is a file of the tenant. Everything after it reads the copy, so the object may change or disappear.
"""

from contextlib import aclosing
from datetime import UTC, datetime
from secrets import token_hex

from batchwright.contracts.payloads.batch import BatchOrder
from batchwright.contracts.terms import ValidationError
from batchwright.database.database import Database
from batchwright.database.records import FileRow
from batchwright.rules import object_keys
from batchwright.rules.input.compression import DamagedArchive, expanded_name
from batchwright.rules.input.errors import ValidationCode
from batchwright.rules.input.expanded_content import ExpandedContent
from batchwright.rules.locations import ObjectLocation, parse_object
from batchwright.rules.retention import INPUT_FILE_LIFETIME
from batchwright.settings import Settings
from batchwright.storage.base import ObjectChanged, ObjectMissing, ObjectRefused, ObjectWriter, Storage

_MAX_NAME_CHARACTERS = 255


class InputRefused(Exception):
    """Raised if the input of a batch cannot be copied. The batch then fails, and the client sees `error`."""

    def __init__(self, code: ValidationCode, message: str) -> None:
        super().__init__(message)
        self.error = ValidationError(code=code.value, message=message, param="input_file_id")


class InputCopy:
    """Copies an input that the batch names by its URL, an object in a bucket, to the batch's input file."""

    def __init__(self, order: BatchOrder, database: Database, storage: Storage, settings: Settings) -> None:
        self._order = order
        self._database = database
        self._storage = storage
        self._settings = settings
        self._bytes = 0
        self._most_stored = self._stored = 0  # quota and usage of the tenant's storage; a quota of 0: none

    async def make(self, url: str) -> FileRow:
        """Copy the object to the input file of the batch, and return the file.

        A compressed object is expanded.

        Args:
            url: URL of the object.

        Raises:
            InputRefused: the tenant may not read the object, it does not exist, it was replaced while it was
                read, S3 refuses to return it, it is damaged, or it is too large.
            StorageUnavailable, DatabaseUnavailable: a service does not respond. A retry copies again.
        """
        order, location = self._order, parse_object(url)
        if not self._settings.may_read(order.tenant, location):
            raise InputRefused(
                ValidationCode.LOCATION_NOT_ALLOWED,
                f"Tenant '{order.tenant}' may no longer read from '{url}'. Upload the file instead.",
            )
        await self._read_quota()
        key = object_keys.upload_key(order.tenant, order.input_file_id, token_hex(8))
        content = ExpandedContent(expands=True)
        async with self._storage.writer(key) as writer:
            try:
                await self._write(location, content, writer)
            except ObjectMissing:
                message = f"There is no object '{url}'. Correct the URL, or write the object first."
                raise InputRefused(ValidationCode.INPUT_NOT_FOUND, message) from None
            except ObjectChanged:
                message = f"The object '{url}' was replaced while it was read. Create the batch again."
                raise InputRefused(ValidationCode.INPUT_CHANGED, message) from None
            except ObjectRefused as error:
                raise InputRefused(ValidationCode.INPUT_UNREADABLE, str(error)) from None
            except DamagedArchive as error:
                raise InputRefused(ValidationCode.DAMAGED_ARCHIVE, str(error)) from None
            await self._reserve()
        now = datetime.now(UTC).replace(microsecond=0)
        name = expanded_name(location.name) if content.is_expanded else location.name
        row = FileRow(
            id=order.input_file_id,
            tenant=order.tenant,
            purpose="batch",
            filename=name[:_MAX_NAME_CHARACTERS],
            bytes=self._bytes,
            created_at=now,
            expires_at=now + INPUT_FILE_LIFETIME,
            storage_key=key,
        )
        await self._database.files.insert(row)
        await self._database.quotas.release(order.tenant, row.id)
        return row

    async def _write(self, location: ObjectLocation, content: ExpandedContent, writer: ObjectWriter) -> None:
        # Imported only if needed: it takes a second and 40 MB.
        from batchwright.storage.s3.object_reader import read_object

        async with aclosing(read_object(self._settings, location, self._check_size)) as pieces:
            async for piece in pieces:
                async for part in content.feed(piece):
                    await self._write_part(part, writer)
        async for part in content.finish():
            await self._write_part(part, writer)

    async def _write_part(self, part: bytes, writer: ObjectWriter) -> None:
        self._bytes += len(part)
        self._check_size(self._bytes)
        await writer.write(part)

    def _check_size(self, size: int) -> None:
        """Check the size of an input while it is read.

        Args:
            size: number of bytes that are known so far. The whole input may be larger.

        Raises:
            InputRefused: `size` is more than a batch allows, or than the tenant's quota of stored bytes
                allows.
        """
        limit = self._settings.max_batch_file_bytes
        if size > limit:
            message = f"The input is too large: a batch takes at most {limit} bytes. Split it into several."
            raise InputRefused(ValidationCode.INPUT_TOO_LARGE, message)
        if self._most_stored and self._stored + size > self._most_stored:
            raise self._over_quota(size)

    async def _read_quota(self) -> None:
        tenant, quotas = self._order.tenant, self._database.quotas
        self._most_stored = (await quotas.get(tenant)).limits(self._settings.quotas).stored_bytes
        self._stored = await quotas.stored(tenant) if self._most_stored else 0

    async def _reserve(self) -> None:
        """Count the bytes of the copy for the tenant's quota of stored bytes, before its file has a row."""
        order, quotas = self._order, self._database.quotas
        limit = self._most_stored
        if limit and not await quotas.admit_bytes(order.tenant, order.input_file_id, self._bytes, limit):
            raise self._over_quota(self._bytes)

    def _over_quota(self, size: int) -> InputRefused:
        message = (
            f"The input has at least {size} bytes. With the tenant's other files, that is more than the "
            f"{self._most_stored} bytes that it may store. Delete files, or let them expire."
        )
        return InputRefused(ValidationCode.STORAGE_QUOTA_EXCEEDED, message)
