"""`python -m bench` (`make bench`): ingestion, and a whole batch beside a bare client loop."""

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench import bare, ingestion, whole
from bench.requests import write_input
from bench.results import Round, table

RESULTS = Path(__file__).parent / "results"


class Report(msgspec.Struct):
    at: str
    in_flight: int
    rounds: list[Round]
    ingestion: ingestion.Measured | None


def run(
    size: Annotated[int, typer.Option(min=1, help="Requests in the batch.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=0, help="Whole batches; 0: only ingestion.")] = 3,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at once, on both sides.")] = 64,
    with_ingestion: Annotated[bool, typer.Option("--ingestion/--no-ingestion")] = True,
) -> None:
    """Measure ingestion, and a whole batch at a zero-latency simulator beside a bare client loop."""
    ingested = ingestion.run() if with_ingestion else None
    measured = _rounds(size, rounds, in_flight) if rounds else []
    if measured:
        print(f"\n{size:,} requests, {in_flight} in flight, median of {rounds} (memory: the most)")
        print(table(measured))
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{at.replace(':', '-')}.json"
    path.write_bytes(msgspec.json.encode(Report(at, in_flight, measured, ingested)))
    print(f"\nall figures: {path}")


def _rounds(size: int, rounds: int, in_flight: int) -> list[Round]:
    measured: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="batchwright-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        path = folder / "input.jsonl"
        with whole.running(folder, in_flight) as stack:
            write_input(path, size, whole.served_models(stack))
            for number in range(1, rounds + 1):
                alone = bare.measure(stack.simulator, path, in_flight)
                both = Round(alone, whole.measure(stack, path, size))
                print(f"round {number}: {alone.rate:,.0f} requests/s bare, {both.batch.rate:,.0f} as a batch")
                measured.append(both)
    return measured


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench")


if __name__ == "__main__":
    main()
