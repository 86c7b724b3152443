"""The batch of `demo`: 1,000 requests over three models, a few of them bad on purpose."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from batchwright.contracts.openai import BatchStatus
from starter.client import Client
from starter.stack.plan import MODELS
from starter.views import Batch

ENDPOINT = "/v1/chat/completions"
REQUESTS = 1_000
UNSERVED_MODEL = "nobody-serves-this"
_REFUSED_BY_SIMULATOR = "sim:400"
_WINDOW = "24h"
_TOPICS = ("a tide", "an eclipse", "a rainbow", "an echo", "a mirage", "frost", "thunder", "a glacier")


@dataclass(frozen=True)
class Line:
    text: str
    is_bad: bool


class DemoResult(BaseModel):
    """What `demo --json` prints."""

    batch: Batch
    as_expected: bool
    seconds: float
    ui: str
    data: Path
    input_file: Path
    output_file: Path
    error_file: Path


def lines() -> Iterator[Line]:
    """Every hundredth is refused by the backend, every two hundredth names a model that nobody serves."""
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
        yield Line(json.dumps(request), refused or unserved)


def submit(client: Client, folder: Path) -> tuple[Batch, Path]:
    """The batch, and the file it was made from."""
    file = folder / "input.jsonl"
    file.write_text("".join(line.text + "\n" for line in lines()))
    with file.open("rb") as content:
        uploaded = client.upload(content, file.name)
    batch = client.create(file_id=uploaded.id, endpoint=ENDPOINT, window=_WINDOW, metadata={"from": "demo"})
    return batch, file


def fetch(client: Client, file_id: str | None, target: Path) -> Path:
    """The file's content in `target`; an empty one where there is no file."""
    with target.open("wb") as out:
        if file_id is not None:
            with client.content(file_id) as pieces:
                for piece in pieces:
                    out.write(piece)
    return target


def is_as_expected(batch: Batch, output: Path, errors: Path) -> bool:
    """Completed, the bad lines and only those in the error file, every line in one of the files."""
    bad = sum(line.is_bad for line in lines())
    counts = batch.request_counts
    return (
        batch.status is BatchStatus.COMPLETED
        and (counts.total, counts.completed, counts.failed) == (REQUESTS, REQUESTS - bad, bad)
        and (_length(output), _length(errors)) == (REQUESTS - bad, bad)
    )


def first_line(file: Path) -> str:
    with file.open() as content:
        return content.readline().rstrip("\n")


def _length(file: Path) -> int:
    with file.open("rb") as content:
        return sum(1 for _ in content)
