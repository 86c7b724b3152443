"""The peers as processes: each on a free port, with what it says in a file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx

from starter.stack.ports import free_port
from tests.clients import asked
from tests.guard import marks

KEY = "sk-peer-7"
# `make` puts them there: a place of their own beside our environment.
TOOLS = Path(sys.prefix) / ".tools"
_START_SECONDS = 240.0  # they import hundreds of files, for the first time


@dataclass(frozen=True)
class Peer:
    url: str
    health: str  # a path
    log: Path
    process: "subprocess.Popen[bytes]"

    def wait(self) -> None:
        """Until it answers. Raises AssertionError with the end of what it said."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                asked(self.url + self.health).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"{self.url} never answered:\n{self.log.read_text()[-3000:]}")


class Engine(NamedTuple):
    """An OpenAI-compatible backend, and a model there."""

    url: str
    model: str


@contextmanager
def litellm(models: Mapping[str, Sequence[Engine]], folder: Path) -> Generator[Peer]:
    """LiteLLM's proxy: each of its models is asked of the engines in turn. Its key is `KEY`."""
    config = folder / "litellm.yaml"
    listed = [
        f"  - {{model_name: {model}, litellm_params: {{model: openai/{engine.model}, "
        f'api_base: "{engine.url}/v1", api_key: none}}}}'
        for model, engines in models.items()
        for engine in engines
    ]
    config.write_text(
        "\n".join(
            (
                "model_list:",
                *listed,
                f"general_settings: {{master_key: {KEY}}}",
                "litellm_settings: {num_retries: 0}\n",
            )
        )
    )
    port = free_port()
    program = str(TOOLS / "peers/bin/litellm")
    arguments = ["--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    with _running([program, *arguments], port, "/health/liveliness", folder / "litellm.log") as peer:
        yield peer


@contextmanager
def embedder(folder: Path) -> Generator[Peer]:
    """LitServe with a model of static embeddings; it lists no models."""
    port = free_port()
    program = Path(__file__).with_name("embedder.py")
    command = [str(TOOLS / "embedder/bin/python"), str(program), str(port)]
    with _running(command, port, "/health", folder / "embedder.log") as peer:
        yield peer


@contextmanager
def _running(command: list[str], port: int, health: str, log: Path) -> Generator[Peer]:
    home = Path(command[0]).parent
    assert home.exists(), f"{home} is missing: `make test-slow` makes it"
    # LiteLLM would ask the internet otherwise: for prices at its start, for a tokenizer at each failure.
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{home}:/usr/bin:/bin",
        "HOME": str(log.parent),
        **marks(),
    }
    with (
        log.open("w") as said,
        subprocess.Popen(
            command, stdout=said, stderr=said, env=environment, cwd=log.parent, start_new_session=True
        ) as process,
    ):
        try:
            yield Peer(f"http://127.0.0.1:{port}", health, log, process)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With the processes that it started: they are a group of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        os.killpg(process.pid, signal.SIGKILL)
