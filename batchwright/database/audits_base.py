"""What the last audit found, by kind of difference."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.audit import AuditCount


class Audited(NamedTuple):
    """`at` is when the audit ended; of a kind that was never looked for, when the table was made."""

    counted: AuditCount
    at: datetime


class AuditsTable(Protocol):
    """All raise DatabaseUnavailable; a retry of any is safe."""

    async def note(self, counts: Mapping[str, AuditCount], at: datetime) -> None:
        """In place of what an earlier audit found; a later one's stays."""
        ...

    async def latest(self) -> Mapping[str, Audited]:
        """By kind."""
        ...
