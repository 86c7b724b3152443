"""Accepts single calls (requests that clients send without a batch), and starts rolling batches for them.

A rolling batch collects calls of one tenant, model and endpoint for half a second. Each call becomes a line
of the batch. A call is accepted when its row is stored and the workflow of its batch is started.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from weakref import WeakValueDictionary

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, call_not_found, model_not_found, no_room
from batchwright.api.read_cache import CoalescingCache
from batchwright.api.schemas.webhooks import WebhookSpec
from batchwright.api.services.batches.creation import BatchCreator
from batchwright.api.services.idempotency import IdempotencyKeys
from batchwright.api.services.quota_checks import QuotaChecks, StorageQuota
from batchwright.api.services.webhooks import Webhooks
from batchwright.contracts.calls import ANSWER_LIFETIME, Call, CallStatus, NewCall, RollingBatch
from batchwright.contracts.temporal_payloads.batch import BatchOrder, Caller
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.rules.ids import call_group, derived_file_id, new_call_id
from batchwright.temporal.errors import TemporalUnavailable

OPEN_SECONDS = 0.5  # how long a rolling batch takes calls
MAX_OPEN_CALLS = 50_000  # limit for a tenant without a quota of lines
# Rolling batches of a tenant that have not ended. They do not count for its quota of live batches, and what
# its requests have in common decides how many there are.
MAX_ROLLING_BATCHES = 1_000
_MAX_TRIES = 20  # to store a call; other processes may open or close the batch between two tries
_REMEMBERED_STARTS = 1_000


class CallWindow(NamedTuple):
    """A time limit for the answer to a call, as text and as a duration. After this time, the call fails."""

    text: str
    length: timedelta


LATER = CallWindow("24h", timedelta(hours=24))  # for calls whose client retrieves the answer later
HELD = CallWindow("15m", timedelta(minutes=15))  # for calls whose client waits on an open connection


class CallRequest(NamedTuple):
    """A validated request for a single call: one request to a model that the client sends without a batch.

    Attributes:
        id_prefix: beginning of the call's id.
        body: body for the backend, as JSON.
        window: time within which the call must be answered.
        notifies: True if webhooks get an event when the call ends. False if the client waits on an open
            connection.
        webhook: endpoint that gets an event when this call ends; None for no endpoint. The endpoint's URL is
            already checked.
        echoed: fields of the request, as a JSON object. Until the call has an answer, the API returns these
            fields.
    """

    id_prefix: str
    endpoint: Endpoint
    model: str
    body: bytes
    window: CallWindow = LATER
    notifies: bool = True
    webhook: WebhookSpec | None = None
    echoed: bytes = b""


class SentKey(NamedTuple):
    """An idempotency key that a client has sent, and a digest of the client's request. The digest shows
    whether a later request with the same key is the same request.
    """

    text: str
    fingerprint: str


@dataclass
class _CallUsage:
    """A tenant's limits for single calls, and the tenant's open calls and stored bytes.

    These numbers were read from the database. `add` adds calls that this process has accepted since then.
    """

    quotas: TenantQuotas
    storage: StorageQuota
    max_open_calls: int
    open_calls: int

    def add(self, size: int) -> None:
        """Add a new call, which has no answer yet and takes `size` bytes of storage, to the usage."""
        self.open_calls += 1
        self.storage = self.storage._replace(used=self.storage.used + size)


class Calls:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._calls = deps, deps.database.calls
        self._creator = BatchCreator(deps)
        self._webhooks = Webhooks(deps)
        self._usages = CoalescingCache(self._read_usage, deps.recent_seconds)
        self._keys_in_use = WeakValueDictionary[tuple[str, str], asyncio.Lock]()  # by tenant and key
        self._starts: dict[str, asyncio.Task[None]] = {}  # by batch id; those that succeeded stay for a while

    async def submit(
        self, request: CallRequest, tenant: str, caller: Caller, key: SentKey | None = None
    ) -> Call:
        """Accept and return a call: a single request that becomes a line of a batch. Workers send this line
        to a backend.

        If an earlier request had the same idempotency key, return the call of that request.

        Raises:
            ApiError: the tenant may not use the model, or no backend serves it (404). Too many calls of the
                tenant are waiting, or the tenant has stored too many bytes (429). The key was used with
                another request (409).
            TemporalUnavailable, DatabaseUnavailable: the call was not accepted.
        """
        if key is None:
            await self._admit(request, tenant)
            return await self._create(new_call_id(request.id_prefix), request, tenant, caller)
        # The second of two requests with one key waits, because only one of them needs room.
        async with self._keys_in_use.setdefault((tenant, key.text), asyncio.Lock()):
            return await self._submit_once(request, tenant, caller, key)

    async def _submit_once(self, request: CallRequest, tenant: str, caller: Caller, key: SentKey) -> Call:
        """Accept a call whose request has an idempotency key. If an earlier request had the same key, return
        the call of that request.

        Raises the same errors as `submit`.
        """
        keys = IdempotencyKeys(self._deps, tenant, "calls")
        # First, because a repeated request needs no room.
        if (accepted := await self._find_accepted(keys, tenant, key)) is not None:
            return accepted
        try:
            await self._admit(request, tenant)
        except ApiError:
            # Another process may have accepted the call meanwhile, so that the call itself takes the room.
            if (accepted := await self._find_accepted(keys, tenant, key)) is not None:
                return accepted
            raise
        id = new_call_id(request.id_prefix)
        id = await keys.claim(key.text, key.fingerprint, id) or id
        if (accepted := await self._call_if_accepted(tenant, id)) is not None:
            return accepted
        return await self._create(id, request, tenant, caller)

    async def _find_accepted(self, keys: IdempotencyKeys, tenant: str, key: SentKey) -> Call | None:
        id = await keys.find(key.text, key.fingerprint)
        return None if id is None else await self._call_if_accepted(tenant, id)

    async def _create(self, id: str, request: CallRequest, tenant: str, caller: Caller) -> Call:
        if request.webhook is not None:
            await self._webhooks.create_for_call(request.webhook, tenant, id)
        return await self._store(id, request, tenant, caller)

    async def get(self, tenant: str, id: str) -> Call:
        """Return a single call (a request that a client has sent without a batch) as it is stored now.

        Raises:
            ApiError: the tenant has no such call (404).
        """
        found = await self._calls.get(tenant, id)
        if found is None:
            raise call_not_found(id)
        return found

    async def cancel(self, tenant: str, id: str) -> Call:
        """Cancel a single call (a request that a client has sent without a batch) that has not ended. Return
        the call.

        Raises:
            ApiError: the tenant has no such call (404).
        """
        await self.get(tenant, id)
        await self._calls.cancel(tenant, id)
        return await self.get(tenant, id)

    async def _admit(self, request: CallRequest, tenant: str) -> None:
        """Check that the limits of the tenant allow this call. Then count the call in this process's copy of
        the tenant's usage.

        Raises:
            ApiError: the tenant may not use the model, or no backend serves it (404). Too many calls of the
                tenant are waiting, or the tenant has stored too many bytes (429).
        """
        served, model = await self._deps.models.served(), self._deps.models.canonical(request.model)
        usage = await self._usages.get(tenant)
        is_served = not served or model in served or self._deps.models.accepts_unlisted(model)
        if not is_served or not usage.quotas.may_use(model):
            raise model_not_found(request.model)
        if usage.open_calls >= usage.max_open_calls:
            message = (
                f"No room: {usage.open_calls} of your calls wait, and at most {usage.max_open_calls} may. "
                "Try again later."
            )
            raise no_room(message)
        size = len(request.body) + len(request.echoed)
        QuotaChecks(self._deps, tenant).check_storage(usage.storage, size)
        usage.add(size)  # nothing is awaited since the check

    async def _read_usage(self, tenant: str) -> _CallUsage:
        checks = QuotaChecks(self._deps, tenant)
        max_open = (await checks.limits()).enqueued_lines or MAX_OPEN_CALLS
        storage = await checks.storage_quota()
        return _CallUsage(await checks.own(), storage, max_open, await self._calls.count_open(tenant))

    async def _call_if_accepted(self, tenant: str, id: str) -> Call | None:
        """Return the call with this id if the call has ended or its batch was started.

        Otherwise, the call is not stored or not accepted yet, and the result is None.
        """
        call = await self._calls.get(tenant, id)
        if call is None or call.status.has_ended:
            return call
        is_started = await self._deps.database.batches.get(tenant, call.batch_id) is not None
        return call if is_started else None

    async def _store(self, id: str, request: CallRequest, tenant: str, caller: Caller) -> Call:
        """Store a call as a line of the open rolling batch (the batch that now collects such calls). Start
        this batch, and return the call.

        If a client repeats an interrupted request, the call may already be a line of an older batch that was
        never started. In this case, move the call to the open batch. Each accepted call belongs to a started
        batch.

        Raises:
            ApiError: the tenant has too many rolling batches (429).
            TemporalUnavailable, DatabaseUnavailable: the call was not accepted.
        """
        call = NewCall(
            tenant=tenant,
            id=id,
            group=call_group(
                request.endpoint,
                request.model,
                request.window.text,
                caller.model_dump_json(),
            ),
            endpoint=request.endpoint,
            model=request.model,
            request=request.body,
            notifies=request.notifies,
            echoed=request.echoed,
        )
        for _ in range(_MAX_TRIES):
            stored = await self._calls.insert(call)
            if stored is None:
                order = await self._order(call.group, request, tenant, caller)
                if not await self._calls.open(call.group, order, MAX_ROLLING_BATCHES):
                    raise no_room(
                        f"No room: your calls are in {MAX_ROLLING_BATCHES} unfinished batches, which is the "
                        "limit. Calls with the same endpoint, model and passed headers share a batch. Try "
                        "again later."
                    )
                continue
            batch_id = stored.batch_id
            if stored.order is not None:
                await self._start(call, stored.created_at, stored.order)
                batch_id = stored.order.batch_id
            if batch_id != stored.batch_id and not await self._calls.move(call, batch_id):
                continue
            return Call(
                tenant=tenant,
                id=id,
                batch_id=batch_id,
                endpoint=request.endpoint,
                model=request.model,
                request=request.body,
                echoed=request.echoed,
                notifies=request.notifies,
                status=CallStatus.QUEUED,
                created_at=stored.created_at,
            )
        raise DatabaseUnavailable("The rolling batch of a call was closed too often while it was stored.")

    async def _order(self, group: str, request: CallRequest, tenant: str, caller: Caller) -> BatchOrder:
        template = BatchTemplate(
            input_file_id="",
            endpoint=request.endpoint,
            completion_window=request.window.text,
            window_seconds=int(request.window.length.total_seconds()),
            output_expires_after_seconds=int(ANSWER_LIFETIME.total_seconds()),
            caller=caller,
        )
        order = await self._creator.build_order(template, tenant)
        rolling = RollingBatch(group=group, open_seconds=OPEN_SECONDS)
        policy = order.policy.model_copy(update={"rolling": rolling})
        input_file_id = derived_file_id(order.batch_id, "input")
        return order.model_copy(update={"input_file_id": input_file_id, "policy": policy})

    async def _start(self, call: NewCall, created_at: datetime, order: BatchOrder) -> None:
        """Start the batch of a call (a single request, which is a line of this batch). Do nothing if this
        process has already started the batch.

        If Temporal is unavailable, one of these cases applies:

        - A batch has already collected the call, or the call has ended: the call is accepted, and no error is
          raised.
        - Another request has stored the same call again: keep the call for that request, and raise the error.
        - In all other cases: delete the call, and raise the error.

        Args:
            call: the stored call.
            created_at: time at which this request has stored the call. If the stored call has another time,
                another request has stored it again.
            order: message that starts the workflow of the batch.

        Raises:
            TemporalUnavailable: the batch was not started, and no batch has collected the call.
        """
        try:
            await asyncio.shield(self._starting(order))
        except TemporalUnavailable:
            is_collected = await self._calls.withdraw(call.tenant, call.id, created_at)
            if not is_collected:
                raise

    def _starting(self, order: BatchOrder) -> asyncio.Task[None]:
        """Return the task that starts a batch. All calls of this batch in this process wait for the same
        task.
        """
        id = order.batch_id
        starting = self._starts.get(id)
        if starting is None:
            starting = self._starts[id] = asyncio.create_task(self._start_batch(order))
            if len(self._starts) > _REMEMBERED_STARTS:
                del self._starts[next(iter(self._starts))]
        return starting

    async def _start_batch(self, order: BatchOrder) -> None:
        try:
            await self._creator.start(order)
        except BaseException:
            self._starts.pop(order.batch_id, None)  # the next call tries again
            raise
