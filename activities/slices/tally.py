"""What became of a slice's lines, in numbers that are noted here and shown in /metrics together."""

from collections.abc import Callable

from activities.slices.permissions import Permissions
from batchwright.contracts.execution import SliceRequest
from batchwright.rules.usage import Tokens
from batchwright.telemetry.metrics import Metrics
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
        self._results = [
            (metrics.results.labels(model, result), metrics.tenant_results.labels(tenant, result))
            for result in ("error", "success")
        ]
        self.took: list[float] = []  # seconds of requests; like these numbers not shown yet
        self._settled, self._read, self._written, self._unspent = [0, 0], 0, 0, 0

    def answered(self, url: str, usage: Tokens) -> None:
        """A line has its result, by the backend at `url`."""
        self._settled[True] += 1
        self._read += usage.input_tokens
        self._written += usage.output_tokens
        self._unspent += usage.input_tokens + usage.output_tokens
        if self._permissions.edition is None:  # somebody has a budget of them
            self._tell_spent()
        self._traffic.used(self._model, url, usage)

    def failed(self) -> None:
        """A line ends in the error file."""
        self._settled[False] += 1
        self.errors.inc()

    def show(self) -> None:
        """In /metrics, what was noted since the last time."""
        for counters, count in zip(self._results, self._settled, strict=True):
            if count:
                for counter in counters:
                    counter.inc(count)
        self._settled = [0, 0]
        if self.took:
            self._seconds.observe_all(self.took)
            self.took.clear()
        self._prompt.inc(self._read)
        self._generated.inc(self._written)
        self._read = self._written = 0
        self._tell_spent()
        self._traffic.show()

    def _tell_spent(self) -> None:
        tokens, self._unspent = self._unspent, 0
        if tokens:
            self._spend(tokens)
