"""Checks the Temporal namespace: how long it keeps ended workflows, and its search attributes."""

from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest, DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.search_attributes import SEARCH_ATTRIBUTES
from batchwright.settings import Settings
from batchwright.temporal.errors import (
    TemporalNotSetUp,
    from_connect_error,
    from_rpc_error,
    is_unknown_namespace,
)

RPC_TIMEOUT = timedelta(seconds=10)
_NOT_ALLOWED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
SearchAttributeTypes = dict[str, IndexedValueType.ValueType]
REQUIRED_ATTRIBUTES: SearchAttributeTypes = {
    key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in SEARCH_ATTRIBUTES
}


class Namespace:
    """A reader and checker of the configuration of a client's Temporal namespace. It changes nothing."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings

    async def retention(self) -> timedelta | None:
        """Return how long the namespace keeps ended workflows; None if the namespace does not exist.

        Raises RPCError if the call to Temporal fails.
        """
        request = DescribeNamespaceRequest(namespace=self._client.namespace)
        try:
            found = await self._client.workflow_service.describe_namespace(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if is_unknown_namespace(error):
                return None
            raise
        return found.config.workflow_execution_retention_ttl.ToTimedelta()

    async def check(self) -> None:
        """Check that batches can run in the namespace.

        Raises:
            TemporalNotSetUp: the namespace or a search attribute is missing, or a search attribute has the
                wrong type.
            TemporalUnavailable: Temporal does not answer or refuses the call.
        """
        try:
            missing, conflicts = await self._compare()
        except RPCError as error:
            raise from_rpc_error(self._settings, error) from error
        except RuntimeError as error:  # what a lazy client raises when it cannot connect
            raise from_connect_error(self._settings, error) from error
        if missing:
            raise TemporalNotSetUp(
                f"Temporal's namespace {self._client.namespace!r} lacks the search attributes "
                f"{', '.join(missing)}: run `batchwright setup temporal`."
            )
        if conflicts:
            raise TemporalNotSetUp(f"{conflicts[0]} in Temporal's namespace {self._client.namespace!r}.")

    async def attributes(self) -> SearchAttributeTypes:
        """Return the types of the custom search attributes, by name. Raises RPCError if the call fails."""
        request = ListSearchAttributesRequest(namespace=self._client.namespace)
        listed = await self._client.operator_service.list_search_attributes(request, timeout=RPC_TIMEOUT)
        return dict(listed.custom_attributes)

    async def _compare(self) -> tuple[list[str], list[str]]:
        """Compare the search attributes of the namespace with the search attributes that batches need.

        Return the names of missing attributes, and one sentence for each attribute with a wrong type. If the
        credentials do not allow listing the attributes, the types are not checked.
        """
        try:
            found = await self.attributes()
        except RPCError as error:
            if error.status not in _NOT_ALLOWED:
                raise
            # These credentials may not list search attributes, but they may search by them.
            return [name for name in REQUIRED_ATTRIBUTES if not await self._is_searchable(name)], []
        missing = [name for name in REQUIRED_ATTRIBUTES if name not in found]
        return missing, type_conflicts(found)

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


def type_conflicts(found: SearchAttributeTypes) -> list[str]:
    """Return one sentence, without a full stop, for each search attribute that has a wrong type.

    `found` has the types of the namespace's search attributes by their names.
    """
    return [
        f"The search attribute {name} is {type_name(found[name])} and must be {type_name(kind)}"
        for name, kind in REQUIRED_ATTRIBUTES.items()
        if name in found and found[name] != kind
    ]


def type_name(kind: IndexedValueType.ValueType) -> str:
    """Return a type's name in the form of Temporal's command line, such as KeywordList for KEYWORD_LIST."""
    name = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_")
    return "".join(word.capitalize() for word in name.split("_"))
