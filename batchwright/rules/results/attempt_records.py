"""Stored records about the attempts of a line: which of two records is newer.

The order of the segments does not show which record is newer, because a merge writes old records into a new
segment.
"""

from typing import NamedTuple

import msgspec


class AttemptOrder(NamedTuple):
    """Progress of a line's attempts in one stored record. Two objects are compared as tuples.

    The progress in a newer record is never less than the progress in an older record of the same line.

    Attributes:
        attempts: number of failed attempts.
        jobs: number of jobs that ended without a result.
        has_job: True if a job is running for the line.
        crashes: number of the slice's attempts that crashed while this line was being sent.
    """

    attempts: int
    jobs: int
    has_job: bool
    crashes: int


class RunningJobRecord(msgspec.Struct):
    upstream: str
    id: str = ""


class AttemptRecord(msgspec.Struct):
    """Fields of a stored record about a line's attempts that are still needed after its slice has ended."""

    count: int = 0
    jobs: int = 0
    job: RunningJobRecord | None = None
    crashes: int = 0
    backend_error: str = ""

    @property
    def order(self) -> AttemptOrder:
        return AttemptOrder(self.count, self.jobs, self.job is not None, self.crashes)


parse_attempt = msgspec.json.Decoder(AttemptRecord).decode
