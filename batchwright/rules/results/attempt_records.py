"""Read stored records about the attempts of a line, and find out which of two records is newer.

A record in a newer segment (a stored object with many records) may be the older record: when segments are
merged, old records are copied into a new segment.
"""

from typing import NamedTuple

import msgspec


class AttemptOrder(NamedTuple):
    """The progress of a line's attempts, read from one stored record.

    Objects can be compared with `<` and `>=`. Of two records of a line, the newer one is greater or equal.

    Attributes:
        attempts: number of failed attempts.
        jobs: number of asynchronous jobs in a backend that ended without a result for the line.
        has_job: True if such a job is running for the line.
        crashes: how often a worker crashed while it was sending this line.
    """

    attempts: int
    jobs: int
    has_job: bool
    crashes: int


class RunningJobRecord(msgspec.Struct):
    upstream: str
    id: str = ""


class AttemptRecord(msgspec.Struct):
    """A stored record about a line's attempts.

    It has only the fields that are needed after the line's slice (part of a batch) has ended.
    """

    count: int = 0
    jobs: int = 0
    job: RunningJobRecord | None = None
    crashes: int = 0
    backend_error: str = ""

    @property
    def order(self) -> AttemptOrder:
        return AttemptOrder(self.count, self.jobs, self.job is not None, self.crashes)


parse_attempt = msgspec.json.Decoder(AttemptRecord).decode
