"""The page of the documentation about disturbances. It has the sums over all runs in the ledger."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.ledger import RunRecord, read
from tests.chaos.schedule import Kind

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "disturbances.md"
_DISTURBANCES = 10_000
_RECOVERY_SECONDS = 15.0  # beyond the heartbeat timeout or the request timeout
_REQUEST_TIMEOUT_SECONDS = 20.0
_SENTENCE_CHARACTERS = 300  # of a broken promise

_PAGE = """\
# Disturbances in total

<!-- made by `make docs` -->

After reading this page you know how often running stacks were disturbed on purpose, and what came of it.
`make chaos HOURS=8` disturbs one stack after the other without supervision, each by its own seed, and adds a
record of each run to the ledger, `tests/chaos/ledger.jsonl`. This page is the sum over all records. No run is
left out, except those that were interrupted. {dates}

Each run has the embedded stack with three workers behind proxies, twelve batches at a time (eight of up to 30
lines, three of up to 400, one of up to 2,000) and three users of single calls with up to eight open calls
each. Up to eight disturbances come together. The next ones come when every batch has made progress. Objects
are in S3 if the seed is odd, and on disk if it is even. Receivers refuse the first attempt of every webhook
and callback. Runs from 2026-11-29 on create batches in [each way](../reliability.md#chaos), earlier ones only
from uploaded files.

## Sum

| | sum | aim | |
|---|---:|---:|---|
{sums}

A line fails as `worker_crashed` if workers end three times while it is in flight, in the end alone
([why](../explanation/engine.md#why-a-turn-stops)). A worker that is killed on purpose looks the same. The
first runs counted such lines as broken promises.

## Recovery

Seconds from the end of disturbances that came together. The restart of killed processes counts as recovery.
A killed worker is noticed after the heartbeat timeout, {timeouts} s in these runs. A batch has made
progress when its user has seen that its status or its counts have changed since the first poll after that
end. A model that hung never answers the requests that it got meanwhile. These requests fail after the request
timeout of 20 s, so recoveries from such disturbances are in a row of their own. The wait for an answer is
given up after 60 s, the one for progress after 120 s; they count as that long.

Runs up to commit 4cab683a measured more than the recovery: users waited for up to 8 s before they repeated a
poll that had failed, and batches of schedules had a heartbeat timeout of 20 s.

| seconds until | p50 | p99 | slowest | aim for p99 | |
|---|---:|---:|---:|---:|---|
{recoveries}

## By kind

Disturbances that came together share their recovery: it counts for each of their kinds.

| disturbance | count | next answer: p50 | p99 | slowest | all batches: p50 | p99 | slowest |
|---|---:|---:|---:|---:|---:|---:|---:|
{kinds}

## Runs

All parts of a run share one machine, the users and the backend included. *Load* is the number of processes
that ran or waited for a core. If it is greater than the number of cores, recoveries are slower. *All
batches* is the time until every batch has made progress.

| date | commit | load | runs | hours | disturbances | lines | lost | doubled | sent again | calls | broken \
| all batches: p50 | slowest |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{runs}

## Broken promises

{broken}
"""


class _Row(NamedTuple):
    """A row of the table of sums. `aim` is the value that the row should reach, or None."""

    name: str
    value: float
    aim: str | None = None
    is_met: bool = True

    @property
    def text(self) -> str:
        value = f"{self.value:,.2f}" if isinstance(self.value, float) else f"{self.value:,}"
        verdict = "" if self.aim is None else "met" if self.is_met else "**missed**"
        return f"| {self.name} | {value} | {self.aim or ''} | {verdict} |"


def pages() -> dict[Path, str]:
    """Return the text of the page by its path."""
    return {PAGE: text(read())}


def text(records: Sequence[RunRecord]) -> str:
    dates = sorted(record.began_at.date() for record in records)
    timeouts = sorted({record.heartbeat_timeout_seconds for record in records})
    return _PAGE.format(
        dates=f"First run: {dates[0]}. Last run: {dates[-1]}." if dates else "There is no record yet.",
        sums="\n".join(row.text for row in _sums(records)),
        timeouts=" and ".join(f"{seconds:g}" for seconds in timeouts) or "10",
        recoveries="\n".join(_recoveries(records)),
        kinds="\n".join(_kinds(records)),
        runs="\n".join(_runs(records)),
        broken="\n".join(_broken(records)) or "None.",
    )


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed; 0 if there are no
    values.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def _sums(records: Sequence[RunRecord]) -> list[_Row]:
    def count(name: str, value: int) -> _Row:
        return _Row(name, value, "0", value == 0)

    disturbances = sum(sum(record.disturbances.values()) for record in records)
    events, calls = [record.events for record in records], [record.calls for record in records]
    return [
        _Row("runs", len(records)),
        _Row("hours of disturbances", sum(record.seconds for record in records) / 3600),
        _Row("disturbances", disturbances, f"{_DISTURBANCES:,}", disturbances >= _DISTURBANCES),
        _Row("processes killed", sum(record.killed_processes for record in records)),
        _Row(
            "requests that the backend did not answer with 200",
            sum(each.faulty_responses for each in records),
        ),
        _Row("batches", sum(sum(record.batches.values()) for record in records)),
        _Row("lines", sum(record.lines for record in records)),
        count("lines lost", sum(record.lost for record in records)),
        count("lines doubled", sum(record.doubled for record in records)),
        count("settled lines sent again", sum(record.sent_again for record in records)),
        _Row("requests in flight answered again", sum(record.answered_again for record in records)),
        _Row("lines failed as `worker_crashed`", sum(record.crashed_lines for record in records)),
        _Row("webhook events", sum(each.expected for each in events)),
        count("events lost", sum(each.lost for each in events)),
        count("events with two ids", sum(each.doubled for each in events)),
        _Row("attempts after an event was accepted, with its id", sum(each.repeated for each in events)),
        _Row("single calls acknowledged", sum(each.acknowledged for each in calls)),
        count("calls lost", sum(each.lost for each in calls)),
        count("calls answered twice", sum(each.doubled for each in calls)),
        count("calls sent again after their end", sum(each.sent_again for each in calls)),
        count("runs with a broken promise", sum(bool(record.broken) for record in records)),
    ]


def _recoveries(records: Sequence[RunRecord]) -> list[str]:
    timeout = max((record.heartbeat_timeout_seconds for record in records), default=10.0)
    bound = timeout + _RECOVERY_SECONDS
    all_ = [recovery for record in records for recovery in record.recoveries]
    after_hang, others = list[float](), list[float]()
    for each in all_:
        (after_hang if Kind.HANG in each.kinds else others).append(each.batches)
    rows: list[tuple[str, list[float], float | None]] = [
        ("the next answer of the backend", [each.answer for each in all_], bound),
        ("progress of every running batch", others, bound),
        ("the same, if a model hung", after_hang, _REQUEST_TIMEOUT_SECONDS + _RECOVERY_SECONDS),
        (
            "delivery of an event, its refused first attempt included",
            [s for r in records for s in r.events.seconds],
            None,
        ),
        (
            "answer of a call, a refused first callback included",
            [s for r in records for s in r.calls.seconds],
            None,
        ),
    ]
    return [
        f"| {name} | {_three(values)} | {'' if aim is None else f'{aim:g}'} | {_verdict(values, aim)} |"
        for name, values, aim in rows
    ]


def _three(values: Sequence[float]) -> str:
    median, worst, slowest = percentile(values, 50), percentile(values, 99), percentile(values, 100)
    return f"{median:.1f} | {worst:.1f} | {slowest:.1f}"


def _verdict(values: Sequence[float], aim: float | None) -> str:
    if aim is None:
        return ""
    return "met" if percentile(values, 99) < aim else "**missed**"


def _kinds(records: Sequence[RunRecord]) -> list[str]:
    counts = Counter[str]()
    answers, batches = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for record in records:
        counts.update(record.disturbances)
        for recovery in record.recoveries:
            for kind in recovery.kinds:
                answers[kind].append(recovery.answer)
                batches[kind].append(recovery.batches)
    return [
        f"| {kind} | {count:,} | {_three(answers[kind])} | {_three(batches[kind])} |"
        for kind, count in sorted(counts.items())
    ]


def _runs(records: Sequence[RunRecord]) -> list[str]:
    """Return a row of the table of runs for each date and commit."""
    groups = defaultdict[tuple[str, str], list[RunRecord]](list)
    for record in records:
        groups[str(record.began_at.date()), record.commit].append(record)
    rows: list[str] = []
    for (date, commit), runs in groups.items():
        loads = sorted(run.load for run in runs)
        batches = [recovery.batches for run in runs for recovery in run.recoveries]
        cells = (
            f"{loads[0]:.1f} to {loads[-1]:.1f} on {runs[0].cores} cores",
            f"{len(runs)}",
            f"{sum(run.seconds for run in runs) / 3600:.2f}",
            f"{sum(sum(run.disturbances.values()) for run in runs):,}",
            f"{sum(run.lines for run in runs):,}",
            f"{sum(run.lost for run in runs)}",
            f"{sum(run.doubled for run in runs)}",
            f"{sum(run.sent_again for run in runs)}",
            f"{sum(run.calls.acknowledged for run in runs):,}",
            f"{sum(bool(run.broken) for run in runs)}",
            f"{percentile(batches, 50):.1f}",
            f"{percentile(batches, 100):.1f}",
        )
        rows.append(f"| {date} | {commit} | {' | '.join(cells)} |")
    return rows


def _broken(records: Sequence[RunRecord]) -> list[str]:
    return [
        f"- Seed {record.seed}, {record.began_at.date()}, {record.commit}: "
        f"`{' '.join(sentence.replace('`', ' ').split())[:_SENTENCE_CHARACTERS]}`"
        for record in records
        for sentence in record.broken
    ]
