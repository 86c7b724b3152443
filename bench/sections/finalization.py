"""Section of the benchmark: finalization (writing the output files), compared with a copy of the bytes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.activities.finalization import Finalized
from bench.activities.harness import in_a_process
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.sections.ingestion import write_input

_SECONDS = 60.0
_RESULT_BYTES = 8_000


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(50_000, 2_000)
    settled = options.folder / "settled"
    settled.mkdir()
    write_input(settled, count, 220)
    command = [
        sys.executable,
        "-m",
        "bench.activities.finalization",
        "settle",
        str(settled),
        str(_RESULT_BYTES),
    ]
    subprocess.run(command, check=True)
    found: list[Finalized] = []
    for number in options.turns(_SECONDS):
        one = _once(settled, options.folder / f"finalized-{number}")
        options.report(f"round {number}: {one.seconds:.2f} s; copied in {one.yardstick_seconds:.2f} s")
        found.append(one)
    shutil.rmtree(settled)
    return [
        Figure("finalization.of_copying", "times copying with fsync",
               [one.seconds / one.yardstick_seconds for one in found], target=Target(3.0)),
        Figure("finalization.grown_mib", "memory above an idle worker",
               [one.grown_mib for one in found], "MiB", Target(64.0)),
        Figure("finalization.seconds", "seconds of it", [one.seconds for one in found], "s"),
        Figure("finalization.cpu_us", "CPU a result of 8 KB", [one.cpu_us for one in found], "us"),
    ]  # fmt: skip


def _once(settled: Path, folder: Path) -> Finalized:
    """Write the output files of the batch in the directory `settled`. Return the measured times and memory.

    All lines of the batch have results. Finalization would delete these results. Therefore, a new process
    finalizes a copy of the directory. The copy is `folder`. It consists of hard links, and is deleted at the
    end.
    """
    shutil.copytree(settled, folder, copy_function=os.link)
    try:
        return in_a_process("bench.activities.finalization", Finalized, "finalize", folder)
    finally:
        shutil.rmtree(folder)


SECTION = Section(
    "finalization",
    "Finalization",
    "50,000 results of 8 KB (400 MB) in 198 segments, in one process, beside copying the segments' bytes "
    "into one file with fsync.",
    1.1,
    measure,
)
