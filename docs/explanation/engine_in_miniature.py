"""Miniature of the code that sends a slice: send the lines of a file, store each result once, survive a kill.

Run `python engine_in_miniature.py LINES STORE URL`. LINES has one JSON object per line with `custom_id` and
`body`; STORE is a directory. The real engine is in `activities/execution/`: see engine.md.
"""

import asyncio
import heapq
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import httpx

PERMITS, MAX_ATTEMPTS = 16, 3  # PERMITS is the number of requests in flight
FLUSH_SECONDS, FLUSH_RESULTS = 0.5, 64
LEASE_SECONDS, HEARTBEAT_SECONDS, SAFETY_SECONDS = 3.0, 0.5, 1.0


class Verdict(Enum):
    """The effect of a response or an error on its line: it ends the line, or the line is sent again."""

    SETTLED = auto()  # the result is final; it may be an error of the request
    ATTEMPT = auto()  # the request may be at fault: it is sent at most MAX_ATTEMPTS times
    CAPACITY = auto()  # the backend is unavailable or overloaded: the retry does not count as an attempt


def classify(outcome: httpx.Response | httpx.HTTPError) -> Verdict:
    if isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout):
        return Verdict.CAPACITY  # the request was never sent
    if isinstance(outcome, httpx.HTTPError) or outcome.status_code in (408, 500):
        return Verdict.ATTEMPT
    return Verdict.CAPACITY if outcome.status_code in (429, 502, 503, 504) else Verdict.SETTLED


@dataclass(slots=True)
class Line:
    """One request of the input. Its byte offset identifies it."""

    offset: int
    custom_id: str
    body: bytes
    attempts: int = 0
    refusals: int = 0


class LineQueue:
    """Lines without a result, sorted by the time when each may be sent."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._heap = [(0.0, line.offset, line) for line in lines]
        heapq.heapify(self._heap)

    def pop_due(self) -> Line | None:
        """Remove and return the line that is next to send. Return None if no line may be sent yet."""
        is_due = self._heap and self._heap[0][0] <= time.monotonic()
        return heapq.heappop(self._heap)[2] if is_due else None

    def requeue(self, line: Line) -> None:
        """Put a line back into the queue. It is sent after an exponential backoff with jitter."""
        backoff = min(0.1 * 2 ** (line.attempts + line.refusals), 5.0) * random.uniform(0.5, 1.0)
        heapq.heappush(self._heap, (time.monotonic() + backoff, line.offset, line))

    def __len__(self) -> int:
        return len(self._heap)


class Lease:
    """The right of one attempt (one run of this program) to send. The real one needs Temporal heartbeats."""

    def __init__(self, store: Path) -> None:
        self._path, self._owner, self._renewed = store / "lease", os.urandom(8).hex(), 0.0

    async def acquire(self) -> None:
        """Wait until the lease of the previous owner has expired, then take it over."""
        while self._path.exists():
            if (wait := self._path.stat().st_mtime + LEASE_SECONDS - time.time()) <= 0:
                break
            await asyncio.sleep(wait)  # the previous owner may renew it meanwhile
        self._renew()

    async def keep(self) -> None:
        """Renew the lease again and again, until another attempt has taken it over."""
        while self._path.read_text() == self._owner:
            self._renew()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def is_valid(self) -> bool:
        """Return True if this attempt may send. It becomes False before another attempt can get the lease."""
        return time.monotonic() - self._renewed < LEASE_SECONDS - SAFETY_SECONDS

    def _renew(self) -> None:
        renewed = time.monotonic()  # before the write, which may be slow: the lease counts from its start
        (temporary := self._path.with_name(f"lease.{self._owner}")).write_text(self._owner)
        os.replace(temporary, self._path)
        self._renewed = renewed


class SegmentBuffer:
    """A buffer of results. It stores them in segments: immutable files that are either complete or absent."""

    def __init__(self, store: Path) -> None:
        self._store, self._buffer = store, list[bytes]()
        self._prefix, self._count, self._flushed = os.urandom(8).hex(), 0, time.monotonic()

    def add(self, line: Line, status: int, body: str) -> None:
        record = {"offset": line.offset, "custom_id": line.custom_id, "status": status, "body": body}
        self._buffer.append(json.dumps(record).encode())
        if len(self._buffer) >= FLUSH_RESULTS or time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Store the buffered results. From now on their lines are settled: they are never sent again."""
        path = self._store / f"{self._prefix}-{self._count:06}.segment"
        with (temporary := path.with_suffix(".new")).open("wb") as file:
            file.write(b"\n".join(self._buffer))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._buffer, self._count, self._flushed = [], self._count + 1, time.monotonic()


def settled(store: Path) -> dict[int, dict[str, object]]:
    """Return the stored results of all attempts, by the byte offset of the line."""
    lines = (line for path in sorted(store.glob("*.segment")) for line in path.read_bytes().splitlines())
    return {record["offset"]: record for record in map(json.loads, lines)}


@dataclass(slots=True)
class Dispatcher:
    """A sender of the lines that are due, with at most PERMITS requests in flight. It needs a valid lease."""

    client: httpx.AsyncClient
    queue: LineQueue
    lease: Lease
    writer: SegmentBuffer
    in_flight: int = 0

    async def run(self) -> bool:
        """Send all lines. Return True if all lines have a stored result, or False if the lease is lost."""
        is_done = all(await asyncio.gather(*(self._use_permit() for _ in range(PERMITS))))
        self.writer.flush()
        return is_done

    async def _use_permit(self) -> bool:
        while self.queue or self.in_flight:
            if not self.lease.is_valid():  # another attempt may own the slice
                return False
            if line := self.queue.pop_due():
                self.in_flight += 1
                await self._send(line)
                self.in_flight -= 1
            else:  # the next line is not due yet, or all lines are in flight
                await asyncio.sleep(0.01)
        return True

    async def _send(self, line: Line) -> None:
        try:
            outcome = await self.client.post("/v1/chat/completions", content=line.body)
        except httpx.HTTPError as error:
            outcome = error
        verdict = classify(outcome)
        line.attempts += verdict is Verdict.ATTEMPT
        line.refusals += verdict is Verdict.CAPACITY
        if verdict is Verdict.CAPACITY or (verdict is Verdict.ATTEMPT and line.attempts < MAX_ATTEMPTS):
            self.queue.requeue(line)
        elif isinstance(outcome, httpx.HTTPError):
            self.writer.add(line, 0, str(outcome))
        else:
            self.writer.add(line, outcome.status_code, outcome.text)


def read_lines(path: Path) -> Iterator[Line]:
    with path.open("rb") as file:
        while data := file.readline():
            line = json.loads(data)
            yield Line(file.tell() - len(data), line["custom_id"], json.dumps(line["body"]).encode())


async def run_slice(lines: Path, store: Path, url: str) -> bool:
    """Send all lines without a stored result. Return True if all lines have a stored result at the end."""
    lease, writer = Lease(store), SegmentBuffer(store)
    await lease.acquire()
    done = settled(store)
    queue = LineQueue(line for line in read_lines(lines) if line.offset not in done)
    heartbeat = asyncio.create_task(lease.keep())
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        is_done = await Dispatcher(client, queue, lease, writer).run()
    heartbeat.cancel()
    return is_done


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(run_slice(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])) else 1)
