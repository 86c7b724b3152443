"""What is asked of the table of reasons why batches wait."""

from datetime import datetime
from enum import StrEnum
from typing import Protocol

from batchwright.contracts.message import Message


class Source(StrEnum):
    """Who told. Each takes back its own reasons; one worker also those of another."""

    WORKER = "worker"
    FLEET = "fleet"  # a control worker, that looks at queues and workers
    USER = "user"  # who paused it


class Waiting(Message):
    """`model` is empty for the whole batch. It holds from `since`, and until `until` if nobody renews it."""

    tenant: str
    batch_id: str
    model: str = ""
    source: Source
    reason: str
    since: datetime
    until: datetime


class WaitingTable(Protocol):
    async def tell(self, waiting: Waiting) -> bool:
        """Whether it is news. A repeat renews it, and its `since` stays."""
        ...

    async def take_back(self, tenant: str, batch_id: str, model: str, source: Source) -> bool:
        """Whether there was one."""
        ...

    async def of_source(self, source: Source, at: datetime) -> list[Waiting]:
        """What holds, of all batches."""
        ...

    async def forget(self, before: datetime) -> None:
        """Deletes what ran out before then."""
        ...
