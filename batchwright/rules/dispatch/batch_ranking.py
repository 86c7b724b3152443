"""Decide in which order the batches of a tenant send their lines."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.batch import DEFAULT_PRIORITY

_SIZES = (100, 1_000, 10_000)  # bounds of the size classes, in lines; larger batches are in the last one
_AT_RISK = 0.25  # a batch with less than this fraction of its window to spare is at risk
_RATE_SECONDS = 60.0  # the rate of a priority is averaged over this time
_MIN_RATE_SECONDS = 10.0  # the rate is unknown before it was measured for this time
# If batches are no longer listed, their last lines count as settled, up to a maximum: so many times the lines
# that their priority usually settles, but at least so many lines. Most of these batches have ended, but some
# may have been cancelled.
_MAX_LAST_RATE, _MAX_LAST_LINES = 5.0, 100.0
_MAX_KEY_BYTES, _PREFIX_BYTES, _DIGITS = 64, 40, 16  # Temporal's limit; lengths of a shortened key's parts


def priority_weight(priority: int) -> float:
    """Return the weight of a priority among the priorities of one tenant.

    The tenant's requests in flight are divided between the priorities in proportion to these weights. The
    default priority has the weight 1. Each priority has twice the weight of the next lower priority.
    """
    return 2.0 ** (priority - DEFAULT_PRIORITY)


def fairness_key_of(tenant_key: str, priority: int, group: str = "") -> str:
    """Return the Temporal fairness key of a batch's tasks.

    Temporal divides the workers between fairness keys, in proportion to the weights of the tenants. Tasks
    with the same key start in the order in which they were scheduled. The result contains the priority and
    the size of the batch. So an urgent batch does not wait for tasks of the tenant's other batches.

    Args:
        tenant_key: fairness key of the tenant. The result begins with it. If the result would be longer than
            Temporal allows, a hash replaces the end of the tenant's key.
        priority: priority of the batch.
        group: letter for the size of the batch, from `size_group`; empty for no letter.
    """
    suffix = f"/{priority}{group}"
    full = tenant_key + suffix
    if len(full.encode()) > _MAX_KEY_BYTES:
        prefix = tenant_key.encode()[:_PREFIX_BYTES].decode(errors="ignore")
        full = f"{prefix}~{hashlib.sha256(tenant_key.encode()).hexdigest()[:_DIGITS]}{suffix}"
    return full


def is_late(now: datetime, created_at: datetime, deadline: datetime) -> bool:
    """Return True if `now` is in the last quarter of a batch's completion window.

    The window is the time from `created_at` to `deadline`.
    """
    return deadline - now < _AT_RISK * (deadline - created_at)


def size_group(lines: int, *, is_late: bool) -> str:
    """Return a letter for the size of a batch, which becomes part of the fairness key of its tasks.

    Temporal divides the workers between the fairness keys, so small batches do not wait for large ones. The
    letter is `u` if the batch is late. Otherwise it depends on the number of lines, from small to very large:
    `s` (at most 100), `m` (at most 1,000), `l` (at most 10,000) or `x`.

    Args:
        lines: number of lines of the batch.
        is_late: result of the function `is_late` for the batch.
    """
    return "u" if is_late else "smlx"[sum(lines > size for size in _SIZES)]


class WaitingBatch(NamedTuple):
    """A batch with lines of one model that still have to be sent. Times are Unix seconds."""

    model: str
    tenant: str
    batch_id: str
    priority: int
    lines: int
    created_at: float
    deadline: float


class Rank(NamedTuple):
    """The position of a batch among the batches of the same tenant, model and priority.

    The batch with the lowest rank sends first.

    Attributes:
        is_safe: False if the batch is at risk of missing its deadline. Such batches send first.
        value: orders the batches with the same `is_safe`. If the batch is safe, this is the number of its
            lines left. If the batch is at risk, this is the time from its earliest end to its deadline, in
            seconds.
    """

    is_safe: bool
    value: float


_NEW = Rank(is_safe=True, value=0.0)


class BatchRanks(dict[str, Rank]):
    """Ranks of the batches of one model, by batch id. The batch with the lowest rank sends first.

    A new batch has no rank until the next update. Until then, a new batch comes after the batches at risk of
    missing their deadline, and before all others.

    Attributes:
        first: for each priority of each tenant, the tenant and the id of the batch that sends first. Tenants
            with only one batch of the model are left out.
        priorities: the current priority of each batch, by id. An operator may have changed it since the batch
            was created.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: list[tuple[str, str]] = []
        self.priorities: dict[str, int] = {}

    def __missing__(self, batch_id: str) -> Rank:
        return _NEW


