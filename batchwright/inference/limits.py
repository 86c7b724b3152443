"""Who may send now: permits per model first, then global (S0-25, S0-26), by tenant weight; and bytes held."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from batchwright.rules.fairness import Shares

_DECREASE_EVERY = 1.0  # seconds: the 429s of one instant are one signal
_FIRST_ESTIMATE = 64 * 1024

Waiter = asyncio.Future["Permit"]


@dataclass(eq=False, slots=True)
class Permit:
    """The right to have one request in flight; `release` gives it back once."""

    owner: "Permits"
    model: str
    released: bool = False

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.owner.release(self.model)


@dataclass
class _Model:
    limit: int
    ceiling: int
    used: int = 0
    successes: int = 0
    lowered_at: float = float("-inf")
    shares: Shares = field(default_factory=Shares)
    waiting: dict[str, deque[tuple[Waiter, float]]] = field(
        default_factory=dict[str, deque[tuple[Waiter, float]]]
    )


class Permits:
    """One a process. A model's limit is halved by congestion and grows back with answers.

    A slice asks for one permit at a time, so that the order of arrival is the round of a tenant's slices.
    """

    def __init__(self, *, total: int, per_model: int, own: dict[str, int] | None = None) -> None:
        self._total, self._used = total, 0
        self._per_model, self._own = per_model, own or {}
        self._models: dict[str, _Model] = {}

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, model: str) -> int:
        return self._model(model).used

    def limit_of(self, model: str) -> int:
        return self._model(model).limit

    def take(self, model: str, tenant: str, weight: float) -> Permit | None:
        """A permit, where nobody has to be waited for."""
        place = self._model(model)
        if place.waiting or self._used >= self._total or place.used >= place.limit:
            return None
        place.shares.charge(tenant, weight)
        return self._give(model, place)

    def request(self, model: str, tenant: str, weight: float) -> Waiter:
        """A permit as soon as there is one; done at once where there is. Cancel the future to withdraw."""
        future: Waiter = asyncio.get_running_loop().create_future()
        place = self._model(model)
        place.waiting.setdefault(tenant, deque()).append((future, weight))
        self._grant()
        return future

    def release(self, model: str) -> None:
        self._model(model).used -= 1
        self._used -= 1
        self._grant()

    def congested(self, model: str) -> None:
        """A 429 or 503: half the limit, at most once a second."""
        place, now = self._model(model), time.monotonic()
        if now - place.lowered_at >= _DECREASE_EVERY:
            place.limit, place.successes, place.lowered_at = max(1, place.limit // 2), 0, now

    def answered(self, model: str) -> None:
        """A normal answer: one more in flight after a quarter of the limit's worth of them."""
        place = self._model(model)
        if place.limit < place.ceiling:
            place.successes += 1
            if place.successes * 4 >= place.limit:
                place.limit, place.successes = place.limit + 1, 0
                self._grant()

    def _model(self, model: str) -> _Model:
        found = self._models.get(model)
        if found is None:
            # One permit stays for the other models: none can hold them all.
            ceiling = max(1, min(self._own.get(model, self._per_model), self._total - 1))
            found = self._models[model] = _Model(limit=ceiling, ceiling=ceiling)
        return found

    def _grant(self) -> None:
        while self._used < self._total:
            name = self._next_model()
            if name is None:
                return
            self._grant_one(name, self._models[name])

    def _next_model(self) -> str | None:
        """Of the models with a waiter and room, the one that uses least."""
        ready = [name for name, model in self._models.items() if model.waiting and model.used < model.limit]
        return min(ready, key=lambda name: self._models[name].used, default=None)

    def _grant_one(self, name: str, model: _Model) -> None:
        """To the tenant whose turn it is; those who have withdrawn are only forgotten."""
        tenant = model.shares.next_of(model.waiting)
        queue = model.waiting[tenant]
        future, weight = queue.popleft()
        if not queue:
            del model.waiting[tenant]
        if future.cancelled():
            return
        model.shares.charge(tenant, weight)
        future.set_result(self._give(name, model))

    def _give(self, name: str, model: _Model) -> Permit:
        model.used += 1
        self._used += 1
        return Permit(self, name)


class ByteBudget:
    """Bytes one process may hold: half for shards, half for requests and answers until they are stored.

    Two halves, because answers leave only when a slice can go on: shards must not be able to starve them.
    What an answer will weigh is estimated from the last ones.
    """

    def __init__(self, total: int) -> None:
        self._half = total // 2
        self._shards = self._answers = 0
        self._estimate = float(_FIRST_ESTIMATE)

    @property
    def held(self) -> int:
        return self._shards + self._answers

    @property
    def has_room(self) -> bool:
        """Whether another request may go out; one always may."""
        return not self._answers or self._answers + self._estimate < self._half

    def take_shard(self, size: int) -> bool:
        """Whether there was room; a shard larger than all of it needs an empty house."""
        if self._shards and self._shards + size > self._half:
            return False
        self._shards += size
        return True

    def give_shard(self, size: int) -> None:
        self._shards -= size

    def expect(self, request_bytes: int) -> int:
        """Holds what a request and its answer may weigh; the sum is to be dropped later."""
        size = request_bytes + int(self._estimate)
        self._answers += size
        return size

    def learn(self, answer_bytes: int) -> None:
        self._estimate = max(float(answer_bytes), self._estimate * 0.98 + answer_bytes * 0.02)

    def hold_answer(self, size: int) -> None:
        self._answers += size

    def drop_answer(self, size: int) -> None:
        self._answers -= size
