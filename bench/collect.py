"""`python -m bench.collect` (`make collect ROWS=5000000`): measures memory and time of `batchwright collect`.

`batchwright collect` adds the results of a batch to a table. The benchmark runs this command in a separate
process. The command gets the results from the real code of the API, with fakes for database and storage. The
results are made up, so no model is needed.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from batchwright.contracts.terms import BatchStatus
from batchwright.rules.results.output_lines import result_line
from bench.machine import commit, describe, now
from bench.results import number
from tests.unit.starter.cli import Cli, served

_MILLION = 1_000_000
_LINES_AT_ONCE = 1_000
_SAMPLE_SECONDS = 0.1
_ANSWER = "This is the answer of the model to the question in this row of the table."
_BODY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "llama-3.1-8b",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": _ANSWER}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 16, "total_tokens": 36},
}


_LINE = (
    result_line(
        "batch_req_1", "CUSTOM_ID", status_code=200, backend_request_id="", body=json.dumps(_BODY).encode()
    )
    + b"\n"
)


class _Measured(NamedTuple):
    rows: int
    suffix: str
    seconds: float
    cpu_seconds: float
    peak_mib: float
    output_mib: float


def run(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the larger table.")] = 5 * _MILLION,
    suffix: Annotated[list[str] | None, typer.Option(help="Format of the output; repeatable. [.csv]")] = None,
    few: Annotated[int, typer.Option(min=1, help="Rows of the smaller table.")] = _MILLION,
    folder: Annotated[Path | None, typer.Option(help="Where the files are written. [temporary]")] = None,
) -> None:
    """Run `batchwright collect` for a smaller and a larger table. Print the memory and time of each run."""
    found: list[_Measured] = []
    with served() as cli:
        for count in (few, rows):
            for each in suffix or [".csv"]:
                with tempfile.TemporaryDirectory(prefix="batchwright-collect-", dir=folder) as name:
                    found.append(_measure(cli, Path(name), count, each))
                print(_row(found[-1]), flush=True)
    machine = describe(None)
    print(f"\n{now()}, commit {commit()}, {machine.cores} cores ({machine.processor})")
    print("\n| rows | output | time | CPU time a row | peak memory of the command | size of the output |")
    print("|---:|---|---:|---:|---:|---:|")
    print("\n".join(map(_row, found)))


def _row(one: _Measured) -> str:
    microseconds = one.cpu_seconds / one.rows * 1e6
    return (
        f"| {one.rows:,} | `{one.suffix}` | {number(one.seconds)} s | {number(microseconds)} us "
        f"| {number(one.peak_mib)} MiB | {number(one.output_mib)} MiB |"
    )


def _measure(cli: Cli, folder: Path, rows: int, suffix: str) -> _Measured:
    table, output = folder / "table.csv", folder / f"output{suffix}"
    with table.open("w") as file:
        file.write("id,question\n")
        file.writelines(f"{_custom_id(row)},What is special about the number {row}?\n" for row in range(rows))
    batch_id = _batch(cli, folder, rows)
    command = [sys.executable, "-m", "batchwright.starter", "collect", batch_id, str(table), "--id", "id"]
    environment = {**os.environ, "BATCHWRIGHT_URL": cli.url}
    began, cpu = time.monotonic(), _children_cpu_seconds()
    with subprocess.Popen([*command, "--output", str(output)], env=environment) as process:
        peak_kib = 0
        while process.poll() is None:
            peak_kib = _peak_kib(process.pid) or peak_kib
            time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(f"`batchwright collect` has failed: {process.returncode}")
    seconds, size = time.monotonic() - began, output.stat().st_size
    cpu = _children_cpu_seconds() - cpu
    return _Measured(rows, suffix, seconds, cpu, peak_kib / 1024, size / 1024 / 1024)


def _children_cpu_seconds() -> float:
    """Return the CPU time of all child processes of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _peak_kib(process: int) -> int:
    """Return the peak memory of a process so far, in KiB; 0 if the process has ended."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return 0


def _batch(cli: Cli, folder: Path, rows: int) -> str:
    """Create a completed batch with `rows` results. Return its id.

    The results are not stored. They are generated while a client downloads them.
    """
    batch_id = cli.submitted(folder).order.batch_id
    cli.end(batch_id, BatchStatus.COMPLETED, output=_line(0))
    for file in cli.api.database.rows.files.values():
        if batch_id in file.filename:
            cli.api.database.rows.files[file.tenant, file.id] = file.model_copy(
                update={"bytes": rows * len(_line(0))}
            )

    async def read(key: str, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        for first in range(0, rows, _LINES_AT_ONCE):
            yield b"".join(_line(row) for row in range(first, min(first + _LINES_AT_ONCE, rows)))

    cli.api.storage.read = read
    return batch_id


def _line(row: int) -> bytes:
    return _LINE.replace(b"CUSTOM_ID", _custom_id(row).encode(), 1)


def _custom_id(row: int) -> str:
    return f"r{row:09}"


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.collect")


if __name__ == "__main__":
    main()
