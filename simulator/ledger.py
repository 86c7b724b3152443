"""What was asked and answered, so that tests can prove what was sent, how often, and how much at once."""

import time
from collections import Counter

import msgspec


class Entry(msgspec.Struct):
    """All asks under one key: the `x-request-id` header where there is one, else the body's digest.

    `statuses` counts how they ended: an HTTP status, or `cut`, `aborted`, `gone` (the client hung up first).
    Times are Unix seconds. `body` is the digest of the last body; `user` the body's `user` field; `trace` the
    last `traceparent` header.
    """

    key: str
    model: str
    body: str
    user: str | None = None
    trace: str | None = None
    asked: int = 0
    answered: int = 0
    first_asked_at: float = 0.0
    last_asked_at: float = 0.0
    first_answered_at: float | None = None
    last_answered_at: float | None = None
    statuses: dict[str, int] = {}


class ModelTotals(msgspec.Struct):
    """Times are Unix seconds; None: never."""

    asked: int = 0
    answered: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_asked_at: float | None = None
    last_answered_at: float | None = None
    statuses: dict[str, int] = {}


class JobTotals(msgspec.Struct):
    """`repeated` are submits whose idempotency key was known: no job was started for them."""

    submitted: int = 0
    repeated: int = 0
    looked: int = 0
    cancelled: int = 0
    called_back: int = 0


class Report(msgspec.Struct):
    """`asked_again` is the number of keys asked more than once."""

    asked: int
    answered: int
    in_flight: int
    max_in_flight: int
    keys: int
    asked_again: int
    models: dict[str, ModelTotals]
    entries: list[Entry]
    jobs: JobTotals


class Ledger:
    def __init__(self, *, keep_entries: bool = True) -> None:
        self._keep = keep_entries
        self._running = Counter[str]()
        self.reset()

    def reset(self) -> None:
        """Forget all but what is in flight."""
        self._entries: dict[str, Entry] = {}
        self.jobs = JobTotals()
        self._models: dict[str, ModelTotals] = {
            name: ModelTotals(in_flight=count, max_in_flight=count, statuses={})
            for name, count in self._running.items()
            if count
        }
        self._in_flight = self._max_in_flight = self._running.total()

    def begin(self, key: str, model: str, body: str, user: str | None, trace: str | None = None) -> Entry:
        entry = self._entries.get(key)
        now = time.time()
        if entry is None:
            entry = Entry(key, model, body, first_asked_at=now, statuses={})
            if self._keep:
                self._entries[key] = entry
        entry.asked += 1
        entry.model, entry.body, entry.user, entry.trace = model, body, user, trace
        entry.last_asked_at = now
        totals = self.totals(model)
        totals.asked += 1
        totals.first_asked_at = totals.first_asked_at or now
        totals.in_flight += 1
        totals.max_in_flight = max(totals.max_in_flight, totals.in_flight)
        self._running[model] += 1
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        return entry

    def end(self, entry: Entry, model: str, status: str) -> None:
        totals = self.totals(model)
        entry.statuses[status] = entry.statuses.get(status, 0) + 1
        totals.statuses[status] = totals.statuses.get(status, 0) + 1
        totals.in_flight -= 1
        self._running[model] -= 1
        self._in_flight -= 1
        if status == "200":
            totals.answered += 1
            entry.answered += 1
            entry.last_answered_at = totals.last_answered_at = time.time()
            entry.first_answered_at = entry.first_answered_at or entry.last_answered_at

    def totals(self, model: str) -> ModelTotals:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelTotals(statuses={})
        return found

    def report(self, *, model: str | None = None, min_asked: int = 1, entries: bool = True) -> Report:
        """`model` and `min_asked` choose entries; the totals are always those of everything."""
        chosen = [
            entry
            for entry in self._entries.values()
            if entries and entry.asked >= min_asked and model in (None, entry.model)
        ]
        return Report(
            asked=sum(totals.asked for totals in self._models.values()),
            answered=sum(totals.answered for totals in self._models.values()),
            in_flight=self._in_flight,
            max_in_flight=self._max_in_flight,
            keys=len(self._entries),
            asked_again=sum(entry.asked > 1 for entry in self._entries.values()),
            models=self._models,
            entries=chosen,
            jobs=self.jobs,
        )
