"""Make the input file of a batch for which no file was uploaded.

If the batch names an object in a bucket, the object is copied. If it is a rolling batch, its calls are
written. A call is a single request that a client sends without a batch. It runs as a line of a rolling batch.

The input file is a file of the tenant in Batchwright's own storage, like an upload. All later steps read this
file. So after the copy, the object in the bucket may change or be deleted.
"""

from contextlib import aclosing
from datetime import UTC, datetime
from secrets import token_hex
from uuid import uuid4

from batchwright.contracts.calls import ANSWER_LIFETIME
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import Quota
from batchwright.database.database import Database
from batchwright.database.errors import QuotaExhausted
from batchwright.database.records import FileRow
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.rules.calls.call_lines import CALLS_PURPOSE, call_line
from batchwright.rules.input.validation_errors import ValidationCode
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.stored_objects.object_locations import parse_object
from batchwright.rules.stored_objects.retention import INPUT_FILE_LIFETIME
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.storage.referenced_input import InputObjects, InputRefused, ReferencedInput, StoredBytes

_MAX_NAME_CHARACTERS = 255


class InputCopy:
    """An object that copies the input of a batch from a bucket, and makes it the batch's input file."""

    def __init__(self, order: BatchOrder, database: Database, storage: Storage, settings: Settings) -> None:
        self._order = order
        self._database = database
        self._storage = storage
        self._settings = settings

    async def make(self, url: str) -> FileRow:
        """Copy the object to the input file of the batch, and return the file.

        A compressed object is expanded.

        Args:
            url: URL of the object.

        Raises:
            InputRefused: the tenant may not read the object, or S3 does not return the object. Or the object
                is damaged, is too large, or was replaced during the copy.
            StorageUnavailable, DatabaseUnavailable: a service does not respond. A retry copies the whole
                object again.
        """
        order = self._order
        if not self._settings.may_read(order.tenant, parse_object(url)):
            raise InputRefused(
                ValidationCode.LOCATION_NOT_ALLOWED,
                f"Tenant '{order.tenant}' may no longer read from '{url}'. Upload the file instead.",
            )
        stored = await self._stored()
        key = object_keys.upload_key(order.tenant, order.input_file_id, token_hex(8))
        async with aclosing(InputObjects(self._settings)) as objects, self._storage.writer(key) as writer:
            source = ReferencedInput(objects, url, stored)
            async with aclosing(source.pieces()) as pieces:
                async for piece in pieces:
                    await writer.write(piece)
            await self._reserve(source.bytes, stored)
        now = datetime.now(UTC).replace(microsecond=0)
        row = FileRow(
            id=order.input_file_id,
            tenant=order.tenant,
            purpose="batch",
            filename=source.filename[:_MAX_NAME_CHARACTERS],
            bytes=source.bytes,
            created_at=now,
            expires_at=now + INPUT_FILE_LIFETIME,
            storage_key=key,
        )
        file = await _insert(row, self._database, self._storage)
        await self._database.admissions.release(order.tenant, row.id)
        return file

    async def _stored(self) -> StoredBytes:
        tenant, quotas = self._order.tenant, self._database.quotas
        quota = (await quotas.get(tenant)).limits(self._settings.quotas).stored_bytes
        return StoredBytes(await quotas.stored(tenant), quota) if quota else StoredBytes()

    async def _reserve(self, size: int, stored: StoredBytes) -> None:
        """Count the bytes of the copy for the tenant's quota of stored bytes.

        Call this before the file gets its row in the database.

        Args:
            size: size of the copy in bytes.
            stored: the bytes that the tenant has already stored, and the tenant's quota.

        Raises:
            InputRefused: the quota would be exceeded.
        """
        if not stored.quota:
            return
        tenant, id = self._order.tenant, self._order.input_file_id
        admission = Admission(tenant, id, Quota.STORED_BYTES, size, stored.quota)
        try:
            await self._database.admissions.admit(admission)
        except QuotaExhausted:
            raise stored.refused(size) from None


async def write_calls(database: Database, storage: Storage, order: BatchOrder, group: str) -> FileRow | None:
    """Write the calls of a rolling batch to its input file. Return the row of the file.

    Return None if all calls are cancelled.

    A call is a single request that runs as a line of a rolling batch. Calls that are already cancelled are
    not written. After this function, the batch gets no further calls. Each attempt writes the lines to a new
    object.

    Args:
        group: name of the group of waiting calls that become the lines of this batch.

    Raises:
        DatabaseUnavailable, StorageUnavailable: the service does not respond.
    """
    await database.calls.collect(order.tenant, group, order.batch_id)
    key, size = object_keys.upload_key(order.tenant, order.input_file_id, uuid4().hex[:12]), 0
    async with storage.writer(key) as writer:
        async for call in database.calls.collected(order.tenant, order.batch_id):
            line = call_line(call.id, order.endpoint, call.request)
            size += len(line)
            await writer.write(line)
    if not size:
        await storage.delete(key)
        return None
    row = FileRow(
        id=order.input_file_id,
        tenant=order.tenant,
        purpose=CALLS_PURPOSE,
        filename=f"{order.batch_id}_input.jsonl",
        bytes=size,
        created_at=order.created_at,
        expires_at=order.created_at + ANSWER_LIFETIME,  # it stays as long as its batch is live
        storage_key=key,
    )
    return await _insert(row, database, storage)


async def _insert(row: FileRow, database: Database, storage: Storage) -> FileRow:
    """Insert the row of the input file that this attempt has written, and return it.

    If another attempt has already inserted a row, return the other row, and delete the object of this
    attempt. The other row is kept because the other attempt may have planned the batch from its own object.
    """
    stored = await database.files.insert(row)
    if stored.storage_key != row.storage_key:
        await storage.delete(row.storage_key)
    return stored
