"""Checks of operator routes with the official Python client: statistics, dead letters, holds,
the audit log.
"""

import json
from decimal import Decimal
from secrets import token_hex
from typing import TypeVar

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError
from openai.types import Batch
from pydantic import BaseModel

from batchwright.api.routes.admin.budget_groups import BudgetGroupObject
from batchwright.contracts.api_objects.audit_log import AuditLogPage, AuditOutcome
from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import (
    BatchCountsObject,
    BatchSlicesObject,
    DeadLetterPage,
    DeadLetterRetryPage,
    DeletedDeadLetter,
    HoldList,
    OperatorBatch,
    OperatorBatchPage,
    StatsObject,
)
from batchwright.contracts.api_objects.quotas import LimitObject, LimitsObject
from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.contracts.terms import ActivityState, Profile, Quota
from tests.conformance.contract import Api, Table
from tests.conformance.requests import created, done, jsonl, sent
from tests.e2e.batches import CHAT, chat_line, chat_lines, ended, lines_of, until
from tests.e2e.stack import MODELS

TABLE = Table()
_Object = TypeVar("_Object", bound=BaseModel)


def exactly(kind: type[_Object], answer: httpx.Response) -> _Object:
    """Check that the response is a 200 whose JSON has exactly the fields of `kind`, and return the object."""
    assert answer.status_code == 200
    found = kind.model_validate_json(answer.content, strict=True)
    assert json.loads(found.model_dump_json()) == answer.json()
    return found


def operators(api: Api) -> AsyncOpenAI:
    return api.client.with_options(base_url=api.url.removesuffix("/v1") + "/admin")


@TABLE.row("Operation", "`/v1/stats` adds up the requests of all workers, by backend and by model")
async def stats(api: Api) -> None:
    lines = [chat_line(f"a-{n}", MODELS[1]) for n in range(5)]

    async def shown() -> tuple[int, int]:
        """Return the number of live workers, and the number of requests of the model that the statistics
        show.
        """
        found = exactly(StatsObject, await api.client.get("/stats", cast_to=httpx.Response))
        assert found.requests.total == found.requests.success + found.requests.errors
        assert {model.name for model in found.models} == set(MODELS)
        assert sum(backend.requests for backend in found.backends) == found.requests.total
        return found.workers, next(model.requests for model in found.models if model.name == MODELS[1])

    _, before = await shown()
    assert (await done(api.client, jsonl(lines))).status == "completed"

    async def counted() -> bool:
        workers, requests = await shown()
        return workers >= 1 and requests >= before + len(lines)

    await until(counted)


@TABLE.row(
    "Operation", "a line without attempts left is a dead letter: it can be listed, retried once, deleted"
)
async def dead_letters(api: Api) -> None:
    good, poison = chat_line("good", MODELS[0]), chat_line("poison", MODELS[0], user="sim:500 poison")
    batch = await done(api.client, jsonl([good, poison]))
    admin = operators(api)
    listing = f"/dlq?batch_id={batch.id}"
    [dead_letter] = exactly(DeadLetterPage, await admin.get(listing, cast_to=httpx.Response)).data
    assert (dead_letter.custom_id, dead_letter.model, dead_letter.error.status_code) == (
        "poison",
        MODELS[0],
        500,
    )
    retry = f"/dlq/{dead_letter.id}/retry"
    first, again = [(await admin.post(retry, cast_to=httpx.Response)).json() for _ in range(2)]
    assert first["id"] == again["id"]
    rest = await admin.post("/dlq/retry-all", cast_to=httpx.Response, body={"batch_id": batch.id})
    assert exactly(DeadLetterRetryPage, rest).data == []
    counts = (await ended(api.client, first["id"])).request_counts
    assert counts is not None
    assert (counts.total, counts.failed) == (1, 1)
    one = f"/dlq/{dead_letter.id}"
    assert exactly(DeletedDeadLetter, await admin.delete(one, cast_to=httpx.Response)).id == dead_letter.id
    with pytest.raises(NotFoundError):
        await admin.delete(one, cast_to=httpx.Response)
    assert exactly(DeadLetterPage, await admin.get(listing, cast_to=httpx.Response)).data == []


