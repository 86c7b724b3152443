"""Second chances of batches that have ended: a retry of what failed, a resumption of what is not settled."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from api.allowance import Allowance
from api.bodies import refuse_unknown
from api.creation import Creation
from api.errors import conflict
from api.failed_lines import failed_lines
from api.remaking import Remaking
from api.services import Services
from batchwright.contracts.batch import BatchOrder, Chance, Origin
from batchwright.contracts.openai import BatchStatus
from batchwright.database.rows import BatchRow, FileRow

FIELDS = ("completion_window",)
_SYSTEM_ERROR = "system_error"


class Beginning(Protocol):
    """What starts a batch, wherever its order comes from."""

    async def begin(self, order: BatchOrder) -> BatchRow: ...


class SecondChances:
    """Each is given once: whoever asks again gets the batch that was made first."""

    def __init__(self, services: Services, beginning: Beginning) -> None:
        self._services = services
        self._beginning = beginning
        self._remaking = Remaking(services)

    async def retry(self, row: BatchRow, fields: Mapping[str, object], key_id: str) -> BatchRow:
        """A batch of the lines in the error file, as `key_id` asks. Raises ApiError."""
        if not row.status.is_terminal:
            raise conflict(f"Cannot retry a batch with status '{row.status}': wait until it has ended.")

        async def make(window: Creation) -> tuple[BatchOrder, FileRow | None]:
            file = await self._copy(row)
            creation = window._replace(input_file_id=file.id)
            return self._remaking.order(row, creation), file

        return await self._give(row, Chance.RETRY, fields, key_id, make)

    async def resume(self, row: BatchRow, fields: Mapping[str, object], key_id: str) -> BatchRow:
        """A batch of the same input that has the results of this one, as `key_id` asks. Raises ApiError."""

        async def make(window: Creation) -> tuple[BatchOrder, FileRow | None]:
            await self._check_resumable(row)
            return self._remaking.order(row, window), None

        return await self._give(row, Chance.RESUME, fields, key_id, make)

    async def _give(
        self,
        row: BatchRow,
        chance: Chance,
        fields: Mapping[str, object],
        key_id: str,
        make: Callable[[Creation], Awaitable[tuple[BatchOrder, FileRow | None]]],
    ) -> BatchRow:
        refuse_unknown(fields, FIELDS)
        origin = Origin(batch_id=row.order.batch_id, chance=chance)
        table, tenant = self._services.database.chances, row.order.tenant
        order = await table.find(tenant, origin)
        if order is None:
            creation = self._remaking.creation(row, fields, key_id)
            await Allowance(self._services, tenant).check_live()
            made, file = await make(creation)
            mine = made.model_copy(update={"origin": origin})
            order = await self._remaking.claim(mine, file, partial(table.claim, mine, origin, file))
        there = await self._services.database.batches.get(tenant, order.batch_id)
        return there or await self._beginning.begin(order)

    async def _copy(self, row: BatchRow) -> FileRow:
        """The new input, which has no row yet."""
        if row.error_file_id is None:
            why = "no line of it failed" if row.output_file_id else "it has no files"
            raise conflict(f"Cannot retry batch '{row.order.batch_id}': {why}.")
        error = await self._remaking.file(row, row.error_file_id, "retry")
        return await self._remaking.input_of(row, lambda: failed_lines(error, self._services))

    async def _check_resumable(self, row: BatchRow) -> None:
        """Raises ApiError where there is nothing to go on with, or no telling what was settled."""
        refused = why_not_resumable(row)
        if refused:
            raise conflict(f"Cannot resume a batch with status '{row.status}': {refused}")
        for file_id in (row.order.input_file_id, row.output_file_id, row.error_file_id):
            if file_id is not None:
                await self._remaking.file(row, file_id, "resume")
        kept = row.results_kept_until
        if kept is not None and kept <= self._services.clock():
            raise conflict(
                f"Cannot resume batch '{row.order.batch_id}': what it had settled was kept until "
                f"{kept:%Y-%m-%d %H:%M} UTC. Create a new batch of file '{row.order.input_file_id}'."
            )


def why_not_resumable(row: BatchRow) -> str:
    """A sentence about an ended batch; empty where it can be resumed."""
    if row.status is BatchStatus.COMPLETED:
        return "every line has its result. `retry` sends those that failed again."
    if row.status is BatchStatus.FAILED and all(error.code != _SYSTEM_ERROR for error in row.errors):
        return "its input is not valid. Correct it, upload it and create a new batch."
    has_files = row.output_file_id is not None or row.error_file_id is not None
    if row.completed and not has_files and row.results_kept_until is None:
        return "it ended without files, and its results were not kept. Create a new batch of the same file."
    return ""
