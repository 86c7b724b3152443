"""Makes the namespace what batches need; run again, or by several at once, it changes nothing more."""

from collections.abc import AsyncGenerator, Awaitable, Callable
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
from batchwright.temporal.errors import TemporalNotSetUp, TemporalUnavailable, is_unknown_namespace, refused
from batchwright.temporal.namespace import RPC_TIMEOUT, WANTED, Attributes, Namespace, differing, type_name
from batchwright.temporal.schedules import SCHEDULES, Planned, ensure

_DEFAULT_RETENTION_DAYS = 14
_NOT_FOR_US = (
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)
# A cluster's servers look for new namespaces and attributes every 10 s or so.
_VISIBLE_SECONDS = 60.0
_NAMESPACE, _RETENTION, _ATTRIBUTES = "namespace", "retention", "search attributes"
_CLOUD = {
    _NAMESPACE: "`tcld namespace create`",
    _RETENTION: "`tcld namespace retention set`",
    _ATTRIBUTES: "`tcld namespace search-attributes add`",
}


class Outcome(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    THERE = "was there"


@dataclass(frozen=True)
class Step:
    kind: str
    name: str
    outcome: Outcome
    detail: str = ""


class _NotVisible(TemporalUnavailable):
    """What was made is not known to every server yet."""

    def __init__(self) -> None:
        super().__init__("Temporal does not show yet what was made: run this again in a minute.")


async def set_up(client: Client, settings: Settings) -> AsyncGenerator[Step]:
    """Each step once it is done.

    Raises:
        TemporalNotSetUp: it cannot be done from here; the message says where.
        TemporalUnavailable: no answer, or a refusal.
    """
    setup = _Setup(client, settings)
    try:
        yield await setup.namespace()
        async for step in setup.search_attributes():
            yield step
        for planned in SCHEDULES:
            yield await setup.schedule(planned)
    except RPCError as error:
        raise refused(settings, error) from error


class _Setup:
    """All methods raise RPCError."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._namespace = Namespace(client, settings)

    async def namespace(self) -> Step:
        found = await self._namespace.retention()
        wanted = self._settings.temporal_retention_days
        if found is None:
            return await self._register(timedelta(days=wanted or _DEFAULT_RETENTION_DAYS))
        if wanted is None or found == timedelta(days=wanted):
            return self._step(Outcome.THERE, _kept(found))
        return await self._keep(timedelta(days=wanted), found)

    async def search_attributes(self) -> AsyncGenerator[Step]:
        found = await _until_visible(self._listed, frozenset[str]())
        for sentence in differing(found):
            raise TemporalNotSetUp(f"{sentence}: remove it, or use another namespace.")
        missing = {name: kind for name, kind in WANTED.items() if name not in found}
        if missing:
            await self._add(missing)
        for name, kind in WANTED.items():
            outcome = Outcome.CREATED if name in missing else Outcome.THERE
            yield Step("search attribute", name, outcome, type_name(kind))

    async def schedule(self, planned: Planned) -> Step:
        made = await ensure(self._client, planned)
        return Step("schedule", planned.id, Outcome.CREATED if made else Outcome.THERE)

    async def _register(self, retention: timedelta) -> Step:
        request = RegisterNamespaceRequest(namespace=self._client.namespace, description="Batchwright")
        request.workflow_execution_retention_period.FromTimedelta(retention)
        try:
            await self._client.workflow_service.register_namespace(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.ALREADY_EXISTS:
                return self._step(Outcome.THERE)
            if error.status in _NOT_FOR_US:
                raise TemporalNotSetUp(self._elsewhere(_NAMESPACE)) from error
            raise
        return self._step(Outcome.CREATED, _kept(retention))

    async def _keep(self, wanted: timedelta, found: timedelta) -> Step:
        ttl = Duration()
        ttl.FromTimedelta(wanted)
        config = NamespaceConfig(workflow_execution_retention_ttl=ttl)
        request = UpdateNamespaceRequest(namespace=self._client.namespace, config=config)
        try:
            await self._client.workflow_service.update_namespace(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status in _NOT_FOR_US:
                raise TemporalNotSetUp(self._elsewhere(_RETENTION)) from error
            raise
        return self._step(Outcome.CHANGED, f"{_kept(wanted)}, before {found.days}")

    async def _add(self, missing: Attributes) -> None:
        request = AddSearchAttributesRequest(namespace=self._client.namespace)
        for name, kind in missing.items():
            request.search_attributes[name] = kind
        try:
            await self._client.operator_service.add_search_attributes(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status in _NOT_FOR_US:
                raise TemporalNotSetUp(self._elsewhere(_ATTRIBUTES)) from error
            if error.status is not RPCStatusCode.ALREADY_EXISTS:
                raise
        await _until_visible(self._listed, frozenset(missing))

    async def _listed(self, at_least: frozenset[str]) -> Attributes:
        try:
            found = await self._namespace.attributes()
        except RPCError as error:
            if is_unknown_namespace(error):
                raise _NotVisible from error
            if error.status in _NOT_FOR_US:
                raise TemporalNotSetUp(self._elsewhere(_ATTRIBUTES)) from error
            raise
        if not at_least <= found.keys():
            raise _NotVisible
        return found

    def _step(self, outcome: Outcome, detail: str = "") -> Step:
        return Step("namespace", self._client.namespace, outcome, detail)

    def _elsewhere(self, what: str) -> str:
        name = self._client.namespace
        wanted = ", ".join(f"{attribute} ({type_name(kind)})" for attribute, kind in WANTED.items())
        if is_cloud(self._settings.temporal_address):
            return (
                f"Temporal Cloud lets nobody change the {what} of {name!r} from here: use its console, or "
                f"{_CLOUD[what]}. What is needed: the namespace, with the search attributes {wanted}. "
                "Then run this again."
            )
        return (
            f"These credentials may not change the {what} of {name!r}: run this with an administrator's. "
            f"What is needed: the namespace, with the search attributes {wanted}."
        )


def is_cloud(address: str) -> bool:
    """Whether it is Temporal Cloud's, by its domains."""
    host = address.rpartition(":")[0].lower().rstrip(".")
    return host.endswith((".tmprl.cloud", ".temporal.io"))


def _kept(retention: timedelta) -> str:
    return f"ended workflows are kept {retention.days} days"


async def _until_visible(
    listed: Callable[[frozenset[str]], Awaitable[Attributes]], at_least: frozenset[str]
) -> Attributes:
    tries = AsyncRetrying(
        retry=retry_if_exception_type(_NotVisible),
        stop=stop_after_delay(_VISIBLE_SECONDS),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    return await tries(listed, at_least)
