"""What the ledger says about lines that were settled before a worker was killed or frozen."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import BaseModel

from batchwright.rules import ids
from batchwright.rules.segments import Kind, SegmentDamaged, read_index

_RESULTS = "results"
_BATCHES = "batches"


class Entry(BaseModel):
    key: str
    asked: int
    answered: int
    last_asked_at: float


class Ledger(BaseModel):
    entries: list[Entry]


@dataclass
class Witness:
    """`settled` maps request ids to the moment at which their results were seen in storage."""

    objects: Path
    settled: dict[str, float] = field(default_factory=dict[str, float])
    _read: set[Path] = field(default_factory=set[Path])

    def look(self) -> None:
        """Reads every segment that is new."""
        for path in self.objects.glob(f"*/{_BATCHES}/*/{_RESULTS}/*/*/*"):
            if path not in self._read:
                self._read.add(path)
                requests, seen_at = _settled_in(path), time.time()
                for request in requests:
                    self.settled.setdefault(request, seen_at)

    async def asked_again(self, simulator: str) -> tuple[list[str], dict[str, Entry]]:
        """Requests asked after they had been seen settled, and the whole ledger by request."""
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.get(simulator + "/admin/ledger")
        entries = Ledger.model_validate_json(answer.raise_for_status().content).entries
        ledger = {entry.key: entry for entry in entries}
        again = [
            request
            for request, seen_at in self.settled.items()
            if request in ledger and ledger[request].last_asked_at > seen_at
        ]
        return again, ledger


def _settled_in(path: Path) -> list[str]:
    try:
        index = read_index(path.read_bytes())
    except (FileNotFoundError, SegmentDamaged):
        return []  # compacted just now, or being written
    batch_id = next(part for part in path.parts if ids.is_batch_id(part))
    return [ids.request_id(batch_id, entry.offset) for entry in index if entry.kind is Kind.SETTLED]
