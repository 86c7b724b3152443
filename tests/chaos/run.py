"""One run: batches all the time, disturbances all the time, then calm, and what has to be true."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from openai.types import Batch

from tests.chaos.check import Verdict, judge
from tests.chaos.disturb import OF_WORKERS, Disturber, settle_in
from tests.chaos.fleet import Workers, workers_behind_proxies
from tests.chaos.load import Seen, submission
from tests.chaos.schedule import Kind, disturbances
from tests.chaos.user import User
from tests.chaos.witness import Witness
from tests.e2e.batches import ENDED
from tests.e2e.stack import Stack, dev

Tell = Callable[[str], None]
WORKERS = 3
AT_ONCE = 4  # live batches
_CALM_SECONDS = 150.0  # for what is live when the disturbances end
_IN_FLIGHT, _UNFLUSHED = 100, 3 * 4 * 256  # of a worker: requests, and results its slices may hold


@dataclass
class Report:
    seed: int
    seconds: float
    disturbed: Counter[Kind] = field(default_factory=Counter[Kind])
    recoveries: list[float] = field(default_factory=list[float])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    answered_again: int = 0
    broken: list[str] = field(default_factory=list[str])

    @property
    def kills(self) -> int:
        return sum(count for kind, count in self.disturbed.items() if kind in OF_WORKERS)

    @property
    def recovery(self) -> tuple[float, float]:
        """Median and 99th percentile, in seconds."""
        if len(self.recoveries) < 2:
            return (self.recoveries or [0.0])[0], (self.recoveries or [0.0])[0]
        cuts = quantiles(self.recoveries, n=100, method="inclusive")
        return cuts[49], cuts[98]


class Run:
    def __init__(self, stack: Stack, seed: int, seconds: float, tell: Tell) -> None:
        self._tell = tell
        self._stack, self._seed, self._seconds = stack, seed, seconds
        self._witness = Witness(stack.objects)
        self._made = 0
        self.report = Report(seed, seconds)

    async def run(self) -> Report:
        await settle_in(self._stack)
        async with workers_behind_proxies(WORKERS, self._stack.now) as (workers, proxies):
            disturber = Disturber(self._stack, workers, proxies, self._witness.look)
            until = time.monotonic() + self._seconds
            async with asyncio.TaskGroup() as group:
                group.create_task(self._disturb(disturber, until))
                for _ in range(AT_ONCE):
                    group.create_task(self._submit_and_judge(until))
            self._check_exits(workers)
        self.report.disturbed, self.report.recoveries = disturber.done, disturber.recoveries
        await self._check_stragglers()
        await self._check_ledger()
        return self.report

    async def _disturb(self, disturber: Disturber, until: float) -> None:
        for what in disturbances(self._seed):
            if time.monotonic() + what.pause >= until:
                return
            await asyncio.sleep(what.pause)
            self._tell(f"{what.kind.value}{f', {what.seconds:.0f} s' if what.seconds else ''}")
            await disturber.do(what)
            self._tell(f"answers go on after {disturber.recoveries[-1]:.1f} s")

    async def _submit_and_judge(self, until: float) -> None:
        while time.monotonic() < until:
            number, self._made = self._made, self._made + 1
            wanted = submission(self._seed, number)
            user = User(self._stack, wanted.tenant)
            seen = await user.submit(wanted)
            patience = max(0.0, until - time.monotonic()) + _CALM_SECONDS
            try:
                batch = await user.follow(seen, patience)
            except TimeoutError:
                self._say(seen, f"is stuck: {' -> '.join(seen.statuses)}")
                return
            verdict = await judge(user, seen, batch)
            self.report.verdicts.append(verdict)
            self._tell(f"batch {number} of {verdict.lines} lines: {' -> '.join(seen.statuses)}")
            for sentence in verdict.broken:
                self._say(seen, sentence)

    async def _check_stragglers(self) -> None:
        """Batches whose creation was answered to nobody end all the same."""
        for tenant in ("default", "acme", "globex"):
            user = User(self._stack, tenant)
            live = [batch.id async for batch in _listed(user) if batch.status not in ENDED]
            if live:
                self.report.broken.append(f"{tenant}: {', '.join(live)} never ended")

    async def _check_ledger(self) -> None:
        again, ledger = await self._witness.asked_again(self._stack.simulator)
        if again:
            self.report.broken.append(
                f"{len(again)} lines were asked again after they had settled: {again[:5]}"
            )
        asked = [request for verdict in self.report.verdicts for request in verdict.requests]
        unknown = [request for request in asked if request not in ledger]
        if unknown:
            self.report.broken.append(f"{len(unknown)} answered lines were never asked: {unknown[:5]}")
        answers = [ledger[request].answered for request in asked if request in ledger]
        self.report.answered_again = sum(count - 1 for count in answers if count > 1)
        allowed = sum(self.report.disturbed.values()) * (_IN_FLIGHT + _UNFLUSHED) * WORKERS
        if self.report.answered_again > allowed:
            self.report.broken.append(f"{self.report.answered_again} requests too many, {allowed} allowed")

    def _check_exits(self, workers: Workers) -> None:
        wrong = [code for code in workers.exits if code != 0]
        if wrong:
            self.report.broken.append(f"workers that nobody killed ended with {wrong}")

    def _say(self, seen: Seen, sentence: str) -> None:
        self.report.broken.append(f"{seen.batch_id} ({len(seen.submission.lines)} lines) {sentence}")


async def _listed(user: User) -> AsyncGenerator[Batch]:
    after = ""
    while True:
        page = await user.page(after)
        for batch in page.data:
            yield batch
        if not page.has_more:
            return
        after = page.data[-1].id


async def chaos(seed: int, seconds: float, tell: Tell, data: Path | None = None) -> Report:
    """A stack of its own, disturbed for so long; `tell` hears what happens."""
    with dev("--workers", "0", data=data) as stack:
        return await Run(stack, seed, seconds, tell).run()
