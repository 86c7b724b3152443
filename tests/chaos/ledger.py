"""The ledger of unattended chaos runs: a file with one record per run, in JSON Lines."""

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

LEDGER = Path(__file__).parent / "ledger.jsonl"


class RecoveryRecord(NamedTuple):
    """The seconds that the stack needed to recover from disturbances of these kinds.

    See `tests.chaos.disturb.Recovery`.
    """

    kinds: list[str]
    answer: float
    batches: float


class EventRecord(BaseModel):
    """The counts of webhook events, as in `tests.chaos.events.EventCounts`."""

    expected: int
    lost: int
    doubled: int
    repeated: int
    attempts: int
    seconds: list[float]


class CallRecord(BaseModel):
    """The counts of calls, as in `tests.chaos.calls.CallCounts`."""

    acknowledged: int
    lost: int
    doubled: int
    sent_again: int
    seconds: list[float]


class RunRecord(BaseModel):
    """The record of one chaos run.

    Attributes:
        began_at: time in UTC.
        commit: abbreviated commit; `-dirty` follows if files were changed.
        seconds: duration of the disturbances.
        disturbances: number by kind.
        batches: number by final status.
        sent_again: requests that were sent although the result of their line was already stored.
        crashed_lines: lines that failed as `worker_crashed`. Records of commits before this was counted name
            them in `broken`.
        load: processes that ran or waited for a core on average, in the last five minutes of the run.
        broken: a sentence for each broken promise. If the run itself failed, it says so.
    """

    seed: int
    began_at: datetime
    commit: str
    seconds: float
    storage: str
    heartbeat_timeout_seconds: float
    disturbances: dict[str, int]
    killed_processes: int
    faulty_responses: int
    batches: dict[str, int]
    lines: int
    lost: int
    doubled: int
    sent_again: int
    answered_again: int
    crashed_lines: int = 0
    recoveries: list[RecoveryRecord]
    events: EventRecord
    calls: CallRecord
    load: float
    cores: int
    broken: list[str]


def read(path: Path = LEDGER) -> list[RunRecord]:
    """Return all records, oldest first."""
    if not path.exists():
        return []
    return [RunRecord.model_validate_json(line) for line in path.read_text().splitlines()]


def append(record: RunRecord, path: Path = LEDGER) -> None:
    with path.open("a") as file:
        file.write(record.model_dump_json() + "\n")
