"""Who may send now: permits per model first, then global (S0-25, S0-26), by tenant weight; and bytes held."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from batchwright.inference.adaptive import BackendLimits, Placed
from batchwright.inference.client import Outcome
from batchwright.rules.fairness import Shares

_FIRST_ESTIMATE = 64 * 1024

Waiter = asyncio.Future["Permit"]


@dataclass(eq=False, slots=True)
class Permit:
    """The right to have one request in flight; `release` gives it back once.

    `place` says which backend gets the request, and `tell` what it answered: its limit learns from that.
    """

    owner: "Permits"
    model: str
    placed: Placed | None = None
    released: bool = False

    def place(self, url: str) -> None:
        """May be called again: then the request goes elsewhere."""
        self.owner.place(self, url)

    def tell(self, outcome: Outcome) -> None:
        if self.placed is not None:
            self.owner.backends.tell(self.placed, outcome)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.owner.release(self)


@dataclass
class _Model:
    used: int = 0
    shares: Shares = field(default_factory=Shares)
    waiting: dict[str, deque[tuple[Waiter, float]]] = field(
        default_factory=dict[str, deque[tuple[Waiter, float]]]
    )


class Permits:
    """One a process. A model's own limit is fixed; those of its backends move beneath it.

    A slice asks for one permit at a time, so that the order of arrival is the round of a tenant's slices.
    """

    def __init__(
        self,
        *,
        total: int,
        per_model: int,
        backends: BackendLimits,
        own: Callable[[str], int | None] = lambda model: None,
    ) -> None:
        """A model's `own` limit may change at any time; where it has none, `per_model` holds."""
        self.backends = backends
        self._total, self._used = total, 0
        self._per_model, self._own = per_model, own
        self._models: dict[str, _Model] = {}

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, model: str) -> int:
        return self._model(model).used

    def limit_of(self, model: str) -> int:
        """What its own limit and those of its backends leave it, were it alone."""
        most = self.backends.most_of(model)
        own = self._limit(model)
        return own if most is None else min(own, most)

    def take(self, model: str, tenant: str, weight: float) -> Permit | None:
        """A permit, where nobody has to be waited for."""
        place = self._model(model)
        if place.waiting or self._used >= self._total or not self._has_room(model, place):
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

    def place(self, permit: Permit, url: str) -> None:
        self._leave(permit)
        permit.placed = self.backends.place(permit.model, url)

    def release(self, permit: Permit) -> None:
        self._leave(permit)
        self._model(permit.model).used -= 1
        self._used -= 1
        self._grant()

    def keep(self, models: Collection[str], urls: Collection[str]) -> None:
        """Forgets all others that nothing is in flight of."""
        idle = [name for name, model in self._models.items() if not model.used and not model.waiting]
        for name in idle:
            if name not in models:
                del self._models[name]
        self.backends.keep(urls)

    def _leave(self, permit: Permit) -> None:
        if permit.placed is None:
            self.backends.unexpect()
        else:
            self.backends.leave(permit.placed)

    def _model(self, model: str) -> _Model:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = _Model()
        return found

    def _limit(self, model: str) -> int:
        # One permit stays for the other models: none can hold them all.
        return max(1, min(self._own(model) or self._per_model, self._total - 1))

    def _grant(self) -> None:
        while self._used < self._total:
            name = self._next_model()
            if name is None:
                return
            self._grant_one(name, self._models[name])

    def _next_model(self) -> str | None:
        """Of the models with a waiter and room, the one that uses least: so they share a backend too."""
        waiting = sorted([(model.used, name) for name, model in self._models.items() if model.waiting])
        return next((name for _, name in waiting if self._has_room(name, self._models[name])), None)

    def _has_room(self, name: str, model: _Model) -> bool:
        return model.used < self._limit(name) and self.backends.has_room(name)

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
        self.backends.expect()
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
