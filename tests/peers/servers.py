"""Runs servers of other projects as processes on free ports. Their output is written to log files."""

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

from batchwright.starter.embedded_stack.ports import free_port
from tests.clients import get
from tests.guard import guard_environment

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

    def kill(self) -> None:
        """End the server as a crash does, with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            AssertionError: the server ended, or did not answer within four minutes. The message contains the
                end of its log.
        """
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                get(self.url + self.health).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"{self.url} never answered:\n{self.log.read_text()[-3000:]}")


class Engine(NamedTuple):
    """The URL of an OpenAI-compatible backend, and the name of a model that it serves."""

    url: str
    model: str


@contextmanager
def litellm(models: Mapping[str, Sequence[Engine]], folder: Path) -> Generator[Peer]:
    """Context manager that runs LiteLLM's proxy and yields it. The proxy has some engines for each model.

    The API key is `KEY`.
    """
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
    """Context manager that runs an embeddings server and yields it. The server does not list models."""
    port = free_port()
    program = Path(__file__).with_name("embedder.py")
    command = [str(TOOLS / "embedder/bin/python"), str(program), str(port)]
    with _running(command, port, "/health", folder / "embedder.log") as peer:
        yield peer


@contextmanager
def llamacpp(
    folder: Path, name: str, *arguments: str, port: int | None = None, slots: int = 4
) -> Generator[Peer]:
    """Context manager that runs llama.cpp's server with a tiny random model and yields it.

    Args:
        name: name of the model.
        arguments: further options of `llamacpp.py`.
        port: its port; None for a free one.
        slots: number of requests that the server processes at once. Each has a context of 4,096 tokens.
    """
    port = port or free_port()
    program = Path(__file__).with_name("llamacpp.py")
    command = [str(TOOLS / "llamacpp/bin/python"), str(program), str(port), name, "--slots", str(slots)]
    with _running([*command, *arguments], port, "/health", folder / f"{name}.log") as peer:
        yield peer


@contextmanager
def continuous(folder: Path, name: str, *, slots: int) -> Generator[Peer]:
    """Context manager that runs `transformers serve` with continuous batching and a random model.

    Args:
        name: name of the model.
        slots: number of requests that the server processes at once.
    """
    port = free_port()
    program = Path(__file__).with_name("continuous.py")
    command = [str(TOOLS / "transformers/bin/python"), str(program), str(port), name, "--slots", str(slots)]
    with _running(command, port, "/health", folder / f"{name}.log") as peer:
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
        **guard_environment(),
    }
    with (
        log.open("w") as log_file,
        subprocess.Popen(
            command, stdout=log_file, stderr=log_file, env=environment, cwd=log.parent, start_new_session=True
        ) as process,
    ):
        try:
            yield Peer(f"http://127.0.0.1:{port}", health, log, process)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and all processes that it started. They form a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        os.killpg(process.pid, signal.SIGKILL)
