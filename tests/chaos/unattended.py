"""Makes one chaos run after another, each with the next seed, until the time is over.

Each run is recorded in the ledger.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos import ledger, page
from tests.chaos.fleet import HEARTBEAT_TIMEOUT_SECONDS
from tests.chaos.run import UNATTENDED, Report, chaos

_LEAST_SECONDS = 60.0  # a shorter run would do little else than start and end
_MOST_FAILURES = 3  # in a row, of the runs themselves


def run_for(
    hours: float, seconds: float, first_seed: int | None, report_progress: Callable[[str], None]
) -> bool:
    """Make chaos runs with consecutive seeds, and add a record of each run to the ledger and to the page.

    A run that is interrupted leaves no record. The data and logs of a run that broke a promise, or that
    sent a settled line again, are kept.

    Args:
        seconds: duration of the disturbances of one run.
        first_seed: None for the one after the largest seed in the ledger.

    Returns:
        True if no run broke a promise.

    Raises:
        Exception: three runs in a row failed before they could be judged. The ledger says so.
    """
    until = time.monotonic() + hours * 3600
    seed = max((each.seed for each in ledger.read()), default=0) + 1 if first_seed is None else first_seed
    commit, kept, failures = _commit(), True, 0
    while (left := until - time.monotonic()) >= _LEAST_SECONDS:
        data = Path(tempfile.mkdtemp(prefix=f"batchwright-chaos-{seed}-"))
        began_at = datetime.now(UTC)
        report = Report(seed, min(seconds, left), "S3" if seed % 2 else "disk")
        error: Exception | None = None
        try:
            report = asyncio.run(chaos(seed, report.seconds, report_progress, data / "data", size=UNATTENDED))
            failures = 0
        except Exception as raised:
            error, failures = raised, failures + 1
            report.broken.append(f"the run failed: {raised!r}")
        ledger.append(record_of(report, began_at, commit))
        page.PAGE.write_text(page.text(ledger.read()))
        report_progress(
            f"seed {seed}: {report.disturbed.total()} disturbances, {len(report.broken)} broken promises"
        )
        kept = kept and not report.broken
        if report.broken or report.repeated:
            report_progress("\n".join([*report.broken, f"data and logs are kept in {data}"]))
        else:
            shutil.rmtree(data, ignore_errors=True)
        if error is not None and failures >= _MOST_FAILURES:
            raise error
        seed += 1
    return kept


def record_of(report: Report, began_at: datetime, commit: str) -> ledger.RunRecord:
    endings = Counter(verdict.status for verdict in report.verdicts)
    return ledger.RunRecord(
        seed=report.seed,
        began_at=began_at.replace(microsecond=0),
        commit=commit,
        seconds=round(report.seconds, 1),
        storage=report.where,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        disturbances={kind.value: count for kind, count in sorted(report.disturbed.items())},
        killed_processes=report.kills,
        faulty_responses=report.faulty_responses,
        batches=dict(sorted(endings.items())),
        lines=sum(verdict.lines for verdict in report.verdicts),
        lost=sum(verdict.lost for verdict in report.verdicts),
        doubled=sum(verdict.doubled for verdict in report.verdicts),
        sent_again=report.repeated,
        crashed_lines=report.crashed_lines,
        answered_again=report.answered_again,
        recoveries=[
            ledger.RecoveryRecord(list(kinds), round(answer, 1), round(batches, 1))
            for kinds, answer, batches in report.recoveries
            if batches is not None
        ],
        events=ledger.EventRecord.model_validate(_rounded(asdict(report.events))),
        calls=ledger.CallRecord.model_validate(_rounded(asdict(report.calls))),
        load=round(os.getloadavg()[1], 1),
        cores=os.cpu_count() or 1,
        broken=report.broken,
    )


def _rounded(counts: dict[str, int | list[float]]) -> dict[str, int | list[float]]:
    return {
        name: [round(each, 1) for each in value] if isinstance(value, list) else value
        for name, value in counts.items()
    }


def _commit() -> str:
    """Return the abbreviated commit, with `-dirty` if files other than the ledger and its page differ."""
    root = Path(__file__).parents[2]

    def git(*arguments: str | Path) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    own = [f":!{path.relative_to(root)}" for path in (ledger.LEDGER, page.PAGE)]
    is_dirty = git("status", "--porcelain", "--", ".", *own)
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if is_dirty else "")
