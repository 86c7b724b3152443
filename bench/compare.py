"""`python -m bench.compare OLD` (`make bench-compare OLD=ref`): compares the work tree with the commit OLD.

The benchmark runs alternately with the code of OLD and with the code of the work tree. Therefore, other load
on the machine affects the values of OLD and of the work tree in the same way.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bench.page import read
from bench.results import Figure, number

_ROOT = Path(__file__).parents[1]
_DEFAULT = ["ingestion", "finalization", "whole"]
_NOTICEABLE = 1.1
_Pairs = dict[str, tuple[Figure, Figure]]


def run(
    old: Annotated[str, typer.Argument(help="A commit, tag or branch.")],
    only: Annotated[list[str] | None, typer.Option(help="A section; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of turns.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Run the benchmark with the code of OLD and of the work tree, and compare the measured values.

    Exit with 1 if a value of the work tree is worse by a factor of more than 1.1.
    """
    arguments = ["--rounds", "1", "--no-peers", *(["--quick"] if quick else [])]
    arguments += [word for name in only or _DEFAULT for word in ("--only", name)]
    found: list[_Pairs] = []
    with _checkout(old) as folder, tempfile.TemporaryDirectory(prefix="batchwright-bench-") as name:
        for number_ in range(1, rounds + 1):
            print(f"turn {number_}: {old}, then these files", flush=True)
            before = _measure(folder, Path(name) / "old.json", arguments)
            after = _measure(_ROOT, Path(name) / "new.json", arguments)
            found.append({key: (before[key], after[key]) for key in before if key in after})
    pairs = merged(found)
    print(compared(pairs))
    if any(is_worse(*pair) for pair in pairs.values()):
        raise typer.Exit(1)


@contextmanager
def _checkout(ref: str) -> Generator[Path]:
    """Context manager that checks out the commit `ref` in a temporary directory, and yields its path.

    The folder `bench` is copied from the work tree, so that the code of the commit is measured in the same
    way as the code of the work tree. The directory is deleted at the end.

    Raises:
        SystemExit: there is no such commit.
    """
    with tempfile.TemporaryDirectory(prefix="batchwright-old-") as name:
        folder = Path(name) / "checkout"
        made = subprocess.run(["git", "worktree", "add", "--detach", folder, ref], cwd=_ROOT)
        if made.returncode:
            raise SystemExit(f"there is no commit {ref!r} here; see `git log --oneline`")
        try:
            shutil.rmtree(folder / "bench", ignore_errors=True)
            shutil.copytree(_ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("results"))
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=_ROOT, check=True)


def _measure(folder: Path, out: Path, arguments: list[str]) -> dict[str, Figure]:
    """Run the benchmark on the code in `folder`. Return the measured values (figures) by key.

    A key is the identifier of a figure, such as `send.of_bare`.

    Args:
        out: file to which the benchmark writes the figures.
        arguments: further arguments of the benchmark's command line.
    """
    command = [sys.executable, "-m", "bench", *arguments, "--json", str(out)]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {figure.key: figure for figure in read(out).figures}


def merged(turns: list[_Pairs]) -> _Pairs:
    """Combine the measured values (figures) of several runs of the benchmark.

    Return the old and the new figure for each key (identifier of a figure). A returned figure contains the
    values of all runs. If a key is missing in a run, the key is left out.

    Args:
        turns: one dict for each run, with the old and the new figure for each key.
    """
    keys = [key for key in turns[0] if all(key in turn for turn in turns)]
    return {
        key: (_joined([turn[key][0] for turn in turns]), _joined([turn[key][1] for turn in turns]))
        for key in keys
    }


def _joined(figures: list[Figure]) -> Figure:
    first = figures[0]
    rounds = [value for figure in figures for value in figure.rounds]
    return Figure(first.key, first.what, rounds, first.unit, first.target)


def change(before: Figure, after: Figure) -> float:
    """Return the value of `after` divided by the value of `before`; 1.0 if the value of `before` is 0."""
    return after.value / before.value if before.value else 1.0


def is_worse(before: Figure, after: Figure) -> bool:
    """Return True if the value of `after` is worse than the value of `before` by a factor of more than 1.1.

    The target of `after` defines if a higher or a lower value is worse. Without a target, the result is
    False.
    """
    if after.target is None:
        return False
    factor = change(before, after)
    return factor < 1 / _NOTICEABLE if after.target.kind == "at least" else factor > _NOTICEABLE


def compared(pairs: _Pairs) -> str:
    lines = [f"{'':62} {'old':>10} {'new':>10} {'new/old':>8}"]
    for before, after in pairs.values():
        mark = "  worse" if is_worse(before, after) else ""
        name = f"{before.key}: {before.what}"[:62]
        factor = number(change(before, after))
        lines.append(f"{name:62} {number(before.value):>10} {number(after.value):>10} {factor:>8}{mark}")
    return "\n".join(lines)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.compare")


if __name__ == "__main__":
    main()
