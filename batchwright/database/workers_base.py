"""What is asked of the table in which worker processes tell of themselves."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from batchwright.database.rows import WorkerBeat
from batchwright.rules.traffic import LaneTraffic


class WorkersTable(Protocol):
    async def beat(
        self,
        worker_id: str,
        stats: dict[str, float],
        at: datetime,
        registry: str = "",
        *,
        traffic: Sequence[LaneTraffic] = (),
        started_at: datetime | None = None,
    ) -> None:
        """`registry` is the fingerprint of what it goes by, `traffic` what it sent since `started_at`."""
        ...

    async def alive(self, since: datetime) -> int:
        """How many workers beat at `since` or later; those silent for a day are forgotten."""
        ...

    async def beats(self, since: datetime) -> list[WorkerBeat]:
        """The latest of each worker, where that is at `since` or later; by id."""
        ...

    async def traffic(self, since: datetime) -> list[LaneTraffic]:
        """What those workers told of a model and a backend, added up over them; by model and backend."""
        ...
