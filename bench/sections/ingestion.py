"""Section of the benchmark: ingestion (reading the input) of three input files.

The files have 50,000 long lines (the largest file that is allowed by default), 50,000 short lines, and a
million short lines.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.activities.harness import in_a_process
from bench.activities.ingestion import Ingested
from bench.inputs import MODELS
from bench.results import Figure, Target
from bench.section import Section, SectionOptions

_SECONDS, _LONG_SECONDS = 50.0, 90.0
_MIB = 1024 * 1024


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(50_000, 2_000)
    large = _rounds(options, "large", count, 4_190, _SECONDS)
    short = _rounds(options, "short", count, 220, _LONG_SECONDS)
    long = _rounds(options, "long", count * 20, 220, _LONG_SECONDS)
    a_line = [one.seconds / one.lines for one in short]
    return [
        Figure("ingestion.of_reading", "times reading and parsing",
               [one.seconds / one.yardstick_seconds for one in large], target=Target(6.0, "at most", 3.0)),
        Figure("ingestion.grown_mib", "memory above an idle worker", [one.grown_mib for one in large], "MiB",
               Target(64.0)),
        Figure("ingestion.bytes_a_line", "memory a line, twenty times the lines",
               [one.grown_mib * _MIB / one.lines for one in long], "B", Target(100.0)),
        Figure("ingestion.linear", "time a line, twenty times the lines, of the time before",
               [one.seconds / one.lines / min(a_line) for one in long], target=Target(1.25)),
        Figure("ingestion.seconds", "seconds of it", [one.seconds for one in large], "s"),
        Figure("ingestion.cpu_us", "CPU a line of 4 KB", [one.cpu_us for one in large], "us"),
        Figure("ingestion.long_seconds", "seconds, twenty times the lines", [one.seconds for one in long],
               "s"),
    ]  # fmt: skip


def _rounds(
    options: SectionOptions, name: str, count: int, line_bytes: int, seconds: float
) -> list[Ingested]:
    """Ingest (read) an input file once in each round. Return the times and memory of each round.

    Each round runs in a new process, so that its peak memory is not affected by earlier rounds.
    """
    found: list[Ingested] = []
    folder = options.folder / name
    folder.mkdir()
    write_input(folder, count, line_bytes)
    for number in options.turns(seconds):
        one = in_a_process("bench.activities.ingestion", Ingested, folder, "prefix")
        options.report(f"round {number}: {one.lines:,} lines of {line_bytes} B in {one.seconds:.2f} s")
        found.append(one)
    shutil.rmtree(folder)
    return found


def lines(count: int, line_bytes: int) -> Iterator[bytes]:
    """Yield `count` chat requests for three models with up to 200 system prompts, in random order."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(1_000)]
    longest = max(line_bytes - 200, 20) // 4
    systems = [" ".join(rng.choices(words, k=150))[:longest] for _ in range(200)]
    text = " ".join(rng.choices(words, k=40_000))
    for number in range(count):
        yield _line(number, rng.choice(MODELS), rng.choice(systems), text, line_bytes)


def _line(number: int, model: str, system: str, text: str, line_bytes: int) -> bytes:
    start = number * 37 % 100_000
    head = (
        f'{{"custom_id":"request-{number}","method":"POST","url":"/v1/chat/completions","body":{{"model":"{model}",'
        f'"max_tokens":256,"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"'
    )
    tail = '"}]}}\n'
    rest = max(line_bytes - len(head) - len(tail), 8)
    return (head + text[start : start + rest] + tail).encode()


def write_input(folder: Path, count: int, line_bytes: int) -> None:
    with (folder / "input").open("wb") as file:
        file.writelines(lines(count, line_bytes))


SECTION = Section(
    "ingestion",
    "Ingestion",
    "50,000 lines of 4 KB (200 MB) in one process, beside reading that file and parsing each line once with "
    "the faster of orjson and msgspec; then lines of 220 bytes, 50,000 and a million of them.",
    2.8,
    measure,
)
