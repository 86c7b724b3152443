"""The results and attempts of a slice's earlier turns, read from its segments.

They tell which lines a turn skips because they already have a result.
"""

from dataclasses import dataclass, field

from pydantic import BaseModel

from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import Usage
from batchwright.rules.results.error_tally import line_error
from batchwright.rules.results.segment_format import RecordKind, RecordLocation, locate_records
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage, StorageUnavailable

_MAX_LISTINGS = 3


class SubmittedJob(BaseModel):
    """A job that a backend has accepted for a line.

    Attributes:
        id: the job's id at the backend; may be empty if the backend calls back.
        upstream: identifies the backend and the model.
        since: when the job was submitted, in Unix seconds.
    """

    id: str = ""
    upstream: str
    since: float


class LineAttempt(BaseModel):
    """Record of a line's attempts so far. All times are Unix seconds.

    It is stored in segments together with the slice's results (as ATTEMPT and SUBMITTED records). So the next
    turn knows it.
    """

    count: int = 0
    not_before: float = 0.0  # earliest time of the next try; 0 means now
    waiting_since: float = 0.0  # time of the first failure due to missing capacity; 0 if there was none
    error: str = ""
    backend_error: str = ""  # the last error message of a backend
    sending_attempt: str = ""  # the slice attempt that was about to send the line
    crashes: int = 0  # slice attempts that crashed while they sent the line
    no_response: bool = False  # True if the last try got no response, for example in an outage
    jobs: int = 0  # number of jobs that ended without a result
    job: SubmittedJob | None = None  # the job that is running

    def supersedes(self, other: "LineAttempt") -> bool:
        """Return True if this record is at least as new as `other`, a record of the same line."""
        return (self.count, self.jobs) >= (other.count, other.jobs)


@dataclass
class StoredResults:
    """Results of the slice's earlier turns, read from its segments (stored objects with many results).

    The keys of all three mappings are the lines' offsets in the input file.

    Attributes:
        settled: for each settled line, True if it succeeded, False if it failed.
        failures: the error of each settled line that failed.
        attempts: the latest stored record of the attempts of each line. Lines without such a record are
            missing.
    """

    segments: list[ObjectInfo] = field(default_factory=list[ObjectInfo])
    settled: dict[int, bool] = field(default_factory=dict[int, bool])  # by offset
    failures: dict[int, ErrorCount] = field(default_factory=dict[int, ErrorCount])
    attempts: dict[int, LineAttempt] = field(default_factory=dict[int, LineAttempt])
    usage: Usage = field(default_factory=Usage)

    def add(self, found: RecordLocation, data: bytes) -> None:
        if found.kind in (RecordKind.ATTEMPT, RecordKind.SUBMITTED):
            attempt = LineAttempt.model_validate_json(data[found.position : found.position + found.length])
            known = self.attempts.get(found.offset)
            if known is None or attempt.supersedes(known):
                self.attempts[found.offset] = attempt
        elif found.kind == RecordKind.SETTLED:
            known = self.settled.get(found.offset)
            if known is None or (found.success and not known):
                i, c, o, r = found.tokens
                self.usage += Usage(input_tokens=i, cached_tokens=c, output_tokens=o, reasoning_tokens=r)
                self.settled[found.offset] = found.success
                if found.success:
                    self.failures.pop(found.offset, None)
                else:
                    line = data[found.position : found.position + found.length]
                    self.failures[found.offset] = line_error(line)


async def read_stored_results(storage: Storage, folder: str) -> StoredResults:
    """Read the results of the slice's earlier turns from all segments (stored objects) in `folder`.

    If a segment disappears meanwhile, the folder is listed again. This can happen because an attempt that no
    longer owns the slice may still be merging segments, and merging deletes the old ones.

    Raises:
        SegmentDamaged: a segment is not readable.
        StorageUnavailable: storage does not respond, or segments disappeared again after each listing.
    """
    for _ in range(_MAX_LISTINGS):
        try:
            return await _read_listed(storage, folder)
        except ObjectMissing:
            continue
    raise StorageUnavailable(f"The segments below {folder!r} keep changing while they are read.")


async def _read_listed(storage: Storage, folder: str) -> StoredResults:
    stored = StoredResults(segments=[info async for info in storage.list(folder)])
    for info in stored.segments:
        data = await storage.get(info.key)
        for found in locate_records(data):
            stored.add(found, data)
    return stored
