"""A folder for inputs, and the real API with fakes that runs their batches."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.records import BatchRow
from batchwright.starter.client import Client
from batchwright.starter.folder.folder_runner import FolderRunner
from batchwright.starter.folder.input_batches import BatchOptions
from batchwright.starter.folder.input_states import InputFolder
from tests.unit.starter.cli import LINE, Cli, run_now

OPTIONS = BatchOptions(endpoint=Endpoint.CHAT_COMPLETIONS, window="24h", model="llama")
STATES = ("input/ready", "processing", "output", "failed")


class Inbox:
    """A folder with methods that do what its users do, and the batches of the API.

    `said` contains the lines that were printed.
    """

    def __init__(self, cli: Cli, path: Path) -> None:
        self.cli = cli
        self.path = path
        self.said: list[str] = []

    @contextmanager
    def runner(self, options: BatchOptions = OPTIONS) -> Generator[FolderRunner]:
        """Context manager that yields a runner of the folder, as in a newly started process."""
        with InputFolder(self.path) as folder, Client(self.cli.url) as client:
            yield FolderRunner(folder, client, options, self.said.append)

    def drop(self, name: str, content: str | bytes = LINE) -> Path:
        """Drop a complete file into the folder. Return its path."""
        self.path.mkdir(exist_ok=True)
        path = self.path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def submit(self, name: str, **files: str) -> None:
        """Submit an input as a directory: write it in a place that is not read, then rename it."""
        staging = self.path / "input" / "writing" / name
        staging.mkdir(parents=True)
        for file, content in files.items():
            (staging / file.replace("_", ".")).write_text(content)
        (self.path / "input" / "ready").mkdir(exist_ok=True)
        staging.rename(self.path / "input" / "ready" / name)

    @property
    def batches(self) -> list[BatchRow]:
        """The batches of the API, oldest first."""
        rows = self.cli.api.database.rows.batches.values()
        return sorted(rows, key=lambda row: row.order.batch_id)

    def input_of(self, row: BatchRow) -> bytes:
        file = run_now(self.cli.api.database.files.get("default", row.order.input_file_id))
        assert file is not None
        return self.cli.api.storage.objects[file.storage_key]

    def answer(self) -> None:
        """Complete all batches. The response to each line repeats its prompt."""
        for row in self.batches:
            if not row.status.is_terminal:
                lines = [json.loads(line) for line in self.input_of(row).splitlines()]
                self.cli.end(row.order.batch_id, output=b"".join(map(answered, lines)))

    def fail(self, status: BatchStatus, error: bytes | None = None) -> None:
        """End all live batches with a status. Their error file has the content `error`."""
        for row in self.batches:
            if not row.status.is_terminal:
                self.cli.end(row.order.batch_id, status, error=error)

    def states(self) -> dict[str, str]:
        """Return the states of all inputs by name. An input that is in two states has both."""
        found: dict[str, str] = {}
        for state in STATES:
            for path in (self.path / state).glob("*"):
                found[path.name] = " and ".join(filter(None, [found.get(path.name), state]))
        return found

    def read(self, path: str) -> str:
        return (self.path / path).read_text()

    def files(self, path: str) -> set[str]:
        return {each.name for each in (self.path / path).iterdir()}


def prompt_line(custom_id: str, prompt: str) -> str:
    body = {"model": "llama", "messages": [{"role": "user", "content": prompt}]}
    return json.dumps({"custom_id": custom_id, "body": body}) + "\n"


def answered(line: dict[str, dict[str, list[dict[str, str]]]]) -> bytes:
    text = f"answer to {line['body']['messages'][0]['content']}"
    body = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return json.dumps({"custom_id": line["custom_id"], "response": response, "error": None}).encode() + b"\n"
