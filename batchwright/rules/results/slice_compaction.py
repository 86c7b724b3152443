"""Merge the segments (stored results) of a slice into one segment with at most one result for each line.

A slice is a part of a batch.
"""

from collections.abc import Iterable
from typing import NamedTuple

from batchwright.rules.results.attempt_records import AttemptOrder, parse_attempt
from batchwright.rules.results.segment_format import RecordKind, RecordLocation, SegmentWriter, locate_records


class _SegmentRecord(NamedTuple):
    """One record of a segment, such as a line's result: the segment's bytes, and the record's location."""

    data: bytes
    place: RecordLocation

    @property
    def order(self) -> AttemptOrder:
        """Progress of the line's attempts. The record must be a record of attempts, not a result."""
        start = self.place.position
        return parse_attempt(self.data[start : start + self.place.length]).order


def compact_segments(segments: Iterable[bytes]) -> bytes:
    """Merge several segments (objects with many results) into one with at most one result for each line.

    - If a line has several results, the first success is kept. If there is no success, the first error is
      kept, together with the line's dead letter (record of its final failure).
    - If a line has no result, its newest record of attempts is kept.
    """
    kept: dict[int, _SegmentRecord] = {}
    finals: dict[int, _SegmentRecord] = {}
    for data in segments:
        for place in locate_records(data):
            record, known = _SegmentRecord(data, place), kept.get(place.offset)
            if place.final:
                finals.setdefault(place.offset, record)
            elif known is None or _replaces(record, known):
                kept[place.offset] = record
    merged = SegmentWriter()
    for record in (*kept.values(), *_dead_letter_records(finals, kept)):
        merged.copy(*record)
    return merged.finish()


def _dead_letter_records(
    finals: dict[int, _SegmentRecord], kept: dict[int, _SegmentRecord]
) -> Iterable[_SegmentRecord]:
    """Yield the dead letters that the merged segment must contain.

    A dead letter is the record of a line's final failure. It is yielded only if the line's result in `kept`
    is an error. If the result is a success, another attempt of the line has succeeded.

    Args:
        finals: the first dead letter of each line that has one, by the line's offset in the input.
        kept: the result or the record of attempts that the merged segment has for each line, by offset.
    """
    for offset, final in finals.items():
        result = kept.get(offset)
        if result is not None and result.place.kind == RecordKind.SETTLED and not result.place.success:
            yield final


def _replaces(record: _SegmentRecord, known: _SegmentRecord) -> bool:
    """Return True if `record` must be kept instead of `known`. Both are about the same line.

    A record holds either the line's result, or the progress of its attempts so far. There are three cases in
    which `record` is kept:

    - `record` is a result, and `known` is not.
    - `record` is a success, and `known` is an error.
    - Neither is a result, and `record` is at least as new as `known`.
    """
    if record.place.kind == RecordKind.SETTLED:
        return known.place.kind != RecordKind.SETTLED or (record.place.success and not known.place.success)
    return known.place.kind != RecordKind.SETTLED and record.order >= known.order
