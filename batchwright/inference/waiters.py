"""Who waits for permits of a model, and in what order those of a tenant get them."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, NoReturn, TypeVar

_Given = TypeVar("_Given")
_number = attrgetter("number")


@dataclass(eq=False, slots=True)
class Waiter(Generic[_Given]):
    """A slice: `number` of its batch. `granted` is called with what it waits for; it raises nothing."""

    model: str
    tenant: str
    weight: float
    batch_id: str
    number: int
    granted: Callable[[_Given], None]

    def let_go(self) -> None:
        """It waits no more; what `granted` belongs to is kept alive by nothing here."""
        self.granted = _too_late


def _too_late(_given: object) -> NoReturn:
    raise AssertionError("who is granted something has left the queue")


class Queue(Generic[_Given]):
    """Of one tenant and model: batches take turns, and of a batch's slices the first goes first.

    So slices that a worker has at the same time do not end at the same time: while one is put away and the
    next is fetched, another one sends.
    """

    def __init__(self) -> None:
        self._batches: dict[str, list[Waiter[_Given]]] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, waiter: Waiter[_Given]) -> None:
        self._batches.setdefault(waiter.batch_id, []).append(waiter)

    def remove(self, waiter: Waiter[_Given]) -> None:
        """Raises ValueError, KeyError: it does not wait."""
        slices = self._batches[waiter.batch_id]
        slices.remove(waiter)
        if not slices:
            del self._batches[waiter.batch_id]

    def pop(self) -> Waiter[_Given]:
        """Whose turn it is; its batch is the last one then."""
        batch_id, slices = next(iter(self._batches.items()))
        if len(slices) == 1:
            del self._batches[batch_id]
            return slices[0]
        found = min(slices, key=_number)
        slices.remove(found)
        if len(self._batches) > 1:
            self._batches[batch_id] = self._batches.pop(batch_id)
        return found
