"""The metrics of the jobs of one model."""

from batchwright.contracts.errors import LineCode
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Lane
from batchwright.rules import retries
from batchwright.telemetry.metrics import Metrics

_ENDS = {LineCode.JOB_LOST: "lost", LineCode.REQUEST_TIMEOUT: "overdue"}


class JobCounts:
    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model

    def submitted(self, lane: Lane) -> None:
        self._metrics.jobs_submitted.labels(*self._how(lane)).inc()

    def running(self, lane: Lane, change: int) -> None:
        self._metrics.jobs_running.labels(*self._how(lane)).inc(change)

    def looked(self, lane: Lane, *, is_told: bool) -> None:
        self._metrics.jobs_looked_at.labels(*self._how(lane), "told" if is_told else "unclear").inc()

    def ended(self, lane: Lane, outcome: Outcome, seconds: float) -> None:
        """`seconds` since its submit."""
        how = self._how(lane)
        result = "completed" if outcome.verdict is retries.SUCCESS else _ENDS.get(outcome.code, "failed")
        self._metrics.jobs_ended.labels(*how, result).inc()
        self._metrics.job_seconds.labels(*how).observe(max(seconds, 0.0))

    def given_up(self, lane: Lane) -> None:
        self._metrics.jobs_ended.labels(*self._how(lane), "given_up").inc()

    def _how(self, lane: Lane) -> tuple[str, str]:
        return self._model, "callback" if lane.calls_back else "poll"
