"""Measure the load of a backend by its rejections: how many requests it rejects, and why.

A backend rejects requests for one of two reasons:

- It is overloaded. If a backend can process 8 requests at the same time and gets 10, it rejects 20 % of them.
  With fewer requests in flight, it rejects none.
- It fails now and then, as some gateways do. Then it rejects the same fraction of requests at any load, and
  fewer requests in flight would only cost throughput.

To distinguish the two, requests sent at high concurrency (while many others were in flight) are compared with
requests sent at low concurrency. If there were many requests in flight for a short time only, as after the
start of a worker, the requests with the highest concurrency count as high.
"""

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

_HISTORY, _MIN_COMPARED = 128, 16  # outcomes that are kept; outcomes needed at high and at low concurrency
_LOW_CONCURRENCY = 0.75  # up to this fraction of a high concurrency, the concurrency counts as low
_MAX_USUAL_SHARE = 1 / 3  # with a larger fraction of rejections, the backend counts as overloaded
_TOLERANCE = 3.0  # standard deviations by which rejections may exceed the usual number
_FOLLOW = 0.25  # by which fraction the usual fraction moves towards a new measurement
_LOWEST, _SLIGHT = 0.7, 0.05  # fractions of the requests in flight
_BELOW_REJECTED, _GROWTH = 0.9, 0.5
_SLOTS_PER_RESPONSE = 0.5  # by which a response raises the limit of a backend that has refused requests
# After so long without a response, and at least as long as some usual responses take, one more request may be
# sent from time to time to a backend that has refused requests.
_SILENT_SECONDS, _SILENT_RESPONSES, _BETWEEN_SEARCHES = 30.0, 3.0, 1.0


class LoadSignal(StrEnum):
    """The outcome of a request, as far as it shows how busy the backend is."""

    RESPONDED = "responded"
    REJECTED = "rejected"  # overloaded or unavailable
    BUSY = "busy"  # other callers, which the backend serves first, use its slots
    TIMED_OUT = "timed_out"
    ANSWERED = "answered"  # with an error that does not show how busy the backend is
    NEUTRAL = "neutral"  # does not show how busy the backend is


@dataclass(slots=True)
class CongestionWindow:
    """The current group of rejected requests, which were in flight together.

    One group lowers the limit of requests in flight by at most 30 %.

    Attributes:
        since: time of the group's first rejection.
        rejected: number of rejections in the group.
    """

    since: float = -math.inf
    used: float = 1.0  # requests in flight at the time `since`
    rejected: int = 0

    def record_rejection(self, used: float, *, sent_at: float, now: float, span: float) -> float:
        """Count a rejection, and return the new limit of requests in flight.

        Rejections shortly after each other form a group. Each rejection in a group lowers the limit by 1,
        starting from the number of requests in flight at the first rejection. The lowest limit is 70 % of
        this number. For example, with 40 requests in flight, the limit is 37 after 3 rejections, and never
        below 28.

        If the request was sent after the start of the current group, and the group is at least `span` seconds
        old, the rejection starts a new group. Otherwise the rejection belongs to the current group.

        Args:
            used: number of requests in flight now. This number is used only if a new group starts.
            sent_at: when the rejected request was sent.
            now: the current time.
            span: minimum duration of a group, in seconds.
        """
        if sent_at >= self.since and now - self.since >= span:
            self.since, self.used, self.rejected = now, used, 0
        self.rejected += 1
        return max(self.used - self.rejected, self.used * _LOWEST)

    @property
    def is_slight(self) -> bool:
        return self.rejected < _SLIGHT * self.used


@dataclass(slots=True)
class Regrowth:
    """The growth of a limit after rejections.

    Each response raises the limit if its request was sent after the last rejection. This growth needs no
    trials (increases that later responses must confirm). An outage can lower the limit far, and trials would
    then take too long.

    Attributes:
        highest: highest number of requests in flight at a rejection; 0 if no request was rejected.
        goal: the limit grows up to this number; 0 if it does not grow.
        rejected_at: time of the last rejection.
        has_grown: True if the limit has grown since the last rejection.
    """

    highest: float = 0.0
    goal: float = 0.0
    rejected_at: float = -math.inf
    has_grown: bool = False

    def record_rejection(self, used: float, now: float) -> None:
        """Record a rejection, and set `goal`: later responses raise the limit up to `goal`.

        - If the limit has not grown since the previous rejection, raise `goal` to `used`, unless `goal` is
          already higher. The reason of the rejection may be a short overload or outage. After that, the
          backend may accept as many requests as before.
        - If the limit has grown since the previous rejection, the limit has become too high. Lower `goal` to
          90 % of `used`, unless `goal` is already lower.

        Args:
            used: number of requests in flight when the request was rejected.
            now: the current time.
        """
        self.goal = min(self.goal, _BELOW_REJECTED * used) if self.has_grown else max(self.goal, used)
        self.highest, self.rejected_at, self.has_grown = max(self.highest, used), now, False

    def grow(self, limit: float) -> float:
        """Return the limit after one more response, at most `goal`.

        A response raises the limit by 0.5, or by 1 / `limit` if this is more.
        """
        self.has_grown = True
        grown = limit + max(1 / limit, _GROWTH)
        if grown >= self.goal:
            grown, self.goal = self.goal, 0.0
        return grown