@TABLE.row(
    "Operation",
    "batches of all tenants are listed with filters, counted and retrieved; a wrong filter is 400",
)
async def batches_of_all_tenants(api: Api) -> None:
    batch = await done(api.client, jsonl([chat_line("a", MODELS[0])]))
    admin = operators(api)
    found = exactly(OperatorBatch, await admin.get(f"/batches/{batch.id}", cast_to=httpx.Response))
    query = f"/batches?status=completed&model={MODELS[0]}&limit=1&order=asc&tenant={found.tenant}"
    page = exactly(OperatorBatchPage, await admin.get(query, cast_to=httpx.Response))
    assert [each.status for each in page.data] == ["completed"]
    counts = exactly(BatchCountsObject, await admin.get("/batches/counts", cast_to=httpx.Response))
    (own,) = (each for each in counts.tenants if each.tenant == found.tenant)
    assert own.statuses[found.status] >= 1
    for param, value in (("status", "done"), ("forecast", "bad"), ("unknown", "x")):
        with pytest.raises(BadRequestError) as refused:
            await admin.get(f"/batches?{param}={value}", cast_to=httpx.Response)
        assert refused.value.param == param


@TABLE.row(
    "Operation",
    "a tenant's weight, cap and rule for short windows are changed, shown and taken back; bad values are 400",
)
async def shares(api: Api) -> None:
    admin, tenant = operators(api), f"tenant-{token_hex(4)}"

    async def put(**changes: object) -> None:
        await admin.put("/quotas", cast_to=httpx.Response, body={"tenant": tenant, **changes})

    async def shown() -> tuple[float, int | None]:
        limits = exactly(LimitsObject, await admin.get(f"/quotas/{tenant}", cast_to=httpx.Response))
        return limits.weight, limits.max_in_flight

    assert await shown() == (1.0, None)
    await put(weight=2.5, max_in_flight=16)
    bad = [("weight", 0), ("weight", -1.5), ("weight", "2"), ("max_in_flight", 0), ("max_priority", 6)]
    bad += [("over_quota", "queue"), ("window_too_short", "maybe"), ("window_too_short", True)]
    bad += [("backend_requests_per_minute", 0), ("backend_tokens_per_minute", -1)]
    bad += [("backend_requests_per_minute", 1.5), ("backend_tokens_per_minute", 2**53)]
    for param, value in bad:
        with pytest.raises(BadRequestError) as refused:
            await put(**{param: value})
        assert refused.value.param == param
    assert await shown() == (2.5, 16)
    await put(window_too_short="refuse")
    limits = exactly(LimitsObject, await admin.get(f"/quotas/{tenant}", cast_to=httpx.Response))
    assert limits.window_too_short == "refuse"
    await put(backend_requests_per_minute=600, backend_tokens_per_minute=90_000)
    limits = exactly(LimitsObject, await admin.get(f"/quotas/{tenant}", cast_to=httpx.Response))
    assert (limits.backend_requests_per_minute, limits.backend_tokens_per_minute) == (600, 90_000)
    await admin.delete(f"/quotas?tenant={tenant}", cast_to=httpx.Response)
    assert await shown() == (1.0, None)


@TABLE.row(
    "Operation", "a tenant is held and released: nothing of it is sent meanwhile, and its batch says why"
)
async def holds(api: Api) -> None:
    admin, tenant = operators(api), f"tenant-{token_hex(4)}"
    held = exactly(HoldList, await admin.put("/holds", cast_to=httpx.Response, body={"tenant": tenant}))
    assert [each.tenant for each in held.data if each.tenant == tenant] == [tenant]
    async with api.stack.client(tenant) as client:
        client.base_url = api.url
        batches: list[str] = []

        async def says_why() -> bool:
            """Return True if the newest batch shows that the tenant is held.

            If there is no batch or the newest one has completed, create a batch first.
            """
            if not batches or (await client.batches.retrieve(batches[-1])).status == "completed":
                batches.append((await created(client, jsonl([chat_line("a", MODELS[0])]))).id)
            shown = await admin.get(f"/batches/{batches[-1]}", cast_to=httpx.Response)
            waiting = exactly(OperatorBatch, shown).x_batchwright.waiting or []
            return any("holds the tenant" in each.reason for each in waiting)

        await until(says_why)
        await admin.delete(f"/holds?tenant={tenant}", cast_to=httpx.Response)
        assert (await ended(client, batches[-1])).status == "completed"
    for body in ({}, {"tenant": tenant, "model": "m"}, {"model": ""}):
        with pytest.raises(BadRequestError):
            await admin.put("/holds", cast_to=httpx.Response, body=body)


