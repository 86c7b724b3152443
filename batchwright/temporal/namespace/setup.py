"""Prepares a Temporal namespace for batches. The steps can be repeated safely."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.settings import Settings
from batchwright.temporal.errors import (
    TemporalNotSetUp,
    TemporalUnavailable,
    from_rpc_error,
    is_unknown_namespace,
)
from batchwright.temporal.namespace.maintenance_schedules import SCHEDULES, PlannedSchedule, ensure_schedule
from batchwright.temporal.namespace.namespace_checks import (
    REQUIRED_ATTRIBUTES,
    RPC_TIMEOUT,
    Namespace,
    SearchAttributeTypes,
    type_conflicts,
    type_name,
)

_DEFAULT_RETENTION_DAYS = 14
_NOT_ALLOWED = (
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)
# The servers of a cluster refresh their namespaces and search attributes about every 10 s.
_VISIBLE_SECONDS = 60.0
_NAMESPACE, _RETENTION, _ATTRIBUTES = "namespace", "retention", "search attributes"
_CLOUD = {
    _NAMESPACE: "`tcld namespace create`",
    _RETENTION: "`tcld namespace retention set`",
    _ATTRIBUTES: "`tcld namespace search-attributes add`",
}


class SetupOutcome(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    THERE = "was there"


@dataclass(frozen=True)
class SetupStep:
    kind: str
    name: str
    outcome: SetupOutcome
    detail: str = ""


class _NotVisible(TemporalUnavailable):
    """Raised while a server of the Temporal cluster does not know a new namespace or search attribute yet."""

    def __init__(self) -> None:
        super().__init__("Temporal does not show the new namespace or attributes yet: retry in a minute.")


async def set_up(client: Client, settings: Settings) -> AsyncGenerator[SetupStep]:
    """Prepare the namespace of the client for batches. Yield each step when it is complete.

    Raises:
        TemporalNotSetUp: the credentials do not allow a change of the namespace, or a search attribute has
            the wrong type. The message names the remedy.
        TemporalUnavailable: Temporal does not answer or refuses a call.
    """
    setup = _Setup(client, settings)
    try:
        yield await setup.namespace()
        async for step in setup.search_attributes():
            yield step
        for planned in SCHEDULES:
            yield await setup.schedule(planned)
    except RPCError as error:
        raise from_rpc_error(settings, error) from error


class _Setup:
    """The steps of `set_up`, one method for each. A step raises RPCError if a call to Temporal fails."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._namespace = Namespace(client, settings)

    async def namespace(self) -> SetupStep:
        found = await self._namespace.retention()
        wanted = self._settings.temporal_retention_days
        if found is None:
            return await self._register(timedelta(days=wanted or _DEFAULT_RETENTION_DAYS))
        if wanted is None or found == timedelta(days=wanted):
            return self._step(SetupOutcome.THERE, _retention_detail(found))
        return await self._set_retention(timedelta(days=wanted), found)

    async def search_attributes(self) -> AsyncGenerator[SetupStep]:
        found = await self._visible_attributes(frozenset[str]())
        for sentence in type_conflicts(found):
            raise TemporalNotSetUp(f"{sentence}: remove it, or use another namespace.")
        missing = {name: kind for name, kind in REQUIRED_ATTRIBUTES.items() if name not in found}
        if missing:
            await self._add_attributes(missing)
        for name, kind in REQUIRED_ATTRIBUTES.items():
            outcome = SetupOutcome.CREATED if name in missing else SetupOutcome.THERE
            yield SetupStep("search attribute", name, outcome, type_name(kind))

    async def schedule(self, planned: PlannedSchedule) -> SetupStep:
        made = await ensure_schedule(self._client, planned)
        return SetupStep("schedule", planned.id, SetupOutcome.CREATED if made else SetupOutcome.THERE)

    async def _register(self, retention: timedelta) -> SetupStep:
        request = RegisterNamespaceRequest(namespace=self._client.namespace, description="Batchwright")
        request.workflow_execution_retention_period.FromTimedelta(retention)
        try:
            await self._client.workflow_service.register_namespace(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.ALREADY_EXISTS:
                return self._step(SetupOutcome.THERE)
            if error.status in _NOT_ALLOWED:
                raise TemporalNotSetUp(self._not_allowed_message(_NAMESPACE)) from error
            raise
        return self._step(SetupOutcome.CREATED, _retention_detail(retention))

    async def _set_retention(self, wanted: timedelta, found: timedelta) -> SetupStep:
        ttl = Duration()
        ttl.FromTimedelta(wanted)
        config = NamespaceConfig(workflow_execution_retention_ttl=ttl)
        request = UpdateNamespaceRequest(namespace=self._client.namespace, config=config)
        try:
            await self._client.workflow_service.update_namespace(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status in _NOT_ALLOWED:
                raise TemporalNotSetUp(self._not_allowed_message(_RETENTION)) from error
            raise
        return self._step(SetupOutcome.CHANGED, f"{_retention_detail(wanted)}, before {found.days}")

    async def _add_attributes(self, missing: SearchAttributeTypes) -> None:
        request = AddSearchAttributesRequest(namespace=self._client.namespace)
        for name, kind in missing.items():
            request.search_attributes[name] = kind
        try:
            await self._client.operator_service.add_search_attributes(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status in _NOT_ALLOWED:
                raise TemporalNotSetUp(self._not_allowed_message(_ATTRIBUTES)) from error
            if error.status is not RPCStatusCode.ALREADY_EXISTS:
                raise
        await self._visible_attributes(frozenset(missing))

    async def _visible_attributes(self, at_least: frozenset[str]) -> SearchAttributeTypes:
        tries = AsyncRetrying(
            retry=retry_if_exception_type(_NotVisible),
            stop=stop_after_delay(_VISIBLE_SECONDS),
            wait=wait_fixed(0.2),
            reraise=True,
        )
        return await tries(self._list_attributes, at_least)

    async def _list_attributes(self, at_least: frozenset[str]) -> SearchAttributeTypes:
        try:
            found = await self._namespace.attributes()
        except RPCError as error:
            if is_unknown_namespace(error):
                raise _NotVisible from error
            if error.status in _NOT_ALLOWED:
                raise TemporalNotSetUp(self._not_allowed_message(_ATTRIBUTES)) from error
            raise
        if not at_least <= found.keys():
            raise _NotVisible
        return found

    def _step(self, outcome: SetupOutcome, detail: str = "") -> SetupStep:
        return SetupStep("namespace", self._client.namespace, outcome, detail)

    def _not_allowed_message(self, what: str) -> str:
        name = self._client.namespace
        wanted = ", ".join(
            f"{attribute} ({type_name(kind)})" for attribute, kind in REQUIRED_ATTRIBUTES.items()
        )
        if is_cloud(self._settings.temporal_address):
            return (
                f"Temporal Cloud does not allow changes to the {what} of {name!r} from here. Use its console "
                f"or {_CLOUD[what]}. Required are the namespace and the search attributes {wanted}. "
                "Then run this command again."
            )
        return (
            f"These credentials may not change the {what} of {name!r}: use those of an administrator. "
            f"Required are the namespace and the search attributes {wanted}."
        )


def is_cloud(address: str) -> bool:
    """Return True if the address belongs to Temporal Cloud."""
    host = address.rpartition(":")[0].lower().rstrip(".")
    return host.endswith((".tmprl.cloud", ".temporal.io"))


def _retention_detail(retention: timedelta) -> str:
    return f"ended workflows are kept {retention.days} days"