class BatchSchedule:
    """The order in which batches of the same tenant, model and priority send their lines.

    The order is:

    1. Batches at risk of missing their deadline. The batch with the least time from its earliest end to its
       deadline sends first.
    2. All other batches. The batch with the fewest lines left sends first, so that small batches do not wait
       for large ones.

    All batches of the same tenant, model and priority together send a number of lines per second. The
    earliest end of a batch is when the batch would end if all these lines were its own. This end is compared
    with the completion window (the time that the batch may take):

    - If the earliest end is before the last quarter of the window, the batch is not at risk.
    - If the earliest end is in the last quarter, the batch is at risk.
    - If the earliest end is after the window, the batch does not count as at risk. It would be late even if
      it sent first.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, BatchRanks] = {}
        self._batches: dict[tuple[str, str], WaitingBatch] = {}  # from the last update
        # Number and seconds of the recently settled lines, by model, tenant and priority.
        self._recent: dict[tuple[str, str, int], tuple[float, float]] = {}
        self._updated_at = -math.inf

    def ranks(self, model: str) -> BatchRanks:
        """Return the ranks of the model's batches, which decide the order in which these batches send lines.

        The ranks stay the same until the next call of `update`.
        """
        return self._ranks.get(model) or BatchRanks()

    def update(
        self, batches: Collection[WaitingBatch], now: float, paused: Collection[str] = frozenset()
    ) -> None:
        """Compute the ranks of all batches again.

        If a batch of the last call is missing in `batches`, it has probably ended. If it is not paused, and
        its deadline has not passed, its remaining lines count as sent.

        Args:
            batches: the batches that have lines left and may send them at the time `now`.
            now: Unix time in seconds.
            paused: ids of the paused batches.
        """
        self._measure(batches, now, paused)
        self._updated_at = now
        ranks: dict[str, BatchRanks] = {}
        first: dict[tuple[str, str, int], tuple[Rank, str]] = {}
        counts: Counter[tuple[str, str]] = Counter()  # number of batches by model and tenant
        for batch in batches:
            group = batch.model, batch.tenant, batch.priority
            rank = _rank(batch, self._rate(group), now)
            of_model = ranks.setdefault(batch.model, BatchRanks())
            of_model[batch.batch_id], of_model.priorities[batch.batch_id] = rank, batch.priority
            first[group] = min(first.get(group, (rank, batch.batch_id)), (rank, batch.batch_id))
            counts[batch.model, batch.tenant] += 1
        for (model, tenant, _), (_, batch_id) in first.items():
            if counts[model, tenant] > 1:
                ranks[model].first.append((tenant, batch_id))
        self._ranks = ranks

    def _measure(self, batches: Collection[WaitingBatch], now: float, paused: Collection[str]) -> None:
        """Measure how many lines of each model, tenant and priority got a result since the last update.

        `_rate` computes lines per second from these numbers. A batch of the last update can be missing in
        `batches`:

        - If the batch is paused, or if its deadline has passed, none of its lines count.
        - Otherwise the batch has probably ended, so its remaining lines count. But it may have been
          cancelled, so this number of lines has a maximum.

        Args:
            batches: the batches that have lines left and may send them now.
            now: Unix time in seconds.
            paused: ids of the paused batches.
        """
        seconds = max(0.0, now - self._updated_at)
        listed = {(batch.model, batch.batch_id): batch for batch in batches}
        settled: dict[tuple[str, str, int], float] = {}
        last: dict[tuple[str, str, int], int] = {}
        for key, before in self._batches.items():
            batch, group = listed.get(key), (before.model, before.tenant, before.priority)
            if batch is not None:
                settled[group] = settled.get(group, 0.0) + max(0, before.lines - batch.lines)
            elif before.batch_id not in paused and before.deadline > now:
                last[group] = last.get(group, 0) + before.lines
        for group, lines in last.items():
            old_lines, old_seconds = self._recent.get(group, (0.0, 0.0))
            rate = old_lines / old_seconds if old_seconds > 0 else 0.0
            most = max(_MAX_LAST_LINES, _MAX_LAST_RATE * rate * seconds)
            settled[group] = settled.get(group, 0.0) + min(lines, most)
        kept = math.exp(-seconds / _RATE_SECONDS)
        recent: dict[tuple[str, str, int], tuple[float, float]] = {}
        for group, lines in settled.items():
            old_lines, old_seconds = self._recent.get(group, (0.0, 0.0))
            recent[group] = kept * old_lines + lines, kept * old_seconds + seconds
        self._recent = recent
        self._batches = listed

    def _rate(self, group: tuple[str, str, int]) -> float:
        """Return how many lines per second the batches in `group` send together; 0 if this is not known yet.

        `group` is a model, a tenant and a priority.
        """
        lines, seconds = self._recent.get(group, (0.0, 0.0))
        return lines / seconds if seconds >= _MIN_RATE_SECONDS else 0.0


def _rank(batch: WaitingBatch, rate: float, now: float) -> Rank:
    """Compute the rank of a batch. The batch with the lowest rank sends first.

    Args:
        batch: the batch, with the number of its lines that have no result yet.
        rate: lines per second that all batches of the same model, tenant and priority send together; 0 if it
            is not known.
        now: Unix time in seconds.
    """
    spare = batch.deadline - now - (batch.lines / rate if rate > 0 else 0.0)
    if 0 <= spare < _AT_RISK * (batch.deadline - batch.created_at):
        return Rank(is_safe=False, value=spare)
    return Rank(is_safe=True, value=float(batch.lines))
