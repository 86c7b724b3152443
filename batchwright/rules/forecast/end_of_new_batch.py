"""Forecast when a batch that has not begun will be done, from its models' speeds and other batches' lines."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.batch import StartFit
from batchwright.rules.forecast.model_queue import LineWork, ModelSpeed, QueueForecast
from batchwright.rules.forecast.work_ahead import UnsettledWork

# It is not known how much work the lines of a new batch are. The forecast expects an average line of the
# model, with little certainty. The best case is a quarter of it. Chosen with `python -m bench.forecast`.
_NEW_LINES = LineWork(certainty=2.5)
_LEAST_LINES = LineWork(per_line=0.25)


class NewBatchForecast(NamedTuple):
    """The forecast of a batch that begins now: when it will be done, and how many lines are sent before it.

    Attributes:
        p50: the batch is done within this number of seconds with a probability of 50 %.
        p90: the batch is done within this number of seconds with a probability of 90 %.
        soonest: number of seconds in the best case. In the best case, the batch sends its lines before all
            other batches of its priority, and its lines are much less work than average lines. The batch is
            very unlikely to be done earlier.
        lines_ahead: number of lines of other batches that are sent before this batch is done.
    """

    p50: float
    p90: float
    soonest: float
    lines_ahead: float

    def fit(self, seconds_left: float) -> StartFit:
        """Return FITS, AT_RISK or CANNOT: whether the batch will be done within `seconds_left`.

        - FITS: the batch is done in time with a probability of at least 90 %.
        - CANNOT: the batch is very unlikely to be done in time, even in the best case (see `soonest`).
        - AT_RISK: all other cases.

        Args:
            seconds_left: rest of the time that the batch may take, in seconds.
        """
        if self.soonest > seconds_left:
            return StartFit.CANNOT
        return StartFit.FITS if self.p90 <= seconds_left else StartFit.AT_RISK


def forecast_new_batch(
    batch: Sequence[UnsettledWork], queue: Sequence[UnsettledWork], speeds: Mapping[str, ModelSpeed]
) -> NewBatchForecast | None:
    """Forecast when a batch that begins now will be done.

    Return None if the batch has no lines, or if the speed of one of its models is not known.

    Args:
        batch: how many lines the batch has, for each of its models.
        queue: how many lines other batches have left, for each of their models.
        speeds: speeds by model.
    """
    if not batch or any(work.model not in speeds for work in batch):
        return None
    models: list[NewBatchForecast] = []
    for work in batch:
        others = [each for each in queue if each.model == work.model and each.key != work.key]
        speed, queue_with = speeds[work.model], [*others, work]
        remaining = QueueForecast(speed, queue_with, {work.key: _NEW_LINES}).remaining(work)
        soonest = QueueForecast(speed, queue_with, {work.key: _LEAST_LINES}).soonest(work)
        models.append(NewBatchForecast(remaining.p50, remaining.p90, soonest, remaining.lines_ahead))
    slowest = max(models, key=lambda each: each.p50)
    return slowest._replace(
        p90=max(each.p90 for each in models), soonest=max(each.soonest for each in models)
    )
