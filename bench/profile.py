"""`python -m bench.profile` (`make profile`): shows which functions take the most time.

It measures ingestion (reading the input), sending, and finalization (writing the output files).
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bench import batches
from bench.call_stacks import Stacks, read_stacks, record_command, report
from bench.inputs import write_input
from bench.sections import ingestion
from bench.stack import running_stack, simulator

_ROOT = Path(__file__).parents[1]
_IN_FLIGHT = 64


def run(
    lines: Annotated[int, typer.Option(min=100, help="Number of lines.")] = 20_000,
    only: Annotated[str, typer.Option(help="ingestion, slices or finalization. [all]")] = "",
) -> None:
    """Sample the call stacks of reading, sending and finalization, and print which functions take longest."""
    with tempfile.TemporaryDirectory(prefix="batchwright-profile-") as name:
        folder = Path(name)
        steps = {"ingestion": _ingestion, "finalization": _finalization, "slices": _slices}
        for step, profile in steps.items():
            if only in ("", step):
                print(f"\n{step}, {lines:,} lines", flush=True)
                print(report(profile(folder, lines)), flush=True)


def _ingestion(folder: Path, lines: int) -> Stacks:
    place = folder / "ingestion"
    place.mkdir()
    ingestion.write_input(place, lines, 4_190)
    return _recorded(folder, "bench.activities.ingestion", str(place), "prefix")


def _finalization(folder: Path, lines: int) -> Stacks:
    place = folder / "finalization"
    place.mkdir()
    ingestion.write_input(place, lines, 220)
    command = [sys.executable, "-m", "bench.activities.finalization", "settle", str(place), "8000"]
    subprocess.run(command, check=True, cwd=_ROOT)
    return _recorded(folder, "bench.activities.finalization", "finalize", str(place))


def _slices(folder: Path, lines: int) -> Stacks:
    """Return call stacks of a worker that sends the lines of a batch to a simulator without latency."""
    path, out = folder / "slices.jsonl", folder / "slices.raw"
    write_input(path, lines)
    with (
        simulator() as backend,
        running_stack(folder / "stack", backend.url, in_flight=_IN_FLIGHT) as stack,
        subprocess.Popen([*record_command(out), "--pid", str(stack.pids.worker[0])]) as sampling,
    ):
        batches.measure(stack, path, lines)
        sampling.send_signal(signal.SIGINT)
        sampling.wait(60)
    return read_stacks(out.read_text().splitlines())


def _recorded(folder: Path, module: str, *arguments: str) -> Stacks:
    out = folder / "profile.raw"
    command = [*record_command(out), "--", sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, cwd=_ROOT, stdout=subprocess.DEVNULL)
    return read_stacks(out.read_text().splitlines())


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.profile")


if __name__ == "__main__":
    main()