@TABLE.row("Operation", "actions that change or destroy are in the audit log, which is listed and exported")
async def audit_log(api: Api) -> None:
    batch = await done(api.client)
    await api.client.delete(f"/batches/{batch.id}", cast_to=httpx.Response)
    admin, query = operators(api), f"action=batch.delete&target={batch.id}"
    page = exactly(AuditLogPage, await admin.get(f"/audit-log?{query}", cast_to=httpx.Response))
    [entry] = page.data
    assert (entry.outcome, entry.target.tenant, entry.after) == (
        AuditOutcome.OK,
        api.profile.value,
        None,
    )
    assert isinstance(entry.before, dict)
    assert entry.before["status"] == "completed"
    exported = await admin.get(f"/audit-log/export?{query}", cast_to=httpx.Response)
    assert [json.loads(line) for line in exported.text.splitlines()] == [entry.model_dump(mode="json")]
    for param in ("action", "outcome", "created_after", "unknown"):
        with pytest.raises(BadRequestError) as refused:
            await admin.get(f"/audit-log?{param}=never", cast_to=httpx.Response)
        assert refused.value.param == param


@TABLE.row(
    "Operation",
    "a live batch shows its slices, and its priority is changed; files that are not written yet: 409",
)
async def control_of_a_batch(api: Api) -> None:
    admin = operators(api)
    await api.stack.faults(model=MODELS[0], kind="hang", rate=1.0)
    batch = await created(api.client, jsonl([chat_line("a", MODELS[0])]))
    path = f"/batches/{batch.id}"

    async def is_running() -> bool:
        shown = exactly(BatchSlicesObject, await admin.get(path + "/slices", cast_to=httpx.Response))
        return [(each.number, each.state) for each in shown.data] == [(0, ActivityState.RUNNING)]

    await until(is_running)
    changed = await admin.post(path + "/priority", cast_to=httpx.Response, body={"priority": 5})
    assert exactly(OperatorBatch, changed).x_batchwright.priority == 5
    with pytest.raises(BadRequestError) as refused:
        await admin.post(path + "/priority", cast_to=httpx.Response, body={"priority": 6})
    assert refused.value.param == "priority"
    with pytest.raises(ConflictError):
        await admin.post(path + "/abandon", cast_to=httpx.Response)
    await api.client.batches.cancel(batch.id)
    await ended(api.client, batch.id)


@TABLE.row(
    "Operation",
    "tenants and organizations have daily budgets of cost; a bad one is refused; beyond one, lines end as "
    "`policy_rejected`",
)
async def budgets_of_cost(api: Api) -> None:
    admin, model, name = operators(api), MODELS[1], token_hex(4)
    tenant, group = f"tenant-{name}", f"/budget-groups/organization/group-{name}"
    for path, body in (("/quotas", {"tenant": tenant}), (group, {})):
        for value in (-1, "much", "0.0000001"):
            with pytest.raises(BadRequestError) as refused:
                await admin.put(path, cast_to=httpx.Response, body={**body, "cost_per_day": value})
            assert refused.value.param == "cost_per_day"
    await admin.put("/quotas", cast_to=httpx.Response, body={"tenant": tenant, "cost_per_day": "0.30"})
    body = {"cost_per_day": 1, "members": [tenant]}
    created_group = exactly(BudgetGroupObject, await admin.put(group, cast_to=httpx.Response, body=body))
    assert (created_group.cost_per_day, created_group.cost_used) == ("1", "0")
    await admin.patch(f"/models/{model}", body={"prices": {"request": "0.25"}}, cast_to=httpx.Response)
    async with api.stack.client(tenant) as client:
        client.base_url = api.url

        async def limit() -> LimitObject:
            shown = exactly(LimitsObject, await client.get("/x/limits", cast_to=httpx.Response))
            return next(each for each in shown.data if each.quota == Quota.COST_PER_DAY)

        async def is_used_up() -> bool:
            await ended(client, (await created(client, jsonl([chat_line("a", model)]))).id)
            return (await limit()).left == "0"

        await until(is_used_up)  # workers follow within seconds
        used = Decimal((await limit()).used)
        assert (used >= Decimal("0.5"), used % Decimal("0.25")) == (True, 0)
        batch = await ended(client, (await created(client, jsonl([chat_line("a", model)]))).id)
        [line] = await lines_of(client, batch.error_file_id)
        assert line.error is not None
        assert (line.error.code, "0.3 USD a day" in line.error.message) == ("policy_rejected", True)
    shown = exactly(BudgetGroupObject, await admin.get(group, cast_to=httpx.Response))
    assert Decimal(shown.cost_used) >= used
    await admin.delete(f"/model-configs/{model}", cast_to=httpx.Response)
    await admin.delete(group, cast_to=httpx.Response)
    await admin.delete(f"/quotas?tenant={tenant}", cast_to=httpx.Response)


