"""The due lines of a slice, in an order that lets backends reuse their prefix caches.

A line is due if it may be sent now.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups


class GroupedLine(Protocol):
    @property
    def due_group(self) -> int:
        """The line's prefix group (lines with the same system prompt); 0 if the line has no group."""
        ...


Line = TypeVar("Line", bound=GroupedLine)


class DueLines(Generic[Line]):
    """Queue of the lines that may be sent now, by prefix group (lines with the same system prompt).

    The groups are in the order of the plan, and so are the lines within a group. A group is full while its
    next line should wait for the response to an earlier line of the group. `pop` returns a line of a full
    group only if all groups that have lines are full. Lines without a group are in group 0, which is never
    full.
    """

    def __init__(self, prefixes: PrefixGroups) -> None:
        self._prefixes = prefixes
        self._groups: OrderedDict[int, list[Line]] = OrderedDict()  # the first line is the last element
        self._emptied: int | None = None  # the group of the last `pop`, if it has no lines left
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Line]:
        return (line for lines in self._groups.values() for line in reversed(lines))

    def append(self, line: Line) -> None:
        """Add a line behind the other lines of its group."""
        self._groups.setdefault(line.due_group, []).insert(0, line)
        self._count += 1

    def push_front(self, line: Line) -> None:
        """Add a line before the other lines of its group. The position of the group does not change."""
        group = line.due_group
        lines = self._groups.get(group)
        if lines is None:
            lines = self._groups[group] = []
            self._groups.move_to_end(group, last=False)
        lines.append(line)
        self._count += 1

    def pop(self) -> Line | None:
        """Remove and return the first line of the first group that is not full.

        If all groups are full, it is the first line of the first group. Return None if there are no lines.
        """
        groups = self._groups
        if self._emptied is not None and not groups[self._emptied]:
            del groups[self._emptied]
        self._emptied = None
        if not self._count:
            return None
        for group in groups:
            if not self._prefixes.is_full(group):
                break
        else:
            group = next(iter(groups))
        lines = groups[group]
        self._count -= 1
        line = lines.pop()
        if not lines:
            self._emptied = group  # deleted later, so that `push_front` finds its place
        return line

    def count_preferred(self) -> float:
        """Return how many lines could be sent before all groups are full.

        Lines of full groups should wait.
        """
        room = self._prefixes.room
        return sum(min(len(lines), room(group)) for group, lines in self._groups.items() if lines)

    def only_full_groups(self) -> bool:
        """Return True if all lines belong to full groups, which should wait for a response."""
        return all(self._prefixes.is_full(group) for group, lines in self._groups.items() if lines)
