"""Forecast when the batches that wait for one model will be done, from the model's speed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchwright.contracts.message import Message
from batchwright.rules.forecast.request_durations import longest_remaining
from batchwright.rules.forecast.work_ahead import ModelOfBatch, UnsettledWork, WorkUntil, present_shares

PRIOR_LINES = 20.0  # weight of the assumption that all lines of a model are equal work
# Relative error of a forecast if all rates are known. Batches are created later, and backends become slower.
# Calibrated with `python -m bench.forecast`.
_MODEL_ERROR = 0.18
_Z90 = 1.2816  # 90 % quantile of the normal distribution


class ModelSpeed(Message):
    """The speed of a model: how fast its lines settle (get a result), and how long its requests take.

    Attributes:
        lines_per_second: lines that settle per second, measured while lines waited to be sent. A line with
            twice the work of an average line counts as two lines.
        lines_measured: number of settled lines from which `lines_per_second` was measured.
        pending: number of requests in flight.
        mean: mean duration of a request, in seconds.
        variation: variance of the durations, divided by the square of their mean.
    """

    lines_per_second: float
    lines_measured: float
    pending: float
    mean: float
    variation: float


class LineWork(NamedTuple):
    """The average work of a batch's lines for one model, and how many of these lines get results per second.

    Attributes:
        per_line: average work of the batch's lines, compared with all lines of the model. 2 means that a line
            of the batch takes twice as much of the model's capacity as an average line.
        certainty: number of lines from whose results `per_line` was measured.
        lines_per_second: number of lines of the batch that get a result per second at present.
    """

    per_line: float = 1.0
    certainty: float = PRIOR_LINES
    lines_per_second: float = 0.0


class RemainingTime(NamedTuple):
    """The forecast of a batch: when it will be done, and how many lines of other batches are sent before it.

    The batch ends within `p50` seconds with a probability of 50 %, and within `p90` seconds with a
    probability of 90 %. `lines_per_second` is how many lines of the batch get a result per second at present.
    """

    p50: float
    p90: float
    lines_per_second: float
    lines_ahead: float


class QueueForecast:
    """The forecast of when the batches that wait for one model will be done.

    The forecast assumes that tenants divide the capacity of the model by weight, and that the batches of a
    tenant divide the tenant's part. It also assumes that no backend is idle.
    """

    def __init__(
        self, speed: ModelSpeed, queue: Sequence[UnsettledWork], known: Mapping[ModelOfBatch, LineWork]
    ) -> None:
        """Create the forecast.

        Args:
            speed: speed of the model. Its `lines_per_second` is greater than 0.
            queue: how many lines each batch has left for the model. All batches are listed.
            known: what is known about the lines of each batch. If a batch is missing here, each of its lines
                counts as an average line.
        """
        self._speed, self._known = speed, known
        shares = present_shares(queue)
        self._in_flight_of = Counter[tuple[str, int]]()
        for each in queue:
            self._in_flight_of[each.tenant, each.priority] += math.ceil(speed.pending * shares[each.key])
        in_flight = {key: min(max(speed.pending * share, 1.0), 1e6) for key, share in shares.items()}
        self._queued = {
            each.key: max(each.left - in_flight[each.key], 0.0) * self._work(each).per_line for each in queue
        }
        self._until = WorkUntil(queue, self._queued)

    def remaining(self, work: UnsettledWork) -> RemainingTime:
        """Forecast when one batch in the queue will end.

        Args:
            work: the batch. It must be an element of the `queue` that the constructor got.
        """
        done = self._until.last_line_of(work)
        ahead, sending = done - self._queued[work.key], done / self._speed.lines_per_second
        median, high = self._last_answers(work, 0.5), self._last_answers(work, 0.9)
        p50 = sending + median
        p90 = p50 + math.hypot(_Z90 * self._error(work, ahead) * sending, high - median)
        return RemainingTime(p50, p90, self._work(work).lines_per_second, ahead)

    def soonest(self, work: UnsettledWork) -> float:
        """Return the seconds until a batch ends in the best case.

        In the best case, the batch sends its lines before all other batches of its priority. Even then, the
        batch takes longer than the result with a probability of 90 %.
        """
        done = self._until.last_line_if_first(work)
        sending, error = done / self._speed.lines_per_second, self._error(work, done - self._queued[work.key])
        median, low = self._last_answers(work, 0.5), self._last_answers(work, 0.1)
        earlier = math.hypot(sending - sending / (1 + _Z90 * error), median - low)
        return max(sending + median - earlier, 0.0)

    def _work(self, work: UnsettledWork) -> LineWork:
        return self._known.get(work.key, LineWork())

    def _last_answers(self, work: UnsettledWork, probability: float) -> float:
        """Return the seconds after the sending of a batch's last line until all its requests have ended.

        Shortly before its end, a batch sends most of the lines of its priority. So all requests in flight of
        this priority are counted as the batch's requests, up to the number of lines that the batch has left.

        Args:
            work: the batch.
            probability: probability that the requests have ended after the returned time, from 0 to 1.
        """
        count = min(self._in_flight_of[work.tenant, work.priority], float(work.left))
        return longest_remaining(self._speed, count, probability)

    def _error(self, work: UnsettledWork, ahead: float) -> float:
        """Return the expected relative error of the time until a batch's last line is sent: 0.2 means 20 %.

        Args:
            work: the batch.
            ahead: work of the other batches' lines that are sent before this last line. An average line of
                the model has the work 1.
        """
        speed = self._speed
        known = 1 / (speed.lines_measured + 1) + 1 / self._work(work).certainty + 1 / (work.left + ahead + 1)
        return math.sqrt(_MODEL_ERROR**2 + speed.variation * known)
