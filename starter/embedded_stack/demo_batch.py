"""The batch of `batchwright demo`: 1,000 requests for three models. Some requests fail on purpose."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from batchwright.starter.client import Client
from batchwright.starter.embedded_stack.service_commands import MODELS

ENDPOINT = "/v1/chat/completions"
REQUESTS = 1_000
UNSERVED_MODEL = "nobody-serves-this"
_REFUSED_BY_SIMULATOR = "sim:400"
_WINDOW = "24h"
_TOPICS = ("a tide", "an eclipse", "a rainbow", "an echo", "a mirage", "frost", "thunder", "a glacier")


@dataclass(frozen=True)
class DemoLine:
    text: str
    is_bad: bool


class DemoResult(BaseModel):
    """The result of a demo run, as `demo --json` prints it."""

    batch: BatchObject
    as_expected: bool
    seconds: float
    page: str | None
    ui: str
    data: Path
    input_file: Path
    output_file: Path
    error_file: Path


def demo_lines() -> Iterator[DemoLine]:
    """Yield the 1,000 lines of the demo's input file.

    The simulated backend rejects 10 of these lines. Another 5 lines name a model that no backend serves.
    """
    for number in range(REQUESTS):
        refused, unserved = number % 100 == 50, number % 200 == 99
        body = {
            "model": UNSERVED_MODEL if unserved else MODELS[number % len(MODELS)],
            "messages": [
                {"role": "system", "content": "You explain nature to children, in one sentence."},
                {"role": "user", "content": f"What is {_TOPICS[number % len(_TOPICS)]}? (question {number})"},
            ],
        }
        if refused:
            body["user"] = _REFUSED_BY_SIMULATOR
        request = {"custom_id": f"question-{number:04d}", "method": "POST", "url": ENDPOINT, "body": body}
        yield DemoLine(json.dumps(request), refused or unserved)


def submit_demo(client: Client, folder: Path) -> tuple[BatchObject, Path]:
    """Write the demo's input file into `folder`, upload it and create a batch from it.

    Return the batch and the path of the file.
    """
    file = folder / "input.jsonl"
    file.write_text("".join(line.text + "\n" for line in demo_lines()))
    with file.open("rb") as content:
        uploaded = client.upload(content, file.name)
    batch = client.create(file_id=uploaded.id, endpoint=ENDPOINT, window=_WINDOW, metadata={"from": "demo"})
    return batch, file


def download(client: Client, file_id: str | None, target: Path) -> Path:
    """Download a file to `target`, and return `target`. If `file_id` is None, write an empty file."""
    with target.open("wb") as out:
        if file_id is not None:
            with client.content(file_id) as pieces:
                for piece in pieces:
                    out.write(piece)
    return target


def is_as_expected(batch: BatchObject, output: Path, errors: Path) -> bool:
    """Return True if the batch has completed with the expected numbers.

    The function compares the numbers of completed and failed requests, and the numbers of lines in the output
    file and the error file.
    """
    bad = sum(line.is_bad for line in demo_lines())
    counts = batch.request_counts
    return (
        batch.status is BatchStatus.COMPLETED
        and (counts.total, counts.completed, counts.failed) == (REQUESTS, REQUESTS - bad, bad)
        and (_line_count(output), _line_count(errors)) == (REQUESTS - bad, bad)
    )


def first_line(file: Path) -> str:
    with file.open() as content:
        return content.readline().rstrip("\n")


def _line_count(file: Path) -> int:
    with file.open("rb") as content:
        return sum(1 for _ in content)
