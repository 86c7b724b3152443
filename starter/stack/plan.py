"""Which parts a stack has, with their command lines and environments."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex

from batchwright.settings import Settings
from starter.stack import temporal
from starter.stack.directory import StackDirectory
from starter.stack.health import answers
from starter.stack.part import Part
from starter.stack.ports import LOOPBACK, claim, free_port

_OF_COMMANDS = (
    "BATCHWRIGHT_DATABASE_URL",
    "BATCHWRIGHT_TEMPORAL_ADDRESS",
    "BATCHWRIGHT_TEMPORAL_NAMESPACE",
    "BATCHWRIGHT_TEMPORAL_UI_URL",
    "BATCHWRIGHT_STORAGE_DIR",
    "BATCHWRIGHT_BACKENDS",
    "BATCHWRIGHT_REGISTRY",
    "BATCHWRIGHT_CALLBACK_URL",  # without these two a registry with backends that call back is refused
    "BATCHWRIGHT_CALLBACK_SECRET",
)
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b")


@dataclass(frozen=True)
class DevOptions:
    """Ports: 0 means a free one. Neither `backends` nor `registry`: the simulator, with its arguments."""

    data: Path
    settings: Settings
    port: int = 0
    temporal_port: int = 0
    ui_port: int = 0
    workers: int = 1
    backends: tuple[str, ...] = ()
    registry: Path | None = None
    simulator_arguments: tuple[str, ...] = ()
    auth: str = ""  # of the API; empty: as the settings say


@dataclass(frozen=True)
class Addresses:
    """Chosen once: a part that is started again keeps its port."""

    api_port: int
    temporal_port: int
    ui_port: int
    backends: tuple[str, ...]
    simulator_port: int | None
    metrics_ports: tuple[int, ...] = field(default=())
    registry: Path | None = None  # in place of backends

    @property
    def api(self) -> str:
        return f"http://{LOOPBACK}:{self.api_port}"

    @property
    def temporal(self) -> str:
        return f"{LOOPBACK}:{self.temporal_port}"

    @property
    def ui(self) -> str:
        return f"http://{LOOPBACK}:{self.ui_port}"

    @property
    def metrics(self) -> list[str]:
        """Of the API, and of every worker."""
        ports = (self.api_port, *self.metrics_ports)
        return [f"http://{LOOPBACK}:{port}/metrics" for port in ports]

    @property
    def simulator(self) -> str | None:
        return f"http://{LOOPBACK}:{self.simulator_port}" if self.simulator_port else None


def choose_addresses(options: DevOptions) -> Addresses:
    """Raises StackError where a wanted port is taken."""
    wanted = {"--port": options.port, "--temporal-port": options.temporal_port, "--ui-port": options.ui_port}
    api_port, temporal_port, ui_port = claim(wanted)
    simulator_port = None if options.backends or options.registry else free_port()
    return Addresses(
        api_port=api_port,
        temporal_port=temporal_port,
        ui_port=ui_port,
        backends=(f"http://{LOOPBACK}:{simulator_port}",) if simulator_port else options.backends,
        simulator_port=simulator_port,
        registry=options.registry,
        metrics_ports=tuple(free_port() for _ in range(options.workers)),
    )


def environment(
    addresses: Addresses, directory: StackDirectory, database_url: str, auth: str = ""
) -> dict[str, str]:
    """What the API and the workers are told; the user's own BATCHWRIGHT_* stay where these do not decide."""
    ours = {f"BATCHWRIGHT_{name.upper()}" for name in (*temporal.OF_A_CLUSTER, "backends", "registry")}
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "PYTHONUNBUFFERED": "1",
        "BATCHWRIGHT_DATABASE_URL": database_url,
        "BATCHWRIGHT_TEMPORAL_ADDRESS": addresses.temporal,
        "BATCHWRIGHT_TEMPORAL_NAMESPACE": temporal.NAMESPACE,
        "BATCHWRIGHT_TEMPORAL_TLS_SERVER_NAME": "",
        "BATCHWRIGHT_TEMPORAL_UI_URL": addresses.ui,
        "BATCHWRIGHT_STORAGE_DIR": str(directory.objects),
        **_inference(addresses),
        "BATCHWRIGHT_CALLBACK_URL": os.environ.get("BATCHWRIGHT_CALLBACK_URL") or addresses.api,
        "BATCHWRIGHT_CALLBACK_SECRET": os.environ.get("BATCHWRIGHT_CALLBACK_SECRET") or token_hex(32),
        "BATCHWRIGHT_API_HOST": LOOPBACK,
        "BATCHWRIGHT_API_PORT": str(addresses.api_port),
        "BATCHWRIGHT_METRICS_HOST": LOOPBACK,
        **({"BATCHWRIGHT_AUTH": auth} if auth else {}),
    }


def exports(addresses: Addresses, told: Mapping[str, str]) -> str:
    """For a shell: what commands want that ask the API, PostgreSQL, Temporal, the storage or the backends."""
    settings = {"BATCHWRIGHT_URL": addresses.api} | {
        name: told[name] for name in _OF_COMMANDS if name in told
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())


def temporal_part(addresses: Addresses, directory: StackDirectory) -> Part:
    database = directory.temporal
    command = temporal.dev_server_command(
        database.name, port=addresses.temporal_port, ui_port=addresses.ui_port
    )
    is_ready = partial(temporal.is_ready, addresses.temporal_port)
    return Part("temporal", command, os.environ, is_ready, runs_in=database.parent)


def simulator_part(port: int, arguments: tuple[str, ...]) -> Part:
    command = _python("simulator", "--port", str(port), "--models", ",".join(MODELS), *arguments)
    return Part("simulator", command, os.environ, _healthy(port, "/healthz"))


def api_part(addresses: Addresses, told: dict[str, str]) -> Part:
    return Part("api", _python("api"), told, _healthy(addresses.api_port, "/readyz"))


def worker_parts(addresses: Addresses, told: dict[str, str]) -> list[Part]:
    ports = addresses.metrics_ports
    names = ["worker"] if len(ports) == 1 else [f"worker-{number}" for number in range(1, len(ports) + 1)]
    return [
        Part(
            name,
            _python("worker"),
            {**told, "BATCHWRIGHT_METRICS_PORT": str(port)},
            _healthy(port, "/readyz"),
        )
        for name, port in zip(names, ports, strict=True)
    ]


def _inference(addresses: Addresses) -> dict[str, str]:
    if addresses.registry is not None:
        return {"BATCHWRIGHT_REGISTRY": str(addresses.registry.absolute())}
    return {"BATCHWRIGHT_BACKENDS": json.dumps(addresses.backends)}


def _python(module: str, *arguments: str) -> list[str]:
    # -P: a directory `worker` where the user happens to be is not ours.
    return [sys.executable, "-P", "-m", module, *arguments]


def _healthy(port: int, path: str) -> Callable[[], Coroutine[None, None, bool]]:
    return partial(answers, f"http://{LOOPBACK}:{port}{path}")
