"""Section of the benchmark: how many permits are in use when response times are long and uneven.

A permit is the right to have one request in flight. The section also measures how long a new tenant waits for
its first request while another tenant uses all permits.
"""

import heapq
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, Simulator, running_stack, simulator, wait_until_quiet

_MODEL = "alpha"
_TOKENS = 100  # length of the median response, if longer responses take more time
_POLL_SECONDS = 0.25
_NEWCOMERS, _NEWCOMER_LINES = 5, 8
_IN_USE, _OF_GREEDY, _FIRST_SENT = Target(0.97, "at least"), Target(1.05), Target(1.0)


@dataclass(frozen=True)
class Case:
    """A measured situation: batches whose response times have a lognormal distribution with sigma 1.

    Attributes:
        lines: number of lines of all batches together.
        turn_seconds: longest time that a slice (part of a batch) runs if other slices wait, in seconds from
            its first request. The slice then stops, and one of the waiting slices starts.
        has_lengths: True if response times differ because responses have different lengths. False if all
            responses have the same length.
        in_flight: permits of all workers together.
        seed: seed of the random response times. It was chosen so that no single long response decides the
            duration of the case, because this would hide unused permits.
        is_queued: True to read and plan all batches before the first line is sent. If it is False, a short
            case with many batches mostly waits for reading and planning.
        earlier: values measured with an earlier version of Batchwright, as text. In that version, a slice
            always stopped after `turn_seconds`.
    """

    name: str
    lines: int
    median_seconds: float
    turn_seconds: float
    has_lengths: bool
    in_flight: int = 64
    workers: int = 1
    batches: int = 1
    seed: int = 0
    is_queued: bool = False
    earlier: str = ""

    @property
    def what(self) -> str:
        batch = "one batch" if self.batches == 1 else f"{self.batches} batches"
        batch += " planned before" * self.is_queued
        size = "its length follows" if self.has_lengths else "all of one size"
        worker = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return (
            f"{self.lines:,} lines in {batch}, {self.median_seconds:g} s, {size}, turns of "
            f"{self.turn_seconds:g} s, {self.in_flight} in flight, {worker}"
        )


# The cases of a group run at the same time, each on its own stack. The group with responses of 30 s runs
# together with the other groups, because its processes mostly wait.
_LONG = (
    Case("long-size", 384, 30.0, 30.0, False, seed=88, earlier="1,465 s of 575 s"),
    Case("long-length", 256, 25.0, 30.0, True, seed=95, earlier="0.36 in use, 671 s of 479 s"),
    Case("long-sixty", 600, 30.0, 30.0, True, workers=2, batches=10, seed=38),
    Case("long-wide", 1_280, 30.0, 30.0, False, in_flight=256, workers=2, batches=10, seed=22),
)
# A turn of 3 s is as long as the median response, like the default turn for responses of 30 s.
_ONE_BATCH = (
    Case("length-30", 512, 3.0, 30.0, True, seed=96, earlier="0.92 in use, 67 s of 57 s"),
    Case("length-3", 512, 3.0, 3.0, True, seed=96, earlier="0.34 in use, 112 s of 57 s"),
    Case("size-30", 512, 3.0, 30.0, False, seed=78, earlier="0.77 in use, 74 s of 57 s"),
    Case("size-3", 512, 3.0, 3.0, False, seed=78, earlier="145 s of 57 s"),
)
_MANY = (
    Case("size-1024", 1_024, 3.0, 3.0, False, seed=47, earlier="over 500 s of 105 s"),
    Case("two-workers", 512, 3.0, 3.0, False, workers=2, seed=78),
    Case("ten", 640, 3.0, 3.0, False, batches=10, seed=69),
    Case("sixty", 600, 3.0, 3.0, True, workers=2, batches=10, seed=38),
)
_WIDE = (
    Case("wide", 4_096, 3.0, 3.0, False, in_flight=256, seed=17),
    Case("wide-ten", 4_000, 3.0, 30.0, True, in_flight=256, workers=2, batches=10, seed=16),
    Case("wide-sixty", 3_600, 3.0, 30.0, False, in_flight=256, batches=60, seed=11, is_queued=True),
)
# Each case takes half a minute, so that the start and the first trial of the adaptive limit do not matter.
_SHORT = (
    (Case("short", 14_000, 0.1, 30.0, True),),
    (Case("short-sixty", 12_000, 0.1, 30.0, False, workers=2, batches=200, is_queued=True),),
    (Case("short-wide", 56_000, 0.1, 30.0, False, in_flight=256, workers=2, batches=10),),
)
GROUPS: tuple[tuple[Case, ...], ...] = (_LONG, _ONE_BATCH, _MANY, _WIDE, *_SHORT)
_BUSY = Case("busy", 1_024, 3.0, 30.0, True)


