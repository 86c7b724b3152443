"""What the routes work with; the real ones are opened in `api/opening.py`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from api.temporal_gateway import TemporalGateway
from batchwright.database.base import DatabaseLike
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.exposition import SdkMetrics
from batchwright.telemetry.metrics import Metrics


class ServedModels(Protocol):
    async def served(self) -> frozenset[str]:
        """The models some backend serves."""
        ...


def now() -> datetime:
    """Whole seconds: all that the API shows."""
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Services:
    settings: Settings
    database: DatabaseLike
    storage: Storage
    temporal: TemporalGateway
    models: ServedModels
    metrics: Metrics
    sdk_metrics: SdkMetrics = field(default_factory=SdkMetrics)
    clock: Callable[[], datetime] = now
    recent_seconds: float = 1.0  # how old what requests have in common may be: limits, what workers poll
