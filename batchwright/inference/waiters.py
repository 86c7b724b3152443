"""Who waits for permits of a model, and in what order those of a tenant get them."""

from bisect import insort_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

_Given = TypeVar("_Given")


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
        self.batches: dict[str, list[Waiter[_Given]]] = {}  # of those that wait; of each the first slice last

    def add(self, waiter: Waiter[_Given]) -> None:
        slices = self.batches.get(waiter.batch_id)
        if slices is None:
            self.batches[waiter.batch_id] = [waiter]
        elif waiter.number < slices[-1].number:  # mostly it is the one that was just first
            slices.append(waiter)
        else:
            insort_left(slices, waiter, key=_from_the_last)

    def remove(self, waiter: Waiter[_Given]) -> None:
        """Raises ValueError, KeyError: it does not wait."""
        slices = self.batches[waiter.batch_id]
        slices.remove(waiter)
        if not slices:
            del self.batches[waiter.batch_id]

    def pop(self) -> Waiter[_Given]:
        """Whose turn it is; its batch is the last one then."""
        batches = self.batches
        for batch_id, slices in batches.items():
            found = slices.pop()
            if not slices:
                del batches[batch_id]
            elif len(batches) > 1:
                batches[batch_id] = batches.pop(batch_id)
            return found
        raise IndexError("nobody waits")


def _from_the_last(waiter: Waiter[_Given]) -> int:
    return -waiter.number