@dataclass(frozen=True)
class Utilization:
    """How well the permits (rights to have one request in flight) were used.

    Attributes:
        in_use: fraction of the permits in use, from the first request until the last request was sent.
        seconds: time from the first request to the last response.
        greedy_seconds: value of `seconds` in a computed ideal case, in which each free permit is given to the
            next line without delay. The response times are the measured ones.
    """

    in_use: float
    seconds: float
    greedy_seconds: float

    @property
    def of_greedy(self) -> float:
        return self.seconds / self.greedy_seconds


def utilization(calls: list[tuple[float, float]], permits: int) -> Utilization:
    """Return how well the permits (rights to have one request in flight) were used.

    Args:
        calls: start and end of each request, in seconds.
        permits: number of requests that may be in flight at the same time.
    """
    calls = sorted(calls)
    first, last = calls[0][0], calls[-1][0]
    used = sum(max(0.0, min(ended, last) - started) for started, ended in calls)
    free = [0.0] * permits
    for started, ended in calls:
        heapq.heapreplace(free, free[0] + ended - started)
    in_use = used / (permits * (last - first)) if last > first else 1.0
    return Utilization(in_use, max(ended for _, ended in calls) - first, max(free))


@dataclass(frozen=True)
class _Prepared:
    """A case (measured situation) with its running embedded stack. The input files are already uploaded."""

    case: Case
    backend: Simulator
    stack: RunningStack
    file_ids: list[str]


