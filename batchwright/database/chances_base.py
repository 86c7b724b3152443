"""What second chances ask of the database."""

from typing import Protocol

from batchwright.contracts.batch import BatchOrder, Origin
from batchwright.database.rows import FileRow


class ChancesTable(Protocol):
    """Of each kind one batch is made of another; whoever comes later gets the first one's order."""

    async def find(self, tenant: str, origin: Origin) -> BatchOrder | None: ...

    async def claim(self, order: BatchOrder, origin: Origin, file: FileRow | None = None) -> BatchOrder:
        """The order that holds the chance: this one, whose `file` is inserted with it, or the first.

        Results that the origin keeps stay at least until the order expires. Raises UnknownBatch.
        """
        ...
