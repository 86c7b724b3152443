"""Reads whole segments (stored objects with many results), which the product reads only in parts."""

from collections.abc import Iterator

from batchwright.rules.results.segment_format import (
    IndexEntry,
    RecordKind,
    SegmentRecord,
    locate_records,
    read_tail,
)
from batchwright.rules.results.token_usage import Tokens


def read_index(data: bytes) -> list[IndexEntry]:
    """Return the entries about records from the footer of a segment. The records themselves are not verified.

    Raises:
        SegmentDamaged: the footer is invalid.
    """
    return read_tail(data, len(data))


def read_records(data: bytes) -> Iterator[SegmentRecord]:
    """Verify and yield the records of a segment, in the order of writing.

    Raises:
        SegmentDamaged: the footer is invalid, so that nothing is yielded; or the next record is invalid,
            after all records before it were yielded.
    """
    for place in locate_records(data):
        payload, usage = data[place.position : place.position + place.length], Tokens(*place.tokens)
        yield SegmentRecord(RecordKind(place.kind), place.offset, payload, place.success, usage, place.final)