@contextmanager
def _prepared(case: Case, folder: Path) -> Generator[_Prepared]:
    folder.mkdir()
    if case.has_lengths:
        token_ms = case.median_seconds * 1000 / _TOKENS
        arguments = "--token-ms", str(token_ms), "--output-tokens", str(_TOKENS), "--output-jitter", "1"
    else:
        arguments = "--latency-ms", str(case.median_seconds * 1000), "--jitter", "1"
    each = case.in_flight // case.workers
    settings = {
        "BATCHWRIGHT_SLICE_SECONDS": str(case.turn_seconds),
        "BATCHWRIGHT_GLOBAL_IN_FLIGHT": str(each + 1),  # one model never gets the last permit
    }
    with (
        simulator(*arguments, models=(_MODEL,), entries=True) as backend,
        running_stack(
            folder / "stack", backend.url, in_flight=each, workers=case.workers, settings=settings
        ) as stack,
        Client(stack.api) as client,
    ):
        file_ids: list[str] = []
        for number in range(case.batches):
            path = folder / f"{number}.jsonl"
            write_input(path, case.lines // case.batches, (_MODEL,), fields=_fields(case, number))
            file_ids.append(batches.upload(client, path))
        yield _Prepared(case, backend, stack, file_ids)


def _fields(case: Case, number: int) -> dict[str, object]:
    """Return additional fields for the requests of batch `number`. They determine the response times."""
    fields: dict[str, object] = {"user": f"sample-{case.seed}-{number}"}
    return fields | {"max_tokens": 100 * _TOKENS} if case.has_lengths else fields


def _run(prepared: _Prepared) -> Utilization:
    """Run all batches of a case, and return how well the permits (allowed requests in flight) were used.

    Raises:
        SystemExit: a line got no response, or was sent twice.
    """
    case = prepared.case
    with Client(prepared.stack.api) as client:
        with ThreadPoolExecutor(8) as threads:
            create = _create_paused if case.is_queued else batches.create
            created = list(threads.map(partial(create, client), prepared.file_ids))
            if case.is_queued:
                _wait_until_planned(prepared, client, [batch.id for batch in created])
                list(threads.map(client.resume, [batch.id for batch in created]))
        for batch in created:
            batches.wait(client, batch.id, case.lines // case.batches, _POLL_SECONDS)
    ledger = prepared.backend.ledger(entries=True)
    if not ledger.requests == ledger.completed == len(ledger.entries) == case.lines:
        raise SystemExit(f"{case.name}: {ledger.requests} requests for {case.lines} lines")
    calls = [(entry.first_request_at, entry.last_completed_at or 0.0) for entry in ledger.entries]
    return utilization(calls, case.in_flight)


def _create_paused(client: Client, file_id: str) -> BatchObject:
    return client.pause(batches.create(client, file_id).id)


def _wait_until_planned(prepared: _Prepared, client: Client, batch_ids: list[str]) -> None:
    """Wait until the inputs of all paused batches are read and planned, so that lines could be sent.

    Raises:
        SystemExit: a batch has already sent lines, because its pause came too late.
    """
    for batch_id in batch_ids:
        while client.batch(batch_id).status is not BatchStatus.IN_PROGRESS:
            time.sleep(_POLL_SECONDS)
    if prepared.backend.ledger().requests:
        raise SystemExit(f"{prepared.case.name}: lines were sent before all batches were planned")


def _newcomers_wait(prepared: _Prepared) -> list[float]:
    """Return how many seconds new tenants wait for their first request while another tenant uses all permits.

    The other tenant runs a large batch. Each new tenant creates a small batch, one tenant after another. The
    wait is the time from the creation of the small batch to its first request.
    """
    backend, stack = prepared.backend, prepared.stack
    found: list[float] = []
    with Client(stack.api) as client:
        batches.create(client, prepared.file_ids[0])
        while backend.ledger().in_flight < prepared.case.in_flight:
            time.sleep(_POLL_SECONDS)
    for number in range(_NEWCOMERS):
        name = f"tenant-{number}"
        path = Path(stack.data).with_name(f"{name}.jsonl")
        write_input(path, _NEWCOMER_LINES, (_MODEL,), fields={"user": name})
        with Client(stack.api, tenant=name) as client:
            file_id = batches.upload(client, path)
            created_at = time.time()
            batches.create(client, file_id)
        while (first := _first_request_at(backend, name)) is None:
            time.sleep(_POLL_SECONDS)
        found.append(first - created_at)
    return found


def _first_request_at(backend: Simulator, user: str) -> float | None:
    entries = backend.ledger(entries=True).entries
    return min((entry.first_request_at for entry in entries if entry.user == user), default=None)


def measure(options: SectionOptions) -> list[Figure]:
    with ThreadPoolExecutor(1) as beside:
        long = beside.submit(_run_group, _LONG, options)
        found = [used for group in (_ONE_BATCH, _MANY, _WIDE) for used in _run_group(group, options)]
        found += long.result()
    found += [used for group in _SHORT for used in _run_group(group, options)]
    with _prepared(_BUSY, options.folder / _BUSY.name) as busy:
        waited = _newcomers_wait(busy)
    return [
        *_figures(found),
        Figure("uneven.newcomer_s", "a new tenant's first request", waited, "s", _FIRST_SENT),
    ]


def _run_group(group: tuple[Case, ...], options: SectionOptions) -> list[tuple[Case, Utilization]]:
    """Run the cases (measured situations) of a group at the same time.

    Return how well each case used its permits (allowed requests in flight).
    """
    cases = [_small(case) for case in group] if options.quick else group
    with ExitStack() as running:
        prepared = [running.enter_context(_prepared(case, options.folder / case.name)) for case in cases]
        for each in prepared:
            wait_until_quiet(each.stack)
        psutil.cpu_percent()
        with ThreadPoolExecutor(len(prepared)) as threads:
            found = list(zip(cases, threads.map(_run, prepared), strict=True))
        cpu = psutil.cpu_percent()
    for case, used in found:
        ratio = f"{used.seconds:.1f} s of {used.greedy_seconds:.1f} s"
        before = f" (before: {case.earlier})" if case.earlier else ""
        options.report(f"{case.what}: {used.in_use:.3f} in use, {ratio}{before}")
    options.report(f"the machine's CPU was {cpu:.0f} % busy")
    return found


def _small(case: Case) -> Case:
    """Return a smaller case that takes only a second or two."""
    return replace(case, lines=max(2, 128 // case.batches) * case.batches, median_seconds=0.05)


def _figures(found: list[tuple[Case, Utilization]]) -> list[Figure]:
    figures: list[Figure] = []
    for case, used in found:
        key, what, how = f"uneven.{case.name}", case.what, f"before: {case.earlier}" if case.earlier else ""
        figures.append(Figure(f"{key}.in_use", f"in use: {what}", [used.in_use], target=_IN_USE, how=how))
        figures.append(
            Figure(f"{key}.of_greedy", f"of greedy: {what}", [used.of_greedy], target=_OF_GREEDY, how=how)
        )
    return figures


SECTION = Section(
    "uneven",
    "Answers of very different length",
    "Batches whose answers take times from a lognormal distribution with sigma 1, on the whole stack; rows "
    "with long answers run side by side. In use: the share of the permits in use until the last line was "
    "sent. Of greedy: the time of a loop that gives each free permit the next line in the same order. Last, "
    "seconds from the creation of a batch of a new tenant to its first request, while another tenant holds "
    "all permits.",
    15.0,
    measure,
    on_the_page=False,
)


if __name__ == "__main__":  # rows side by side: python -m bench.sections.uneven NAME...
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        _run_group(
            tuple(case for group in GROUPS for case in group if case.name in sys.argv[1:]),
            SectionOptions(Path(temporary)),
        )
