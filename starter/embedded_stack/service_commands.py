"""Addresses, commands, environment variables and health checks of the services of an embedded stack."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex

import httpx

from batchwright.settings import Settings
from batchwright.starter.embedded_stack import temporal_server
from batchwright.starter.embedded_stack.directory import StackDirectory
from batchwright.starter.embedded_stack.ports import LOOPBACK, claim_ports, free_port
from batchwright.starter.embedded_stack.service_process import ServiceSpec

_HEALTH_TIMEOUT_SECONDS = 2.0


async def is_reachable(url: str) -> bool:
    """Return True if a GET request to `url` returns a 2xx status."""
    # Proxy settings in the environment do not apply to the loopback address. TLS is off, because a client
    # loads the certificates each time it is created, and these checks run many times a second.
    async with httpx.AsyncClient(trust_env=False, timeout=_HEALTH_TIMEOUT_SECONDS, verify=False) as http:
        try:
            return (await http.get(url)).is_success
        except httpx.HTTPError:
            return False


_EXPORTED = (
    "BATCHWRIGHT_DATABASE_URL",
    "BATCHWRIGHT_TEMPORAL_ADDRESS",
    "BATCHWRIGHT_TEMPORAL_NAMESPACE",
    "BATCHWRIGHT_TEMPORAL_UI_URL",
    "BATCHWRIGHT_STORAGE_DIR",
    "BATCHWRIGHT_BACKENDS",
    "BATCHWRIGHT_REGISTRY",
    "BATCHWRIGHT_CALLBACK_URL",  # a registry with backends that call back needs both
    "BATCHWRIGHT_CALLBACK_SECRET",
)


# Set by `dev.env`, so that `dev` recognizes the simulator of an earlier stack in BATCHWRIGHT_BACKENDS.
SIMULATOR_VARIABLE = "BATCHWRIGHT_DEV_SIMULATOR"

MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b")


@dataclass(frozen=True)
class DevOptions:
    """The options with which the commands `dev` and `demo` start an embedded stack.

    A port of 0 stands for any free port. If neither `backends` nor `registry` is set, the stack has a
    simulated backend. `simulator_arguments` are the command-line arguments of this backend.
    """

    data: Path
    settings: Settings
    port: int = 0
    temporal_port: int = 0
    ui_port: int = 0
    workers: int = 1
    backends: tuple[str, ...] = ()
    registry: Path | None = None
    simulator_arguments: tuple[str, ...] = ()
    auth: str = ""  # authentication of the API; empty keeps the setting


@dataclass(frozen=True)
class Addresses:
    """The addresses of all services of one stack. A service keeps its port when it is restarted."""

    api_port: int
    temporal_port: int
    ui_port: int
    backends: tuple[str, ...]
    simulator_port: int | None
    metrics_ports: tuple[int, ...]
    registry: Path | None = None  # replaces `backends`

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
        """The URLs from which Prometheus can read metrics: first the API, then each worker."""
        ports = (self.api_port, *self.metrics_ports)
        return [f"http://{LOOPBACK}:{port}/metrics" for port in ports]

    @property
    def simulator(self) -> str | None:
        return f"http://{LOOPBACK}:{self.simulator_port}" if self.simulator_port else None


def choose_addresses(options: DevOptions) -> Addresses:
    """Choose the ports of all services of a stack, and return their addresses.

    Raises:
        StackError: a port in the options is already in use.
    """
    wanted = {"--port": options.port, "--temporal-port": options.temporal_port, "--ui-port": options.ui_port}
    api_port, temporal_port, ui_port = claim_ports(wanted)
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
    """Return the environment variables for the API and the workers of a stack.

    The result contains the variables of this process. But the variables for addresses, storage and backends
    have the values of the stack.

    Args:
        database_url: URL of the stack's database.
        auth: value of BATCHWRIGHT_AUTH; empty to keep the value of this process.
    """
    ours = {
        f"BATCHWRIGHT_{name.upper()}" for name in (*temporal_server.CLUSTER_SETTINGS, "backends", "registry")
    }
    inference = {"BATCHWRIGHT_BACKENDS": json.dumps(addresses.backends)}
    if addresses.registry is not None:
        inference = {"BATCHWRIGHT_REGISTRY": str(addresses.registry.absolute())}
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "PYTHONUNBUFFERED": "1",
        "BATCHWRIGHT_DATABASE_URL": database_url,
        "BATCHWRIGHT_TEMPORAL_ADDRESS": addresses.temporal,
        "BATCHWRIGHT_TEMPORAL_NAMESPACE": temporal_server.NAMESPACE,
        "BATCHWRIGHT_TEMPORAL_TLS_SERVER_NAME": "",
        "BATCHWRIGHT_TEMPORAL_UI_URL": addresses.ui,
        "BATCHWRIGHT_STORAGE_DIR": str(directory.objects),
        **inference,
        "BATCHWRIGHT_CALLBACK_URL": _callback_url() or addresses.api,
        "BATCHWRIGHT_CALLBACK_SECRET": os.environ.get("BATCHWRIGHT_CALLBACK_SECRET") or token_hex(32),
        "BATCHWRIGHT_API_HOST": LOOPBACK,
        "BATCHWRIGHT_API_PORT": str(addresses.api_port),
        "BATCHWRIGHT_METRICS_HOST": LOOPBACK,
        **({"BATCHWRIGHT_AUTH": auth} if auth else {}),
    }


def own_backends(settings: Settings) -> tuple[str, ...]:
    """Return the configured backends; empty if the only backend is the simulator of an earlier stack.

    That simulator is configured if the user's shell has loaded `dev.env` of the earlier stack. The simulator
    no longer runs.
    """
    earlier = os.environ.get(SIMULATOR_VARIABLE)
    return () if settings.backends == [earlier] else tuple(settings.backends)


def _callback_url() -> str:
    """Return the value of BATCHWRIGHT_CALLBACK_URL; empty if it is unset or equal to BATCHWRIGHT_URL.

    If both are equal, the shell has loaded them from `dev.env` of an earlier stack. The API of that stack no
    longer runs.
    """
    url = os.environ.get("BATCHWRIGHT_CALLBACK_URL", "")
    return "" if url == os.environ.get("BATCHWRIGHT_URL") else url


def exports(addresses: Addresses, variables: Mapping[str, str]) -> str:
    """Return the text of `dev.env`: shell exports that let other commands find the services of the stack.

    Args:
        variables: environment variables of the API and the workers.
    """
    chosen = {name: variables[name] for name in _EXPORTED if name in variables}
    simulator = {SIMULATOR_VARIABLE: addresses.simulator} if addresses.simulator else {}
    settings = {"BATCHWRIGHT_URL": addresses.api, **chosen, **simulator}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())


def temporal_service(addresses: Addresses, directory: StackDirectory) -> ServiceSpec:
    database = directory.temporal
    command = temporal_server.dev_server_command(
        database.name, port=addresses.temporal_port, ui_port=addresses.ui_port
    )
    is_ready = partial(temporal_server.is_ready, addresses.temporal_port)
    return ServiceSpec("temporal", command, os.environ, is_ready, working_directory=database.parent)


def simulator_service(port: int, arguments: tuple[str, ...]) -> ServiceSpec:
    command = _python("simulator", "--port", str(port), "--models", ",".join(MODELS), *arguments)
    return ServiceSpec("simulator", command, os.environ, _health_check(port, "/healthz"))


def api_service(addresses: Addresses, variables: dict[str, str]) -> ServiceSpec:
    return ServiceSpec("api", _python("api"), variables, _health_check(addresses.api_port, "/readyz"))


def worker_services(addresses: Addresses, variables: dict[str, str]) -> list[ServiceSpec]:
    ports = addresses.metrics_ports
    names = ["worker"] if len(ports) == 1 else [f"worker-{number}" for number in range(1, len(ports) + 1)]
    return [
        ServiceSpec(
            name,
            _python("worker"),
            {**variables, "BATCHWRIGHT_METRICS_PORT": str(port)},
            _health_check(port, "/readyz"),
        )
        for name, port in zip(names, ports, strict=True)
    ]


def _python(module: str, *arguments: str) -> list[str]:
    # -P, so that a directory `batchwright` in the working directory is not imported instead of this package.
    return [sys.executable, "-P", "-m", f"batchwright.{module}", *arguments]


def _health_check(port: int, path: str) -> Callable[[], Coroutine[None, None, bool]]:
    return partial(is_reachable, f"http://{LOOPBACK}:{port}{path}")