@TABLE.row(
    "Operation",
    "a batch shows its exact cost; at its cap it ends as `expired`, its unsent lines as `budget_exceeded`",
    Profile.RELAXED,
)
async def costs(api: Api) -> None:
    admin, model = operators(api), MODELS[1]
    prices = {"prices": {"request": "0.25"}}
    await admin.patch(f"/models/{model}", body=prices, cast_to=httpx.Response)
    file = await sent(api.client, jsonl(chat_lines([model], each=1_000)))  # more than are in flight at once
    asked = {"input_file_id": file.id, "endpoint": CHAT}
    estimate = await api.client.post("/batches/x/estimate", cast_to=httpx.Response, body=asked)
    assert exactly(EstimateObject, estimate).models[0].lines == 1_000
    body = {**asked, "completion_window": "24h", "x_batchwright": {"max_cost": 1}}
    batch = await ended(api.client, (await api.client.post("/batches", cast_to=Batch, body=body)).id)
    await admin.delete(f"/model-configs/{model}", cast_to=httpx.Response)
    assert batch.status == "expired"
    assert batch.request_counts is not None
    assert 4 <= batch.request_counts.completed < 1_000
    assert batch.errors is not None
    assert [error.code for error in batch.errors.data or []] == ["budget_exceeded"]
    lines = await lines_of(api.client, batch.error_file_id)
    assert {line.error and line.error.code for line in lines} == {"budget_exceeded"}
    shown = await api.client.get(f"/batches/{batch.id}", cast_to=httpx.Response)
    cost = exactly(BatchObject, shown).x_batchwright.cost
    assert cost is not None
    assert (Decimal(cost.amount), cost.final) == (Decimal("0.25") * batch.request_counts.completed, True)


@TABLE.row(
    "Operation",
    "a schedule creates a batch when it is triggered, and lists it; an invalid cron expression is 400",
    Profile.RELAXED,
)
async def schedules(api: Api) -> None:
    file = await sent(api.client)
    body = {"cron": "30 2 1 7 *", "batch": {"input_file_id": file.id, "endpoint": CHAT}}
    with pytest.raises(BadRequestError) as refused:
        await api.client.post("/x/schedules", cast_to=httpx.Response, body={**body, "cron": "daily"})
    assert refused.value.param == "cron"
    made = await api.client.post("/x/schedules", cast_to=httpx.Response, body=body)
    path = f"/x/schedules/{exactly(ScheduleObject, made).id}"
    await api.client.post(f"{path}/trigger", cast_to=httpx.Response)

    async def batch_id() -> str | None:
        shown = exactly(ScheduleObject, await api.client.get(path, cast_to=httpx.Response))
        return shown.runs[0].batch_id if shown.runs else None

    async def has_run() -> bool:
        return await batch_id() is not None

    await until(has_run)
    assert (await ended(api.client, await batch_id() or "")).status == "completed"
    await api.client.delete(path, cast_to=httpx.Response)
    with pytest.raises(NotFoundError):
        await api.client.get(path, cast_to=httpx.Response)
