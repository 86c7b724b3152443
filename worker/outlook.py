"""What control workers show of all live batches."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import FleetView
from batchwright.database.rows import LiveBatch
from batchwright.rules.outlook import Speeds, remaining_seconds
from batchwright.telemetry.labels import OTHER, leading
from batchwright.telemetry.metrics import Metrics

_SHOWN = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


class Outlook:
    """Every family is set as a whole, so that what is gone leaves no series behind."""

    def __init__(self, fleet: FleetView, metrics: Metrics) -> None:
        self._fleet, self._metrics = fleet, metrics
        self._speeds = Speeds()
        self.models: frozenset[str] = frozenset()  # with lines left, at the last look
        self.batches: frozenset[str] = frozenset()  # live then

    async def look(self, now: datetime) -> None:
        """Raises DatabaseUnavailable; what was shown stays."""
        batches = await self._fleet.live()
        left = await self._fleet.lines_left()
        self.batches = frozenset(batch.id for batch in batches)
        self._show_statuses(batches, now)
        self._show_models(left)
        self._show_tenants(batches, now)

    def _show_statuses(self, batches: Sequence[LiveBatch], now: datetime) -> None:
        metrics = self._metrics
        for status in _SHOWN:
            entered = [batch.entered_at for batch in batches if batch.status is status]
            oldest = (now - min(entered)).total_seconds() if entered else 0.0
            metrics.jobs.labels(status).set(len(entered))
            metrics.oldest_job_age.labels(status).set(max(oldest, 0.0))
        settled = sum(batch.settled for batch in batches)
        metrics.items.labels("settled").set(settled)
        metrics.items.labels("pending").set(sum(batch.lines for batch in batches) - settled)
        metrics.past_deadline.set(sum(batch.expires_at < now for batch in batches))

    def _show_models(self, left: dict[str, int]) -> None:
        self.models = frozenset(left)
        self._metrics.model_lines_left.clear()
        for model, lines in left.items():
            self._metrics.model_lines_left.labels(model).set(lines)

    def _show_tenants(self, batches: Sequence[LiveBatch], now: datetime) -> None:
        """The tenants with the most lines left have a label of their own."""
        metrics = self._metrics
        awaited = [batch for batch in batches if batch.status is not BatchStatus.CANCELLING]
        slack = {batch.id: self._slack(batch, now) for batch in awaited}
        self._speeds.keep(slack)
        metrics.at_risk.set(sum(seconds < 0 for seconds in slack.values()))
        jobs, lines, least = Counter[str](), Counter[str](), dict[str, float]()
        names = self._named(batches)
        for batch in batches:
            tenant = batch.tenant if batch.tenant in names else OTHER
            jobs[tenant] += 1
            lines[tenant] += batch.lines - batch.settled
            if batch.id in slack:
                least[tenant] = min(slack[batch.id], least.get(tenant, slack[batch.id]))
        for family, values in (
            (metrics.tenant_jobs, jobs),
            (metrics.tenant_lines_left, lines),
            (metrics.deadline_slack, least),
        ):
            family.clear()
            for tenant, value in values.items():
                family.labels(tenant).set(value)

    def _named(self, batches: Sequence[LiveBatch]) -> frozenset[str]:
        left: Counter[str] = Counter()
        for batch in batches:
            left[batch.tenant] += batch.lines - batch.settled
        return leading(left, self._metrics.tenants.most)

    def _slack(self, batch: LiveBatch, now: datetime) -> float:
        """Seconds; below 0 for a batch that would not be done in time."""
        begun = batch.begun_at or batch.created_at
        remaining = remaining_seconds(
            left=batch.lines - batch.settled if batch.begun_at else 1,
            settled=batch.settled,
            elapsed=max((now - begun).total_seconds(), 0.0),
            speed=self._speeds.look(batch.id, batch.settled, now.timestamp()),
        )
        return (batch.expires_at - now).total_seconds() - remaining
