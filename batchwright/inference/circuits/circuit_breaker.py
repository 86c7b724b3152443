"""Circuit breaker of one model at one backend: it stops requests while the backend fails.

An open circuit lets only trials through. A trial is a single request that shows if the backend has recovered.
The circuit closes when a trial succeeds. The circuit breaker also decides whether a failure is the fault of
the backend or of the line.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

_MIN_PAUSE = 1.0
_MAX_PAUSE = 30.0
_MAX_REQUESTED_PAUSE = 60.0  # the longest pause that a Retry-After header can set
_SOON = 3.0  # at most the time for which a slice keeps its worker slot without sending
# Until this time has passed, failures of a single tenant's lines do not open the circuit while a line of
# another tenant may still succeed.
_OTHER_TENANT_SECONDS = 10.0
_OTHER_TENANT_HEAD_START = 1.0  # extra delay for a tenant whose trial failed, so that others try first
_MIN_BETWEEN_TRIALS = 0.05
_MAX_TENANT_ERRORS = 256
# A trial may never get a response even if the backend has recovered. Another trial is sent after the minimum,
# and each further one after twice the time of the one before, up to the maximum.
_MIN_TRIAL_SECONDS, _MAX_TRIAL_SECONDS = 30.0, 120.0
# How long a response, or a request that was not refused, shows that a busy backend works: as long as so many
# usual responses take, but at least the minimum.
_MIN_ALIVE_SECONDS, _ALIVE_RESPONSES = 30.0, 3.0
_NEWEST_RESPONSE = 0.1  # weight of the newest response in the usual response time


class CircuitAttempt(Struct, eq=False):
    """One request that a circuit breaker has let through.

    When the request ends, pass this object to one of the breaker's `record_...` methods.
    """

    sent_at: float
    is_trial: bool
    tenant: str = ""
    is_recorded: bool = False


@dataclass
class CircuitBreaker:
    """Circuit breaker that stops the requests of one model to one backend while the backend fails.

    The circuit opens after a number of failures in a row: `failures_to_open`, or half the number of requests
    in flight if this is higher. If all failed lines belong to one tenant, the circuit may stay closed until
    ten seconds after the first failure. In this time, a line of another tenant can show if the backend works.

    While the circuit is open, only trials are sent. A trial is a single request that shows if the backend has
    recovered. All times are seconds of `clock`.
    """

    failures_to_open: int
    clock: Callable[[], float] = time.monotonic
    reason: str = ""  # why the circuit is open, in words for tenants
    detail: str = ""  # the last failure, in words for operators
    opened_at: float = 0.0
    is_open: bool = field(default=False, init=False)  # no property: read several times per request
    _failures: int = 0
    _pause: float = 0.0  # seconds; 0 while the circuit is closed
    _retry_at: float = 0.0
    _trial: CircuitAttempt | None = None  # the last trial, while it is in flight
    _trial_seconds: float = _MIN_TRIAL_SECONDS  # seconds until the next trial, if this one gets no response
    _in_flight: set[CircuitAttempt] = field(default_factory=set[CircuitAttempt])
    _last_success_at: float | None = None
    _alive_at: float = -math.inf  # last response that shows that the backend works
    _response_seconds: float = 0.0  # moving average of the response time; 0 before the first response
    _suspects: set[str] = field(default_factory=set[str])
    _failing_since: float = 0.0  # time of the first of the failures in a row
    _failed_tenants: set[str] = field(default_factory=set[str])  # tenants of the failures in a row
    _failed_after: float = 0.0  # duration of the last failed request that began a pause
    _outlived: int = 0  # consecutive trials that took longer than a quick refusal
    _paused_at: float = 0.0  # when the current pause began
    _last_failed_tenant: str = ""  # tenant of the last trial that failed or showed nothing
    _waiting: dict[str, float] = field(default_factory=dict[str, float])  # last `wait_seconds` call by tenant
    _tenant_errors: dict[str, str] = field(default_factory=dict[str, str])
    _refused_at: float = -math.inf  # last response with 401 or 403
    _accepts_key: bool = False  # True if a request sent after `_refused_at` succeeded

    @property
    def open_seconds(self) -> float:
        return self.clock() - self.opened_at if self.is_open else 0.0

    def wait_seconds(self, tenant: str = "") -> float:
        """Return the seconds until a line of the tenant may be sent; 0 if a line may be sent now.

        While the circuit is open, a line may be sent only as a trial, to show if the backend has recovered.
        In this state, each call records that `tenant` waits. If `tenant` sent the last trial without success,
        and another tenant waits, the result is longer. The other tenant can then send the next trial.
        """
        if not self._pause:
            return 0.0
        if tenant:
            self._waiting[tenant] = self.clock()
        if self._trial is not None:
            # The response may come at any moment. A slice that releases its slot now would see it much later.
            age = self.clock() - self._trial.sent_at
            if self._failed_after < _SOON:
                # The backend seems to refuse requests quickly, so a trial without a quick answer is probably
                # being processed. Each such trial makes the time until the next trial shorter.
                between = max(_SOON / 2.0 ** min(self._outlived, 10), _MIN_BETWEEN_TRIALS)
                return max(0.0, between - age)
            if age < _SOON:
                return min(self._pause, _SOON)
            return self._pause if age < self._trial_seconds else 0.0
        now = self.clock()
        left = self._retry_at - now
        others = (at for one, at in self._waiting.items() if one != tenant)
        is_last_failed = tenant and tenant == self._last_failed_tenant
        # A caller that waits for the end of the pause may have called only at its beginning.
        waiting_since = min(now - _OTHER_TENANT_HEAD_START, self._paused_at)
        if is_last_failed and any(at >= waiting_since for at in others):
            left += _OTHER_TENANT_HEAD_START
        return max(0.0, left)

    def begin(self, tenant: str = "") -> CircuitAttempt:
        """Record that a request is sent. Return the attempt to pass to a `record_...` method at its end.

        While the circuit is open, the request is a trial: it shows if the backend has recovered.
        """
        attempt = CircuitAttempt(self.clock(), self.is_open, tenant)
        self._in_flight.add(attempt)
        if attempt.is_trial:
            if self._trial is not None:
                self._trial_seconds = min(self._trial_seconds * 2, _MAX_TRIAL_SECONDS)
                self._outlived += 1
            self._trial = attempt
        return attempt

    def record_abort(self, attempt: CircuitAttempt) -> None:
        """Record that a request has ended without showing if the backend works, for example because it was
        cancelled.
        """
        attempt.is_recorded = True
        self._in_flight.discard(attempt)
        if self._trial is attempt:
            self._trial, self._last_failed_tenant = None, attempt.tenant
            self._retry_at = max(self._retry_at, self.clock())

    def record_success(self, attempt: CircuitAttempt) -> None:
        """Record a normal response. If the request was a trial, the circuit closes.

        A trial is a request through the open circuit, which shows if the backend has recovered.
        """
        attempt.is_recorded = True
        self._in_flight.discard(attempt)
        seconds = self._record_response() - attempt.sent_at
        usual = self._response_seconds or seconds
        self._response_seconds = usual + _NEWEST_RESPONSE * (seconds - usual)
        if attempt.sent_at >= self._refused_at:
            self._accepts_key = True
        if self.is_open and self._is_trial(attempt):
            self._close()

    def record_probe_success(self) -> None:
        """Close the circuit. Call this after a normal response to a probe (a small test request)."""
        self._record_response()
        self._accepts_key = True
        if self.is_open:
            self._close()

    def record_refusal(self) -> bool:
        """Record a refusal: a response with status 401 or 403. Return True if the API key is not at fault.

        The API key is not at fault if the backend has accepted the key since the previous refusal. One of
        these responses shows this:

        - a normal response to a probe (a small test request)
        - a normal response to a request that was sent after the previous refusal
        """
        accepts_key, self._accepts_key = self._accepts_key, False
        self._refused_at = self.clock()
        return accepts_key

    def reset_failures(self) -> None:
        """Set the number of failures in a row to 0. Call this when the backend has sent any response."""
        self._failures, self._alive_at = 0, self.clock()

    def record_failure(
        self,
        attempt: CircuitAttempt,
        reason: str,
        *,
        at_once: bool = False,
        pause: float = 0.0,
        others_wait: bool = False,
        short_pauses: bool = False,
    ) -> None:
        """Record a failure that is the backend's fault.

        The failure may open the circuit. If the request was a trial (a single request that was sent through
        the open circuit), the pause before the next trial may become longer.

        Args:
            attempt: the request that failed.
            reason: the failure in words for tenants, who see it while the circuit is open.
            at_once: True to open the circuit after this one failure.
            pause: seconds for which the backend asked the client to wait; 0 if it did not ask.
            others_wait: True if a line of another tenant is waiting. If all failed lines belong to one
                tenant, a waiting line of another tenant delays the opening of the circuit by some seconds.
                The waiting line may succeed in this time.
            short_pauses: True to keep the pauses between trials short, because the backend still answers
                probes (small test requests).
        """
        attempt.is_recorded = True
        self._in_flight.discard(attempt)
        now = self.clock()
        if not self._failures:
            self._failing_since = now
            self._failed_tenants.clear()
        self._failures += 1
        self._failed_tenants.add(attempt.tenant)
        is_trial = self._is_trial(attempt)
        if self.is_open and (not is_trial or attempt.sent_at < self._paused_at):
            return  # the request was sent before the pause began
        if is_trial or at_once or self._should_open(others_wait, now):
            self._last_failed_tenant = attempt.tenant if is_trial else ""
            self._failed_after = now - attempt.sent_at
            self._open(reason, pause, short_pauses=short_pauses)

    def record_busy(self, attempt: CircuitAttempt, reason: str, *, pause: float) -> None:
        """Record that the backend refused a request because it is busy with requests of other clients.

        If the circuit is closed and the backend probably works on other requests of this process, the refusal
        does not count. In all other cases, the refusal counts as a failure, which may open the circuit. The
        pauses between trials are then short, because the backend may accept requests again at any time.

        Args:
            attempt: the request that was refused.
            reason: the reason in words for tenants, who see it while the circuit is open.
            pause: seconds for which the backend asked the client to wait; 0 if it did not ask.
        """
        if not self.is_open and self._processes_others(attempt):
            self.record_abort(attempt)
        else:
            self.record_failure(attempt, reason, pause=pause, short_pauses=True)

    def _processes_others(self, refused: CircuitAttempt) -> bool:
        """Return True if the backend probably works on a request of this process other than `refused`.

        The result is True if both conditions are met:

        - At least one other request is in flight.
        - The backend has responded recently, or one of the other requests was sent recently.
        """
        others = [one for one in self._in_flight if one is not refused]
        longest = max(_MIN_ALIVE_SECONDS, _ALIVE_RESPONSES * self._response_seconds)
        since = self.clock() - longest
        return bool(others) and (self._alive_at > since or any(one.sent_at > since for one in others))

    def remember_error(self, tenant: str, words: str) -> None:
        """Store the backend's last error message for a tenant. Other tenants never see it.

        Args:
            words: the message; an empty string removes the stored message.
        """
        self._tenant_errors.pop(tenant, None)
        if words:
            if len(self._tenant_errors) >= _MAX_TENANT_ERRORS:
                del self._tenant_errors[next(iter(self._tenant_errors))]
            self._tenant_errors[tenant] = words

    def last_error(self, tenant: str) -> str:
        """Return the last error message that the backend returned for the tenant; empty if there is none."""
        return self._tenant_errors.get(tenant, "")

    def allow_trial(self) -> None:
        """Allow a trial (one request that shows if the backend has recovered) through the open circuit now.

        Call this when the backend responds again.
        """
        self._retry_at = min(self._retry_at, self.clock())

    def succeeded_since(self, since: float) -> bool:
        """Return True if the backend has sent a normal response since `since`, in seconds of `clock`."""
        return self._last_success_at is not None and self._last_success_at >= since

    def record_suspect(self, attempt: CircuitAttempt, request_id: str, *, since: float, proved: bool) -> bool:
        """Record a failed line. Return True if the caller must send a probe (a small test request).

        A probe shows if the backend or the line is at fault. The first rule that fits decides:

        - The backend has responded normally since `since`: the line is at fault. Return False.
        - The circuit is open: return True if the request was a trial (a request that tests the backend).
        - The circuit is closed: count the line as failed. Return True if at least `failures_to_open` lines
          are counted. Other lines may fail during the probe, so this line is counted before the probe.

        Args:
            attempt: the failed request. Its response was an error such as 500.
            request_id: id of the line.
            since: when the line was last sent, in seconds of `clock`.
            proved: True if an earlier attempt has shown that the line is at fault. The line is then not
                counted.
        """
        if self.succeeded_since(since):
            return False
        if self.is_open:
            return self._is_trial(attempt)
        return self._count_suspect(request_id, proved)

    def attribute_to_backend(
        self, request_id: str, *, since: float, proved: bool, backend_verified: bool | None = None
    ) -> bool:
        """Return True if the backend is at fault for a failed request, False if the line is at fault.

        The first rule that fits decides:

        - The backend has responded normally to any line since `since`: the line is at fault.
        - `failures_to_open` lines have failed since the backend's last normal response: the backend is at
          fault.
        - `backend_verified` is True: the line is at fault.
        - `backend_verified` is False: the backend is at fault.
        - The circuit is open: the backend is at fault.
        - Otherwise, the line is at fault.

        Args:
            request_id: id of the line.
            since: when the line was last sent, in seconds of `clock`.
            proved: True if an earlier attempt has shown that the line is at fault. The line then does not
                count towards `failures_to_open`.
            backend_verified: None if the request got a response. Otherwise, the result of a check of the
                backend just before the request: True if the backend responded to the check; False if the
                check failed or there was no check; None if the check was inconclusive.
        """
        if self.succeeded_since(since):
            return False
        if self._count_suspect(request_id, proved):
            return True
        return self.is_open if backend_verified is None else not backend_verified

    def _count_suspect(self, request_id: str, proved: bool) -> bool:
        """Count a line as failed. Return True if at least `failures_to_open` different lines have failed.

        Each normal response sets the count to 0. If `proved` is True, the line is known to be at fault and is
        not counted.
        """
        if not proved and len(self._suspects) < self.failures_to_open:
            self._suspects.add(request_id)
        return len(self._suspects) >= self.failures_to_open

    def _is_trial(self, attempt: CircuitAttempt) -> bool:
        """Return True if the circuit is open, and the request is a trial that was sent after the opening."""
        return attempt.is_trial and self.is_open and attempt.sent_at >= self.opened_at

    def _should_open(self, others_wait: bool, now: float) -> bool:
        """Return True if there are enough failures in a row to open the circuit.

        If all failed lines belong to one tenant, the tenant may be at fault, not the backend. If another
        tenant has a line that waits or was just sent, the result of that line can show which is at fault. In
        this case, return False until ten seconds after the first failure.

        Args:
            others_wait: True if a line of another tenant is waiting.
        """
        if self._failures < max(self.failures_to_open, len(self._in_flight) // 2):
            return False
        if len(self._failed_tenants) > 1 or now - self._failing_since >= _OTHER_TENANT_SECONDS:
            return True
        return not others_wait and all(
            one.tenant in self._failed_tenants or now - one.sent_at >= _SOON for one in self._in_flight
        )

    def _record_response(self) -> float:
        """Record that the backend has sent a normal response. Return the current time."""
        now = self._last_success_at = self._alive_at = self.clock()
        self._failures = 0
        if self._suspects:
            self._suspects.clear()
        return now

    def _open(self, reason: str, pause: float, *, short_pauses: bool) -> None:
        now = self.clock()
        if not self.is_open:
            self.opened_at, self.is_open = now, True
        longest = _MIN_PAUSE if short_pauses else _MAX_PAUSE
        self._pause = min(max(self._pause * 2, _MIN_PAUSE), longest)
        self._retry_at = now + max(self._pause, min(pause, _MAX_REQUESTED_PAUSE))
        self._trial, self._trial_seconds, self.reason = None, _MIN_TRIAL_SECONDS, reason
        self._outlived, self._paused_at = 0, now

    def _close(self) -> None:
        self.is_open, self._pause, self._trial = False, 0.0, None
        self.reason = self._last_failed_tenant = ""
        self._waiting.clear()
