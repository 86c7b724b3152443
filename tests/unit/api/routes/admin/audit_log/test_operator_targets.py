"""Targets of operators' actions in the audit log: names, tenants, and states before and after the action."""

from pydantic import JsonValue

from batchwright.api.dependencies import now
from batchwright.contracts.api_objects.audit_log import AuditEntryObject
from batchwright.contracts.api_objects.openai import BatchObject
from tests.fakes.api import ApiFixture, read
from tests.unit.api.routes.admin.audit_log.audit_entries import entries, states
from tests.unit.api.routes.admin.test_dead_letters import ended, listed


def target(entry: AuditEntryObject) -> tuple[str | None, str | None]:
    return entry.target.id, entry.target.tenant


async def test_a_dead_letter_is_recorded_with_its_tenant_and_the_batch_that_retries_it(
    api: ApiFixture,
) -> None:
    batch = await ended(api, [0], tenant="red")
    await ended(api, [0], tenant="blue")
    (letter,) = (await listed(api, "?tenant=red")).data
    retried = read(await api.http.post(f"/admin/dlq/{letter.id}/retry"), BatchObject)
    await api.http.post("/admin/dlq/retry-all", json={"tenant": "red"})
    await api.http.post("/admin/dlq/retry-all", json={"batch_id": batch})
    await api.http.delete(f"/admin/dlq/{letter.id}")
    retry, of_tenant, of_batch, deletion = await entries(api)
    state = {"batch_id": batch, "model": "llama", "retried_as": None}
    assert (target(retry), target(deletion)) == ((letter.id, "red"), (letter.id, "red"))
    assert (retry.before, retry.after) == (state, {**state, "retried_as": retried.id})
    assert (deletion.before, deletion.after) == (retry.after, None)
    assert (target(of_tenant), target(of_batch)) == ((None, "red"), (batch, None))
    assert states(of_tenant)[:2] == states(of_batch)[:2] == (None, None)


async def test_a_rate_and_a_hold_have_the_state_of_their_own_object(api: ApiFixture) -> None:
    for body in ({"model": None, "requests_per_second": 9}, {"model": "llama", "requests_per_second": 5}):
        for _ in range(2):
            await api.http.put("/admin/rates", json=body)
    for name in ("tenant", "model"):
        await api.http.put("/admin/holds", json={name: "llama"})
    first, of_all, second, of_model, *holds = await entries(api)
    assert [target(entry) for entry in (of_all, of_model)] == [(None, None), ("llama", None)]
    assert (first.before, second.before) == (None, None)
    for entry, rate in ((of_all, 9.0), (of_model, 5.0)):
        assert entry.before == entry.after == {"requests_per_second": rate}
    assert [target(entry) for entry in holds] == [("tenant/llama", "llama"), ("model/llama", None)]
    assert [(entry.before, entry.after is None) for entry in holds] == [(None, False)] * 2


async def test_budget_groups_of_the_same_name_have_the_states_of_their_own_kinds_and_tenants(
    api: ApiFixture,
) -> None:
    for tenant in ("red", "blue"):
        await api.database.tenants.create(tenant, now())
    groups = ["organization/acme", "user/acme?tenant=red", "user/acme?tenant=blue", "team/acme?tenant=red"]
    for _ in range(2):
        for number, group in enumerate(groups, start=1):
            await api.http.put(f"/admin/budget-groups/{group}", json={"tokens_per_day": number})
    await api.http.put("/admin/budget-groups/country/acme", json={"tokens_per_day": 1})
    *found, unknown = await entries(api)
    assert [target(entry) for entry in found[:4]] == [
        ("organization/acme", None),
        ("user/acme", "red"),
        ("user/acme", "blue"),
        ("team/acme", "red"),
    ]
    for number, (entry, again) in enumerate(zip(found[:4], found[4:], strict=True), start=1):
        state: JsonValue = {"tokens_per_day": number, "cost_per_day": None, "members": []}
        assert (entry.before, entry.after, again.before, again.after) == (None, state, state, state)
    assert (target(unknown), *states(unknown)[:2]) == (("country/acme", None), None, None)


async def test_a_model_is_recorded_with_what_operators_have_changed(api: ApiFixture) -> None:
    for name in ("mine", "other"):
        await api.http.put(f"/admin/models/{name}", json={"backends": [{"url": f"http://{name}:1"}]})
    await api.http.delete("/admin/models/mine")
    mine, other, removed = await entries(api)
    for entry, name in ((mine, "mine"), (other, "other")):
        assert entry.before is None
        assert isinstance(entry.after, dict)
        assert entry.after["registered"] == {"backends": [{"url": f"http://{name}:1"}]}
    assert isinstance(removed.after, dict)
    assert (removed.before, removed.after["removed"]) == (mine.after, True)
    assert target(removed) == ("mine", None)
