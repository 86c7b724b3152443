"""What dead letters ask of the database. They are the operator's: of all tenants unless one is named."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batchwright.contracts.batch import BatchOrder
from batchwright.database.rows import FileRow
from batchwright.rules.dead_letters import DeadLetter


class Buried(NamedTuple):
    """A letter, whose it is, and the order of the batch that asks it again, where there is one."""

    tenant: str
    batch_id: str
    letter: DeadLetter
    retry: BatchOrder | None = None


class DeadLettersTable(Protocol):
    """Letters are inserted by `batches.finish` and go with the row of their batch."""

    async def get(self, id: str) -> Buried | None: ...

    async def page(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> tuple[list[Buried], bool]:
        """The latest first, and whether there are more. Raises UnknownCursor."""
        ...

    async def origins(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str
    ) -> list[tuple[str, str]]:
        """Tenant and id of batches behind `after` that `retry all` has something to do for, by id."""
        ...

    async def not_retried(self, tenant: str, batch_id: str) -> list[str]:
        """The ids of a batch's letters that no batch asks again, in the order of the input."""
        ...

    async def not_begun(self, tenant: str, batch_id: str) -> list[BatchOrder]:
        """Orders of batches made of its letters whose rows are not there: a call broke off."""
        ...

    async def claim(self, ids: Sequence[str], order: BatchOrder, file: FileRow) -> bool:
        """Gives all these letters of the order's origin to the new batch, with its input's row.

        False, and nothing has happened: one of them is another batch's already, or gone.
        """
        ...

    async def delete(self, id: str) -> bool:
        """Whether there was such a letter."""
        ...
