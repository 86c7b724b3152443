"""Samples of the call stacks of a process, taken by py-spy."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

_PY_SPY = Path(__file__).parents[1] / ".venv/.tools/py-spy/bin/py-spy"
_RATE = 100
_SHOWN = 25
_LEFT_OUT = ("<frozen importlib", "yardstick ", "settle (bench")
_WAITING = ("_worker (concurrent/futures/thread", "EpollSelector.select")
Stacks = Counter[tuple[str, ...]]


def record_command(out: Path) -> list[str]:
    """Return the beginning of a command line that writes the call stacks of a process to `out`.

    The caller appends the process, as `--pid ID` or as a command after `--`.

    Raises:
        SystemExit: the profiler is not installed.
    """
    if not _PY_SPY.exists():
        raise SystemExit(f"{_PY_SPY} is missing: `make bench` and `make profile` install it")
    options = ["--rate", str(_RATE), "--format", "raw", "--function", "--output", str(out)]
    return [str(_PY_SPY), "record", *options]


def read_stacks(lines: Iterable[str]) -> Stacks:
    """Return the number of samples for each call stack.

    These samples are left out:

    - imports and idle threads
    - the function `settle` of the benchmark, because it only prepares a measurement
    - functions `yardstick` of the benchmark, because they are measured only for comparison

    Args:
        lines: output of py-spy. Each line is a call stack and its number of samples, as
            `outermost;...;innermost count`.
    """
    found: Stacks = Counter()
    for line in lines:
        text, _, count = line.rpartition(" ")
        stack = tuple(text.split(";"))
        if not any(name in text for name in _LEFT_OUT) and not stack[-1].startswith(_WAITING):
            found[stack] += int(count)
    return found


def report(stacks: Stacks) -> str:
    """Return a table of the functions that take the most time, as percentages of all samples.

    The column `own` counts the samples in the function itself. The column `all` also counts the samples in
    the functions that it calls.
    """
    total = stacks.total() or 1
    own, within = Counter[str](), Counter[str]()
    for stack, count in stacks.items():
        own[stack[-1]] += count
        for name in set(stack):
            within[name] += count
    rows = [
        f"  {own[name] / total:6.1%}  {within[name] / total:6.1%}  {name}"
        for name, _ in own.most_common(_SHOWN)
    ]
    return "\n".join([f"  {'own':>6}  {'all':>6}  function ({total} samples)", *rows])
