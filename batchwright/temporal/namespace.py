"""What the namespace has of what batches need."""

from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest, DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.search import SEARCH_ATTRIBUTES
from batchwright.settings import Settings
from batchwright.temporal.errors import TemporalNotSetUp, is_unknown_namespace, not_connected, refused

RPC_TIMEOUT = timedelta(seconds=10)
_NOT_FOR_US = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
Attributes = dict[str, IndexedValueType.ValueType]
WANTED: Attributes = {
    key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in SEARCH_ATTRIBUTES
}


class Namespace:
    """All methods raise TemporalUnavailable where they do not say what else."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings

    async def retention(self) -> timedelta | None:
        """Of ended workflows; None where there is no such namespace. Raises RPCError."""
        request = DescribeNamespaceRequest(namespace=self._client.namespace)
        try:
            found = await self._client.workflow_service.describe_namespace(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if is_unknown_namespace(error):
                return None
            raise
        return found.config.workflow_execution_retention_ttl.ToTimedelta()

    async def check(self) -> None:
        """Raises TemporalNotSetUp where batches cannot run in it."""
        try:
            missing, other = await self._compared()
        except RPCError as error:
            raise refused(self._settings, error) from error
        except RuntimeError as error:  # what a lazy client raises when it cannot connect
            raise not_connected(self._settings, error) from error
        if missing:
            raise TemporalNotSetUp(
                f"Temporal's namespace {self._client.namespace!r} lacks the search attributes "
                f"{', '.join(missing)}: run `batchwright setup temporal`."
            )
        if other:
            raise TemporalNotSetUp(f"{other[0]} in Temporal's namespace {self._client.namespace!r}.")

    async def attributes(self) -> Attributes:
        """The custom search attributes and their types. Raises RPCError."""
        request = ListSearchAttributesRequest(namespace=self._client.namespace)
        listed = await self._client.operator_service.list_search_attributes(request, timeout=RPC_TIMEOUT)
        return dict(listed.custom_attributes)

    async def _compared(self) -> tuple[list[str], list[str]]:
        """The missing ones, and sentences on those of another type."""
        try:
            found = await self.attributes()
        except RPCError as error:
            if error.status not in _NOT_FOR_US:
                raise
            # Whoever may not list attributes may still search by them.
            return [name for name in WANTED if not await self._is_searchable(name)], []
        missing = [name for name in WANTED if name not in found]
        return missing, differing(found)

    async def _is_searchable(self, name: str) -> bool:
        request = CountWorkflowExecutionsRequest(
            namespace=self._client.namespace, query=f"{name} IS NOT NULL"
        )
        try:
            await self._client.workflow_service.count_workflow_executions(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                return False
            raise
        return True


def differing(found: Attributes) -> list[str]:
    """A sentence, without its stop, on each search attribute that is of another type than ours."""
    return [
        f"The search attribute {name} is {type_name(found[name])} and has to be {type_name(kind)}"
        for name, kind in WANTED.items()
        if name in found and found[name] != kind
    ]


def type_name(kind: IndexedValueType.ValueType) -> str:
    """KEYWORD_LIST as Temporal's command lines want it: KeywordList."""
    name = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_")
    return "".join(word.capitalize() for word in name.split("_"))
