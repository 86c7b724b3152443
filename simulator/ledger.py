"""Ledger: the simulator's record of all requests that it receives.

Tests use it to check which requests were sent, how often, and how many at the same time.
"""

import time
from collections import Counter

import msgspec


class LedgerEntry(msgspec.Struct):
    """The record of all requests with the same key.

    The key of a request is its header `x-request-id`, or the digest of its body if it has no such header.

    Attributes:
        requests: number of requests.
        completed: number of complete responses with status 200.
        statuses: number of ended requests by outcome. An outcome is an HTTP status, the name of a fault,
            `aborted`, or `disconnected` if the client closed the connection first.
        body: digest of the latest body.
        user: field `user` of the latest body.
        trace: latest `traceparent` header.
    """

    key: str
    model: str
    body: str
    user: str | None = None
    trace: str | None = None
    requests: int = 0
    completed: int = 0
    first_request_at: float = 0.0
    last_request_at: float = 0.0
    first_completed_at: float | None = None
    last_completed_at: float | None = None
    statuses: dict[str, int] = {}


class ModelTotals(msgspec.Struct):
    """The totals of all requests for one model.

    `completed` is the number of complete responses with status 200. `first_request_at` is None before the
    first request, and `last_completed_at` before the first complete response. Both are in Unix seconds.
    """

    requests: int = 0
    completed: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_request_at: float | None = None
    last_completed_at: float | None = None
    statuses: dict[str, int] = {}


class JobTotals(msgspec.Struct):
    """The totals of the requests below /jobs. A job is a request whose response the client fetches later.

    `resubmitted` counts requests that repeat the idempotency key of an earlier job. They start no new job.
    """

    submitted: int = 0
    resubmitted: int = 0
    polled: int = 0
    cancelled: int = 0
    callbacks_sent: int = 0


class LedgerReport(msgspec.Struct):
    """The content of the ledger (record of all requests), as the response of /admin/ledger.

    The key of a request is its header `x-request-id`, or the digest of its body. `keys` is the number of
    different keys. `repeated_keys` is the number of keys that occurred in more than one request.
    """

    requests: int
    completed: int
    in_flight: int
    max_in_flight: int
    keys: int
    repeated_keys: int
    models: dict[str, ModelTotals]
    entries: list[LedgerEntry]
    jobs: JobTotals


class Ledger:
    def __init__(self, *, keep_entries: bool = True) -> None:
        self._keep = keep_entries
        self._running = Counter[str]()
        self.reset()

    def reset(self) -> None:
        """Delete all entries, and set all numbers to 0, except the number of requests in flight."""
        self._entries: dict[str, LedgerEntry] = {}
        self.jobs = JobTotals()
        self._models: dict[str, ModelTotals] = {
            name: ModelTotals(in_flight=count, max_in_flight=count, statuses={})
            for name, count in self._running.items()
            if count
        }
        self._in_flight = self._max_in_flight = self._running.total()

    def begin(
        self, key: str, model: str, body: str, user: str | None, trace: str | None = None
    ) -> LedgerEntry:
        """Record the start of a request. Return the ledger entry, which must be passed to `end`.

        Requests with the same `key` (see `LedgerEntry`) have the same ledger entry. `body` is the digest of
        the request body. `trace` is the `traceparent` header of the request.
        """
        entry = self._entries.get(key)
        now = time.time()
        if entry is None:
            entry = LedgerEntry(key, model, body, first_request_at=now, statuses={})
            if self._keep:
                self._entries[key] = entry
        entry.requests += 1
        entry.model, entry.body, entry.user, entry.trace = model, body, user, trace
        entry.last_request_at = now
        totals = self.totals(model)
        totals.requests += 1
        totals.first_request_at = totals.first_request_at or now
        totals.in_flight += 1
        totals.max_in_flight = max(totals.max_in_flight, totals.in_flight)
        self._running[model] += 1
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        return entry

    def end(self, entry: LedgerEntry, model: str, status: str) -> None:
        """Record the end of a request. `status` is a key of `LedgerEntry.statuses`, such as "200"."""
        totals = self.totals(model)
        entry.statuses[status] = entry.statuses.get(status, 0) + 1
        totals.statuses[status] = totals.statuses.get(status, 0) + 1
        totals.in_flight -= 1
        self._running[model] -= 1
        self._in_flight -= 1
        if status == "200":
            totals.completed += 1
            entry.completed += 1
            entry.last_completed_at = totals.last_completed_at = time.time()
            entry.first_completed_at = entry.first_completed_at or entry.last_completed_at

    def totals(self, model: str) -> ModelTotals:
        """Return the totals of a model.

        The returned object is not a copy. The caller adds the numbers of tokens to this object.
        """
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelTotals(statuses={})
        return found

    def report(
        self, *, model: str | None = None, min_requests: int = 1, entries: bool = True
    ) -> LedgerReport:
        """Return the totals of all requests, and a selection of the ledger entries.

        Args:
            model: include only entries of this model; None for all models.
            min_requests: include only entries with at least this number of requests.
            entries: False to include no entries.
        """
        chosen = [
            entry
            for entry in self._entries.values()
            if entries and entry.requests >= min_requests and model in (None, entry.model)
        ]
        return LedgerReport(
            requests=sum(totals.requests for totals in self._models.values()),
            completed=sum(totals.completed for totals in self._models.values()),
            in_flight=self._in_flight,
            max_in_flight=self._max_in_flight,
            keys=len(self._entries),
            repeated_keys=sum(entry.requests > 1 for entry in self._entries.values()),
            models=self._models,
            entries=chosen,
            jobs=self.jobs,
        )
