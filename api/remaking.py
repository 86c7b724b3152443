"""What a batch made of another is made from: the order of its client, an input of some of its lines."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from api.allowance import Allowance
from api.creation import Creation, make_order, read_window
from api.errors import ApiError, conflict
from api.failed_lines import FilesDisagree, copy_lines
from api.receiving import discard_object
from api.services import Services
from batchwright.contracts.batch import BatchOrder, Caller
from batchwright.database.errors import OutcomeUnknown
from batchwright.database.rows import BatchRow, FileRow
from batchwright.rules.passed_headers import kept
from batchwright.rules.results import ResultDamaged
from batchwright.storage.base import ObjectMissing

_Claimed = TypeVar("_Claimed", bound=BatchOrder | None)


class Remaking:
    def __init__(self, services: Services) -> None:
        self._services = services

    def creation(self, row: BatchRow, fields: Mapping[str, object], key_id: str) -> Creation:
        """As the client created the first one, but for what `fields` say; it is `key_id`'s batch.

        Raises ApiError.
        """
        order = row.order
        asked = fields.get("completion_window")
        text = order.completion_window if asked is None else asked
        settings = self._services.settings
        window, length = read_window(text, settings)
        headers = kept(order.policy.caller.headers, settings.passed_headers)
        return Creation(
            order.input_file_id,
            order.endpoint,
            window,
            length,
            order.metadata,
            order.output_expires_after_seconds,
            order.policy.deduplicate,
            Caller(key_id=key_id, headers=headers),
        )

    def order(self, row: BatchRow, creation: Creation) -> BatchOrder:
        now, settings = self._services.clock(), self._services.settings
        order = make_order(creation, row.order.tenant, now, settings)
        return order.model_copy(update={"priority": row.order.priority})

    async def file(self, row: BatchRow, file_id: str, verb: str) -> FileRow:
        """A file of the batch. Raises ApiError where it is gone."""
        file = await self._services.database.files.get(row.order.tenant, file_id)
        if file is None:
            raise conflict(
                f"Cannot {verb} batch '{row.order.batch_id}': its file '{file_id}' was deleted or expired."
            )
        return file

    async def input_of(self, row: BatchRow, wanted: Callable[[], Awaitable[bytes]]) -> FileRow:
        """A file of the lines `wanted`, as digests of their ids; it has no row yet. Raises ApiError."""
        source = await self.file(row, row.order.input_file_id, "retry")
        try:
            return await copy_lines(row, await wanted(), source, self._services)
        except (ObjectMissing, FilesDisagree, ResultDamaged) as problem:
            raise ApiError(
                500,
                f"The files of batch '{row.order.batch_id}' cannot be read: {problem}",
                code="content_missing",
            ) from problem

    async def claim(
        self, made: BatchOrder, file: FileRow | None, claim: Callable[[], Awaitable[_Claimed]]
    ) -> _Claimed:
        """The order that has what `made` was made of, as `claim` says: where it is another's, or nobody's,
        neither the place nor the input's object of `made` is left.

        Raises ApiError where the tenant has too many live batches, or no room for the file.
        """
        allowance = Allowance(self._services, made.tenant)
        try:
            async with self._room_held(allowance, file):
                await allowance.admit_batch(made.batch_id)
                order = await claim()
        except OutcomeUnknown:  # the claim may be there with the file's row; if not, the object is an orphan
            raise
        except Exception:
            await self._discard(file)
            raise
        if order is None or order.batch_id != made.batch_id:
            await allowance.withdraw(made.batch_id)
            await self._discard(file)
        return order

    @asynccontextmanager
    async def _room_held(self, allowance: Allowance, file: FileRow | None) -> AsyncGenerator[None]:
        if file is None:
            yield
            return
        async with allowance.held(file.id, file.bytes, await allowance.room()):
            yield

    async def _discard(self, file: FileRow | None) -> None:
        """The object of a file that gets no row."""
        if file is not None:
            await discard_object(file.storage_key, self._services)
