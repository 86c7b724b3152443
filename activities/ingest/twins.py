"""Lines that ask what another line of the batch asks: they are in no plan, and get that line's answer."""

from array import array
from collections.abc import Iterator

from batchwright.rules.digests import Digests
from batchwright.rules.duplicates import Duplicate, canonical
from batchwright.rules.lines import Line, parse_line, read_request
from batchwright.rules.ordering import ReadLine


class Places:
    """Of one model: 20 bytes for each."""

    def __init__(self) -> None:
        self.offsets, self.lengths, self.firsts = array("Q"), array("I"), array("Q")

    def __len__(self) -> int:
        return len(self.offsets)


class Twins:
    """Asked for each line that is planned; 51 bytes of memory for each different one."""

    def __init__(self) -> None:
        self._seen = Digests()
        self._firsts = array("Q")
        self.models: dict[str, Places] = {}

    def __len__(self) -> int:
        return sum(map(len, self.models.values()))

    def take(self, line: Line, model: str) -> bool:
        """Whether a line before this one asks the same; then that one's answer is this one's."""
        _, body = read_request(line.data or b"")
        number, is_new = self._seen.number(model.encode() + b"\x00" + canonical(body))
        if is_new:
            self._firsts.append(line.offset)
            return False
        places = self.models.setdefault(model, Places())
        places.offsets.append(line.offset)
        places.lengths.append(line.length)
        places.firsts.append(self._firsts[number])
        return True

    def of(self, model: str) -> Places:
        return self.models.get(model) or Places()


def read_twins(places: Places, read: ReadLine, start: int, most: int) -> Iterator[Duplicate]:
    """Some of them, with their custom ids, which `read` has from the input."""
    for place in range(start, min(start + most, len(places))):
        offset = places.offsets[place]
        line = parse_line(read(offset, places.lengths[place]))
        yield Duplicate(offset, places.firsts[place], line.custom_id)