class RejectionHistory:
    """The recent outcomes of one backend's requests, rejected or not.

    `usual` is the fraction of requests, from 0 to 1, that the backend rejects at any load; 0 if unknown.
    """

    def __init__(self) -> None:
        self.usual = 0.0
        self._seen: deque[tuple[int, bool]] = deque(maxlen=_HISTORY)
        self._rejected = self._recorded = 0

    def record(self, in_flight: int, *, rejected: bool) -> None:
        """Record the outcome of one request.

        Args:
            in_flight: number of requests in flight when the request was sent, including this request.
            rejected: True if the backend rejected the request.
        """
        if self._rejected and len(self._seen) == _HISTORY:
            self._rejected -= self._seen[0][1]
        self._seen.append((in_flight, rejected))
        if rejected:
            self._rejected += 1
        self._recorded += 1
        if self._recorded % _HISTORY == 0 and self.usual:
            change = _FOLLOW * (self._rejected / _HISTORY - self.usual)
            self.usual = min(self.usual + change, _MAX_USUAL_SHARE)

    def is_usual(self) -> bool:
        """Return True if the backend now rejects about as many requests as usual, or fewer.

        Return False if it rejects more, or if the usual fraction is not known.
        """
        if not self.usual:
            return False
        expected = self.usual * len(self._seen)
        return self._rejected <= expected + _TOLERANCE * math.sqrt(expected * (1 - self.usual)) + 1

    def ineffective_decrease_from(self) -> int:
        """Return the highest recorded concurrency if lower concurrency does not reduce rejections.

        Concurrency is the number of requests in flight when a request was sent. Lower concurrency does not
        help if the backend rejects about the same fraction of requests at low and at high concurrency. In
        this case, the fraction is stored in `usual`, and the recorded outcomes are deleted.

        If lower concurrency helps, or if there are too few outcomes to decide, return 0.
        """
        if len(self._seen) < 2 * _MIN_COMPARED:
            return 0
        levels = sorted((in_flight for in_flight, _ in self._seen), reverse=True)
        peak, compared = levels[0], levels[_MIN_COMPARED - 1]
        # If only a few requests were sent near the peak, those with the highest concurrency are compared.
        most_low = _LOW_CONCURRENCY * (peak if compared > _LOW_CONCURRENCY * peak else compared)
        high = [(in_flight, rejected) for in_flight, rejected in self._seen if in_flight > most_low]
        low = [(in_flight, rejected) for in_flight, rejected in self._seen if in_flight <= most_low]
        if min(len(high), len(low)) < _MIN_COMPARED:
            return 0
        share = _rejected_share(low)
        # The fraction to expect at low concurrency if overload were the reason.
        expected = max(0.0, 1 - (1 - _rejected_share(high)) * _mean_in_flight(high) / _mean_in_flight(low))
        if not 0 < share <= _MAX_USUAL_SHARE or share <= (expected + _rejected_share(high)) / 2:
            return 0
        self.usual = self._rejected / len(self._seen)
        self._seen.clear()
        self._rejected = self._recorded = 0
        return peak


class FreeSlots:
    """The limit of requests in flight to a backend that serves other clients first.

    A slot is the backend's capacity for one request. If all slots are in use, the backend refuses requests. A
    refusal is quick and harmless, and shows exactly how many requests the backend accepts now. The limit is
    set to this number.

    Later, more slots can become free. To find free slots, each response raises the limit:

    - by 1 if the last refusal is longer ago than a response usually takes,
    - by 0.5 otherwise.

    If no response arrives for a long time, `search` raises the limit. Before the first refusal, the limit is
    infinite.
    """

    def __init__(self) -> None:
        self.limit = math.inf  # requests in flight
        self._refused_at = self._answered_at = self._searched_at = -math.inf

    def record_refusal(self, in_flight: int, now: float) -> None:
        """Lower the limit to the number of requests that the backend has accepted. The limit is at least 1.

        `in_flight` is the number of requests in flight, including the refused request.
        """
        if self.limit == math.inf:
            self._answered_at = now  # responses before the first refusal are not recorded
        self.limit, self._refused_at = float(max(in_flight - 1, 1)), now

    def record_response(self, now: float, response_seconds: float) -> None:
        """Raise the limit after a response. A refusal does not count as a response.

        Args:
            now: the current time.
            response_seconds: how long a request usually takes; 0 if unknown.
        """
        self.limit += 1.0 if now - self._refused_at > response_seconds else _SLOTS_PER_RESPONSE
        self._answered_at = now

    def search(self, now: float, response_seconds: float) -> bool:
        """Raise the limit by 1 to find a free slot. Return True if the limit was raised.

        The limit is raised only if no response has arrived for at least 30 seconds, and at least 3 usual
        response times. In the first second after a refusal or after a previous raise by this method, the
        limit is not raised again. Call this regularly while as many requests are in flight as the limit
        allows.

        Args:
            now: the current time.
            response_seconds: how long a request usually takes; 0 if unknown.
        """
        if now - self._answered_at < max(_SILENT_SECONDS, _SILENT_RESPONSES * response_seconds):
            return False
        if now - max(self._refused_at, self._searched_at) < _BETWEEN_SEARCHES:
            return False
        self.limit, self._searched_at = self.limit + 1, now
        return True


def _rejected_share(outcomes: list[tuple[int, bool]]) -> float:
    return sum(rejected for _, rejected in outcomes) / len(outcomes)


def _mean_in_flight(outcomes: list[tuple[int, bool]]) -> float:
    return sum(in_flight for in_flight, _ in outcomes) / len(outcomes)
