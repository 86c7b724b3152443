"""A chaos run: batches are submitted while the stack is disturbed. Then the stack is left alone, and all
promises are checked.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from openai.types import Batch

from batchwright.activities.execution.slice_state.line_quarantine import MAX_LINE_CRASHES
from tests.chaos.calls import CallCounts, CallWitness, witnessed_calls
from tests.chaos.check import Verdict, judge
from tests.chaos.disturb import Disturber, Recovery, settle_in
from tests.chaos.doors import doors
from tests.chaos.events import NETWORKS, EventCounts, EventWitness, witnessed_events
from tests.chaos.fleet import HEARTBEAT_TIMEOUT_SECONDS, Workers, workers_behind
from tests.chaos.load import LARGEST, TENANTS, Seen, submission
from tests.chaos.objects import Objects, bucket
from tests.chaos.schedule import OF_DISK, OF_S3, Disturbance, Kind, bursts, disturbances, one_by_one
from tests.chaos.user import User
from tests.chaos.wires import Wires
from tests.chaos.witness import Witness
from tests.e2e.batches import ENDED, until
from tests.e2e.stack import Stack, dev

ReportProgress = Callable[[str], None]
_LONG_SECONDS = 90.0  # of a disturbance that came although the time was over, and of its end
IN_FLIGHT = 100  # requests of a worker


class Size(NamedTuple):
    """The size of a chaos run.

    Attributes:
        lanes: maximum number of lines of the batches in each lane. A lane submits one batch after the other.
        callers: number of users of single calls. Each has up to eight calls open.
        together: maximum number of disturbances that overlap. If it is more than one, the next ones come when
            all batches have made progress.
        patience_seconds: time that live batches have to end after the last disturbance.
    """

    workers: int = 3
    lanes: Sequence[int] = 4 * (LARGEST,)
    callers: int = 0
    together: int = 1
    patience_seconds: float = 300.0


_USUAL_SIZE = Size()


UNATTENDED = Size(lanes=8 * (30,) + 3 * (LARGEST,) + (2000,), callers=3, together=8, patience_seconds=900)


@dataclass
class Report:
    """The result of a chaos run.

    Attributes:
        seconds: planned duration. The run takes longer if it had fewer than `least` disturbances in this
            time.
        where: kind of object storage.
        faulty_responses: number of requests that did not end with status 200 at the backend.
        crashed_lines: number of lines that failed because workers ended while the line was in flight.
        answered_again: number of responses that lines got after their first one.
        repeated: requests that were sent although the result of their line was already stored.
        may_repeat: how often requests may be answered again because of the disturbances.
        broken: a sentence for each broken promise.
    """

    seed: int
    seconds: float
    where: str
    least: int = 0
    faulty_responses: int = 0
    disturbed: Counter[Kind] = field(default_factory=Counter[Kind])
    kills: int = 0
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    crashed_lines: int = 0
    answered_again: int = 0
    repeated: int = 0  # after they had settled
    may_repeat: int = 0
    events: EventCounts = field(default_factory=EventCounts)
    calls: CallCounts = field(default_factory=CallCounts)
    broken: list[str] = field(default_factory=list[str])


class Run:
    def __init__(
        self,
        stack: Stack,
        objects: Objects,
        witness: Witness,
        events: EventWitness,
        calls: CallWitness,
        report: Report,
        report_progress: ReportProgress,
        *,
        plan: Iterable[Sequence[Disturbance]] | None = None,
        size: Size = _USUAL_SIZE,
    ) -> None:
        """Create a run.

        Args:
            report_progress: called with one sentence for each event.
            plan: bursts of disturbances to apply. None takes them from the seed, for as long as the run
                lasts.
        """
        elsewhere = OF_DISK if objects.wire else OF_S3
        if plan is None and size.together > 1:
            plan = bursts(report.seed, size.together, but=elsewhere)
        self._plan = one_by_one(disturbances(report.seed, but=elsewhere)) if plan is None else plan
        self._size = size
        self._report_progress = report_progress
        self._stack, self._objects, self._witness, self._events = stack, objects, witness, events
        self._calls = calls
        self._users = {tenant: User(stack, tenant) for tenant in TENANTS}
        self._doors = doors(stack, objects)
        self._submitted = 0
        self._live: list[Seen] = []
        self._calm = asyncio.Event()  # nothing is disturbed any more
        self.report = report

    async def run(self) -> None:
        await settle_in(self._stack)
        await self._events.register(self._stack, TENANTS)
        wires = Wires(self._stack.now, self._objects)
        async with workers_behind(wires, self._size.workers, self._stack.now) as workers:
            disturber = Disturber(self._stack, workers, wires, self._witness)
            until = time.monotonic() + self.report.seconds
            watching = asyncio.create_task(self._witness.watch())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._disturb(disturber, until))
                for largest in self._size.lanes:
                    group.create_task(self._submit_and_judge(until, largest))
                for number in range(self._size.callers):
                    users = list(self._users.values())
                    group.create_task(
                        self._calls.call(self._stack, users, f"{self.report.seed}/{number}", self._calm)
                    )
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._check_stragglers()
            self.report.events = await self._events.check(self.report.verdicts)
            self.report.broken += self._events.broken
            self._check_exits(workers)
        self.report.disturbed, self.report.recoveries = disturber.done, disturber.recoveries
        self.report.kills, self.report.may_repeat = disturber.kills, disturber.may_repeat
        await self._check_ledger()
        for user in self._users.values():
            await user.close()

    async def _disturb(self, disturber: Disturber, until: float) -> None:
        for burst in self._plan:
            is_late = time.monotonic() + max(what.pause + what.seconds for what in burst) >= until
            if is_late and disturber.done.total() >= self.report.least:
                break
            self._report_progress("; ".join(map(str, burst)))
            if await disturber.do(burst, self._live, patiently=self._size.together > 1):
                _, answer, batches = disturber.recoveries[-1]
                progress = "" if batches is None else f", all batches after {batches:.1f} s"
                self._report_progress(f"answers continue after {answer:.1f} s{progress}")
            else:
                self._report_progress("no batch came there")
        self._calm.set()

    async def _submit_and_judge(self, until: float, largest: int) -> None:
        while time.monotonic() < until or not self._calm.is_set():
            number, self._submitted = self._submitted, self._submitted + 1
            wanted = submission(self.report.seed, number, largest, tuple(self._doors))
            user, door = self._users[wanted.tenant], self._doors[wanted.door]
            seen = Seen(wanted, await door.submit(user, wanted))
            self._live.append(seen)
            left = max(0.0, until - time.monotonic())
            patience = left + self.report.least * _LONG_SECONDS + self._size.patience_seconds
            try:
                batch = await user.follow(seen, patience)
            except TimeoutError:
                self._say(seen, f"is stuck: {' -> '.join(seen.statuses)}")
                return
            self._live.remove(seen)
            verdict = await judge(user, seen, batch)
            verdict.broken += await door.check(user, seen, batch)
            self.report.verdicts.append(verdict)
            self._witness.ended(verdict.requests)
            history = " -> ".join(seen.statuses)
            self._report_progress(f"{wanted.door} {number} of {verdict.lines} lines: {history}")
            for sentence in verdict.broken:
                self._say(seen, sentence)

    async def _check_stragglers(self) -> None:
        """Check that all batches end, including batches whose creation got no response."""
        live: list[str] = []

        async def have_ended() -> bool:
            live[:] = [
                batch.id
                for user in self._users.values()
                async for batch in _listed(user)
                if batch.status not in ENDED
            ]
            return not live

        try:
            await until(have_ended, self._size.patience_seconds)
        except TimeoutError:
            self.report.broken.append(f"{', '.join(live)} never ended")

    async def _check_ledger(self) -> None:
        again, ledger = await self._witness.repeated()
        self.report.repeated = len(again)
        self.report.calls = self._calls.count(ledger.values())
        self.report.broken += self._calls.broken
        self.report.faulty_responses = sum(entry.requests - entry.completed for entry in ledger.values())
        frozen = self.report.disturbed[Kind.FREEZE_WORKER]
        if len(again) > frozen * IN_FLIGHT:
            self.report.broken.append(
                f"{len(again)} lines were sent again after they had settled: {again[:5]}"
            )
        requests = [request for verdict in self.report.verdicts for request in verdict.requests]
        check_crashed_lines(self.report)
        unknown = [request for request in requests if request not in ledger]
        if unknown:
            self.report.broken.append(f"{len(unknown)} answered lines were never sent: {unknown[:5]}")
        answers = [ledger[request].completed for request in requests if request in ledger]
        extra = self.report.answered_again = sum(count - 1 for count in answers if count > 1)
        # What comes between a look and the kill that follows: at most what one worker has in flight.
        allowed = self.report.may_repeat + self.report.disturbed.total() * IN_FLIGHT
        if extra > allowed:
            self.report.broken.append(f"{extra} answers too many, {allowed} allowed")

    def _check_exits(self, workers: Workers) -> None:
        self.report.broken += [f"a worker that nobody killed ended with {what}" for what in workers.failures]

    def _say(self, seen: Seen, sentence: str) -> None:
        self.report.broken.append(f"{seen.batch_id} ({len(seen.submission.lines)} lines) {sentence}")


def check_crashed_lines(report: Report) -> None:
    """Count the lines that failed as `worker_crashed`, and check that enough workers ended for that.

    Workers that were killed or frozen on purpose look as if the line had crashed them.
    """
    report.crashed_lines = sum(verdict.crashed for verdict in report.verdicts)
    ended = report.kills + report.disturbed[Kind.FREEZE_WORKER]
    if report.crashed_lines * MAX_LINE_CRASHES > ended:
        report.broken.append(
            f"{report.crashed_lines} lines failed as worker_crashed, but only {ended} workers ended"
        )


async def _listed(user: User) -> AsyncGenerator[Batch]:
    after = ""
    while True:
        page = await user.page(after)
        for batch in page.data:
            yield batch
        if not page.has_more:
            return
        after = page.data[-1].id


@asynccontextmanager
async def _objects_of(seed: int) -> AsyncGenerator[Objects]:
    """Yield the object storage of a run: an S3 bucket for an odd seed, a directory for an even one."""
    if not seed % 2:
        yield Objects()
        return
    async with bucket() as objects:
        yield objects


async def chaos(
    seed: int,
    seconds: float,
    report_progress: ReportProgress,
    data: Path | None = None,
    *,
    least: int = 0,
    plan: Iterable[Sequence[Disturbance]] | None = None,
    size: Size = _USUAL_SIZE,
) -> Report:
    """Start a stack, disturb it while batches run, and return a report.

    Args:
        seconds: duration of the disturbances.
        report_progress: called with one sentence for each event.
        data: directory of the stack, which is kept. None uses a temporary directory.
        least: minimum number of disturbances. The run takes longer if necessary.
        plan: bursts of disturbances to apply. None takes them from the seed.
    """
    async with _objects_of(seed) as objects:
        # In a thread: the proxies have to answer while the stack starts and stops.
        heartbeat = {"BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": f"{HEARTBEAT_TIMEOUT_SECONDS}"}
        locations = objects.data.setting if objects.data else {}
        settings = {**objects.direct, **locations, **NETWORKS, **heartbeat}
        opened = dev("--workers", "0", data=data, **settings)
        stack = await asyncio.to_thread(opened.__enter__)
        try:
            async with (
                objects.seen(stack.objects) as storage,
                witnessed_events() as events,
                witnessed_calls() as calls,
            ):
                report = Report(seed, seconds, "S3" if objects.wire else "disk", least)
                witness = Witness(storage, stack.simulator)
                await Run(
                    stack, objects, witness, events, calls, report, report_progress, plan=plan, size=size
                ).run()
                return report
        finally:
            await asyncio.to_thread(opened.__exit__, None, None, None)
