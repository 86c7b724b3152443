"""Selects the result lines that a client has requested: from a list of lines (`joined`), or from the output
or error file of an ended batch (`selected_lines`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from batchwright.api.services.live_results.settled_line_index import LiveIndex
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.results.output_lines import HEAD_BYTES, line_id
from batchwright.storage.spill.columns import ColumnSpace

_MAX_LINE_BYTES = 2**31


class NotInFile(Exception):
    """The error if the client wants to continue after a line that is not in the file."""


class SentLines:
    """The lines whose results were sent to a client before the batch ended.

    Raises:
        StorageFull, StorageUnavailable: there are too many lines for memory, and the local disk is full or
            cannot be used.
    """

    def __init__(self, space: ColumnSpace, index: LiveIndex) -> None:
        self._columns = space.new_columns(("B", len(index)))
        [self._sent] = self._columns.views
        self._lines = zip(index.ids(), self._sent, strict=True)

    def add(self, lines: Iterable[int]) -> None:
        """Remember the lines with these numbers. Do not call this after the first call of `has`."""
        for line in lines:
            self._sent[line] = 1
        self._columns.release_pages()

    def has(self, id: str) -> bool:
        """Return True if the line with this id was sent to the client.

        Each call continues the search after the line of the previous call. So call this for lines in input
        order.
        """
        return bool(next((sent for known, sent in self._lines if known == id), 0))


class LineFilter(NamedTuple):
    """The conditions for the lines that are selected from a file. A line must meet all conditions. If a field
    is None, its condition does not apply.

    Attributes:
        after: select only lines that follow the line with this id.
        custom_id: select only lines with this custom id.
        sent: do not select these lines, because they were already sent to the client.
    """

    after: str | None
    custom_id: str | None
    sent: SentLines | None


async def selected_lines(
    pieces: AsyncIterator[bytes], only: LineFilter, is_disconnected: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes]:
    """Yield the selected lines of a file until the file ends or the client disconnects. Many lines are joined
    into each yielded value.

    Args:
        pieces: the bytes of the file, in parts.
        only: conditions for the lines to select.
        is_disconnected: function that returns True if the client has disconnected.

    Raises:
        NotInFile: no line has the id `only.after`.
    """
    splitter, found = LineSplitter(_MAX_LINE_BYTES), only.after is None
    begins = b'{"id":"%b"' % (only.after or "").encode()

    def select(lines: Iterator[InputLine]) -> bytes:
        nonlocal found
        chosen = list[bytes]()
        for line in lines:
            data = line.data or b""
            if not found:
                found = data.startswith(begins)
            elif only.sent is None or not only.sent.has(line_id(data)):
                chosen.append(data)
        return joined(chosen, only.custom_id)

    async for piece in pieces:
        lines = await asyncio.to_thread(select, splitter.feed(piece))
        if found:
            yield lines
        if not lines and await is_disconnected():  # sending lines would notice it
            return
    lines = select(splitter.finish())
    if not found:
        raise NotInFile
    yield lines


def joined(lines: list[bytes], custom_id: str | None) -> bytes:
    """Join lines into one bytes object, with a newline after each line.

    If `custom_id` is not None, skip lines with another custom id.
    """
    if custom_id is not None:
        wanted = _bytes_after_id(custom_id)
        lines = [line for line in lines if line.startswith(wanted, HEAD_BYTES)]
    return b"".join([part for line in lines for part in (line, b"\n")])


def _bytes_after_id(custom_id: str) -> bytes:
    """Return the bytes between the line's id and the response in a result line with this custom id.

    To find lines with a custom id, the caller compares these bytes. This is faster than parsing the lines.
    """
    return b',"custom_id":%b,"response":' % encode_basestring_ascii(custom_id).encode()
