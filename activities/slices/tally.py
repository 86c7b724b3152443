"""What became of a slice's lines, in numbers that are noted here and shown in /metrics together."""

from collections.abc import Callable, Sequence

from activities.slices.permissions import Permissions
from batchwright.contracts.execution import SliceRequest
from batchwright.rules.usage import Tokens
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.series import CounterSeries
from batchwright.telemetry.traffic import TrafficMeter


class Tally:
    """Of one slice: each number by itself would cost each line."""

    def __init__(
        self,
        request: SliceRequest,
        *,
        metrics: Metrics,
        traffic: TrafficMeter,
        permissions: Permissions,
        spend: Callable[[int], None],
    ) -> None:
        """`spend` is told the tokens of answers: of each at once where `permissions` have no edition."""
        model, tenant = request.model, metrics.tenants(request.tenant)
        self._model, self._traffic, self._permissions, self._spend = model, traffic, permissions, spend
        self._seconds = metrics.request_seconds.labels(model)
        self.errors = metrics.request_errors.labels(model)
        self._prompt = metrics.prompt_tokens.labels(model)
        self._generated = metrics.generation_tokens.labels(model)
        self._errors, self._successes = (
            (metrics.results.labels(model, result), metrics.tenant_results.labels(tenant, result))
            for result in ("error", "success")
        )
        self.took: list[float] = []  # seconds of requests; like these numbers not shown yet
        self._answers: dict[str, list[Tokens]] = {}  # of successes, by the backend's URL
        self._failed, self._unspent = 0, 0

    def answered(self, url: str, usage: Tokens) -> None:
        """A line has its result, by the backend at `url`."""
        answers = self._answers.get(url)
        if answers is None:
            answers = self._answers[url] = []
        answers.append(usage)
        self._unspent += usage.input_tokens + usage.output_tokens
        if self._permissions.edition is None:  # somebody has a budget of them
            self._tell_spent()

    def failed(self) -> None:
        """A line ends in the error file."""
        self._failed += 1
        self.errors.inc()

    def show(self) -> None:
        """In /metrics, what was noted since the last time."""
        if self.took:
            self._seconds.observe_all(self.took)
            self.took.clear()
        self._count(self._errors, self._failed)
        self._failed = 0
        for url, answers in self._answers.items():
            self._count(self._successes, len(answers))
            self._prompt.inc(sum(usage.input_tokens for usage in answers))
            self._generated.inc(sum(usage.output_tokens for usage in answers))
            self._traffic.used(self._model, url, answers)
        self._answers.clear()
        self._tell_spent()
        self._traffic.show()

    def _count(self, counters: Sequence[CounterSeries], lines: int) -> None:
        if lines:
            for counter in counters:
                counter.inc(lines)

    def _tell_spent(self) -> None:
        tokens, self._unspent = self._unspent, 0
        if tokens:
            self._spend(tokens)
