"""Actions in the audit log: which requests are recorded, and with which data."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping

import pytest

from batchwright.api.audit_log.recorder import REPEATABLE_PER_MINUTE
from batchwright.contracts.api_objects.audit_log import (
    AuditAction,
    AuditOutcome,
)
from batchwright.contracts.api_objects.webhooks import WebhookObject
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.operations.audit_log import AuditLogTable, AuditResult
from batchwright.rules.tenants.api_keys import new_key
from batchwright.rules.tenants.scopes import Scope
from tests.clocks import stop_time_of_limiters
from tests.fakes.api import ApiFixture, open_own_api, read
from tests.fakes.api_keys import create_key
from tests.unit.api.routes.admin.audit_log.audit_entries import entries, states

HEADERS = {"headers": {"X-Team": "hush", "X-Other": "hush"}, "batch_headers": {"X-Lane": "hush"}}
MODEL = {"backends": [{"url": "http://b:1", **HEADERS}]}
RATE = {"requests_per_second": 5.0}
ACME_BUDGET = {"tokens_per_day": 9, "members": ["red"]}
ACME = "/admin/budget-groups/organization/acme"


async def test_a_change_is_recorded_with_who_from_where_and_the_state_before_and_after(
    keyed: ApiFixture,
) -> None:
    key = await create_key(keyed.database, "ops", scopes=[Scope.ADMIN])
    headers = {"Authorization": f"Bearer {key.text}", "X-Request-Id": "mine"}
    for limit in (3, 4):
        body = {"tenant": "red", "live_batches": limit}
        assert (await keyed.http.put("/admin/quotas", json=body, headers=headers)).status_code == 200
    _, entry = await entries(keyed, key)
    (stored,) = (row.key for row in keyed.database.rows.api_keys.values())
    assert states(entry) == ({"live_batches": 3}, {"live_batches": 4}, AuditOutcome.OK, None)
    assert (entry.source, entry.action, entry.request_id) == ("api", AuditAction.QUOTA_SET, "mine")
    assert (entry.actor.tenant, entry.actor.key_id, entry.actor.user) == ("ops", stored.id, None)
    assert entry.actor.address == "127.0.0.1"
    assert entry.target.model_dump(mode="json") == {"type": "quota", "id": "red", "tenant": "red"}


# Each action of an operator, and the name and the target that the log has for it. `{batch}` is a batch.
ACTIONS: list[tuple[str, str, Mapping[str, object] | None, str]] = [
    ("PUT", "/admin/rates", {"model": "llama", "requests_per_second": 5}, "rate.set llama"),
    ("DELETE", "/admin/rates?model=llama", None, "rate.reset llama"),
    ("PUT", "/admin/holds", {"tenant": "red"}, "hold.set tenant/red"),
    ("DELETE", "/admin/holds?tenant=red", None, "hold.release tenant/red"),
    ("PUT", "/admin/quotas", {"tenant": "red", "models": ["a"]}, "quota.set red"),
    ("DELETE", "/admin/quotas?tenant=red", None, "quota.reset red"),
    ("PUT", ACME, {"tokens_per_day": 9}, "budget_group.set organization/acme"),
    ("DELETE", ACME, None, "budget_group.delete organization/acme"),
    ("PUT", "/admin/models/mine", MODEL, "model.register mine"),
    ("PATCH", "/admin/models/mine", {"limits": {"in_flight": 3}}, "model.change mine"),
    ("PUT", "/admin/model-configs/mine", {"max_retries": 2}, "model.change mine"),
    ("DELETE", "/admin/model-configs/mine", None, "model.revert mine"),
    ("POST", "/admin/batches/{batch}/priority", {"priority": 5}, "batch.prioritize {batch}"),
    ("POST", "/admin/batches/{batch}/pause", None, "batch.pause {batch}"),
    ("POST", "/admin/batches/{batch}/resume", None, "batch.resume {batch}"),
    ("POST", "/admin/batches/{batch}/cancel", None, "batch.cancel {batch}"),
    ("POST", "/admin/batches/{batch}/abandon", None, "batch.abandon {batch}"),
    ("POST", "/admin/dlq/retry-all", {"tenant": "red"}, "dead_letter.retry_all None"),
    ("POST", "/admin/dlq/batch_req_x/retry", None, "dead_letter.retry batch_req_x"),
    ("DELETE", "/admin/dlq/batch_req_x", None, "dead_letter.delete batch_req_x"),
]


async def test_every_action_of_operators_is_recorded_with_its_target(api: ApiFixture) -> None:
    batch = (await api.create(tenant="red")).id
    for method, path, body, _ in ACTIONS:
        await api.http.request(method, path.format(batch=batch), json=body)
    recorded = [f"{entry.action} {entry.target.id}" for entry in await entries(api, limit="100")]
    assert recorded == [name.format(batch=batch) for *_, name in ACTIONS]


@pytest.mark.parametrize(
    ("path", "target", "body", "state"),
    [
        (
            "/admin/rates",
            "?model=llama",
            {"model": "llama", "requests_per_second": 5},
            {"requests_per_second": 5.0},
        ),
        ("/admin/quotas", "?tenant=red", {"tenant": "red", "models": ["b", "a"]}, {"models": ["a", "b"]}),
        (ACME, "", ACME_BUDGET, {**ACME_BUDGET, "cost_per_day": None}),
    ],
    ids=["rate", "quota", "budget group"],
)
async def test_the_state_that_a_change_makes_is_the_one_that_its_removal_ends(
    api: ApiFixture, path: str, target: str, body: Mapping[str, object], state: Mapping[str, object]
) -> None:
    await api.http.put(path, json=body)
    await api.http.delete(path + target)
    assert [states(entry) for entry in await entries(api)] == [
        (None, state, AuditOutcome.OK, None),
        (state, None, AuditOutcome.OK, None),
    ]


async def test_the_release_of_a_hold_shows_the_hold(api: ApiFixture) -> None:
    await api.http.put("/admin/holds", json={"tenant": "red"})
    await api.http.delete("/admin/holds?tenant=red")
    hold, release = await entries(api)
    assert hold.after is not None
    assert (hold.before, release.before, release.after) == (None, hold.after, None)


async def test_changes_of_a_batch_show_its_states_and_its_tenant(api: ApiFixture) -> None:
    batch = (await api.create(tenant="red")).id
    await api.http.post(f"/admin/batches/{batch}/priority", json={"priority": 5})
    await api.http.post(f"/admin/batches/{batch}/cancel")
    prioritized, cancelled = await entries(api)
    state = {"status": "validating", "max_cost": None, "files_pending": False}
    assert states(prioritized)[:2] == ({**state, "priority": 3}, {**state, "priority": 5})
    assert cancelled.after == {**state, "priority": 5, "status": "cancelling"}
    assert (prioritized.target.tenant, cancelled.target.tenant) == ("red", "red")


async def test_refused_actions_are_recorded_with_the_status_of_the_response(api: ApiFixture) -> None:
    batch = (await api.create(tenant="red")).id
    await api.http.post(f"/admin/batches/{batch}/abandon")
    await api.http.post("/admin/dlq/batch_req_x/retry")
    await api.http.delete("/admin/dlq/batch_req_x")
    found = await entries(api)
    assert {entry.outcome for entry in found} == {AuditOutcome.REFUSED}
    assert [entry.code for entry in found] == ["409", "404", "404"]


async def test_no_secret_is_recorded(api: ApiFixture) -> None:
    await api.http.put("/admin/models/mine", json=MODEL)
    body = {"url": "http://127.0.0.1:9/hooks/bearer-of-all"}
    created = read(await api.http.post("/v1/x/webhooks", json=body), WebhookObject)
    id = created.id
    rotated = read(await api.http.post(f"/v1/x/webhooks/{id}/rotate"), WebhookObject)
    await api.http.delete(f"/v1/x/webhooks/{id}")
    text = (await api.http.get("/admin/audit-log/export")).text
    assert created.secret
    assert rotated.secret
    for hidden in ("hush", "bearer-of-all", created.secret, rotated.secret):
        assert hidden not in text
    model, rotate, delete = map(json.loads, text.splitlines())
    backend = model["after"]["registered"]["backends"][0]
    assert backend["headers"] == {"X-Team": "***", "X-Other": "***"}
    assert backend["batch_headers"] == {"X-Lane": "***"}
    assert (rotate["action"], rotate["before"]["host"]) == ("webhook.rotate", "127.0.0.1")
    assert rotate["after"]["previous_secret_until"] > 0
    assert (delete["action"], delete["after"]) == ("webhook.delete", None)


async def test_destructive_actions_of_tenants_are_recorded_once_for_each_object(api: ApiFixture) -> None:
    file, batch = await api.upload(), await api.create()
    upload = await api.openai.uploads.create(bytes=5, filename="a", mime_type="text/plain", purpose="vision")
    for _ in range(3):
        await api.http.delete(f"/v1/files/{file.id}")
        await api.http.post(f"/v1/batches/{batch.id}/cancel")
        await api.http.post(f"/v1/uploads/{upload.id}/cancel")
    found = {entry.action: entry for entry in await entries(api)}
    assert len(await entries(api)) == len(found)
    assert found.keys() == {AuditAction.FILE_DELETE, AuditAction.BATCH_CANCEL, AuditAction.UPLOAD_CANCEL}
    deleted = found[AuditAction.FILE_DELETE]
    assert deleted.before == {"filename": "input.jsonl", "purpose": "batch", "bytes": file.bytes}
    assert states(deleted)[1:] == (None, AuditOutcome.OK, None)
    assert (deleted.target.id, deleted.target.tenant) == (file.id, "default")
    for action, end in ((AuditAction.BATCH_CANCEL, "cancelling"), (AuditAction.UPLOAD_CANCEL, "cancelled")):
        after = found[action].after
        assert isinstance(after, dict)
        assert after["status"] == end


async def test_a_tenant_cannot_fill_the_audit_log_with_refused_actions(
    api_in_one_instant: ApiFixture,
) -> None:
    api = api_in_one_instant
    batch, unknown = await api.create(tenant="red"), "batch_" + "0" * 32
    headers = {"X-Tenant": "red"}
    answers = [
        await api.http.delete(f"/v1/batches/{batch.id}", headers=headers)
        for _ in range(REPEATABLE_PER_MINUTE + 3)
    ]
    assert [answer.status_code for answer in answers[:REPEATABLE_PER_MINUTE]] == [409] * REPEATABLE_PER_MINUTE
    assert {answer.status_code for answer in answers[REPEATABLE_PER_MINUTE + 1 :]} == {429}
    assert int(answers[-1].headers["Retry-After"]) > 0
    recorded = len(api.database.rows.audit_log)
    assert recorded <= REPEATABLE_PER_MINUTE + 1
    # Other tenants are not limited, and what does not exist leaves no rows.
    for _ in range(REPEATABLE_PER_MINUTE + 3):
        assert (await api.http.delete(f"/v1/batches/{unknown}")).status_code == 404
    assert len(api.database.rows.audit_log) == recorded


async def test_a_tenant_cannot_fill_the_audit_log_by_creating_and_deleting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchwright.api.audit_log.recorder.ONE_TIME_PER_MINUTE", 3)
    # A deletion that succeeded does not count as one that can be repeated.
    monkeypatch.setattr("batchwright.api.audit_log.recorder.REPEATABLE_PER_MINUTE", 1)
    stop_time_of_limiters(monkeypatch)
    async with open_own_api() as api:
        statuses = list[int]()
        for _ in range(5):
            file = await api.upload()
            statuses.append((await api.http.delete(f"/v1/files/{file.id}")).status_code)
        assert statuses == [200, 200, 200, 429, 429]
        assert len(api.database.rows.audit_log) == 3
        file = await api.upload(tenant="red")
        assert (await api.http.delete(f"/v1/files/{file.id}", headers={"X-Tenant": "red"})).status_code == 200


async def test_a_tenant_cannot_fill_the_audit_log_with_refused_creations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchwright.api.audit_log.recorder.ONE_TIME_PER_MINUTE", 1)
    stop_time_of_limiters(monkeypatch)
    async with open_own_api() as api:
        answers = [await api.http.post("/v1/x/schedules", json={"cron": "never"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [400, 429, 429]
        assert len(api.database.rows.audit_log) == 1


async def test_the_creation_of_a_schedule_is_recorded_with_its_creator(keyed: ApiFixture) -> None:
    """A schedule creates batches for as long as it exists, so operators must see who created it."""
    admin = await create_key(keyed.database, "ops", scopes=[Scope.ADMIN])
    writer = await create_key(keyed.database, "green", scopes=[Scope.WRITE, Scope.READ])
    headers = {"Authorization": f"Bearer {writer.text}"}
    files = {"file": ("in.jsonl", b'{"custom_id": "a", "body": {}}\n')}
    uploaded = await keyed.http.post("/v1/files", files=files, data={"purpose": "batch"}, headers=headers)
    batch = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "6h",
    }
    for cron in ("0 2 * * *", "never"):
        await keyed.http.post("/v1/x/schedules", json={"cron": cron, "batch": batch}, headers=headers)
    created, refused = await entries(keyed, admin, action="schedule.create")
    (schedule,) = keyed.database.rows.schedules.values()
    assert (created.target.id, created.actor.key_id) == (schedule.id, schedule.template.caller.key_id)
    assert isinstance(created.after, dict)
    assert (created.before, created.after["cron"], created.outcome) == (None, "0 2 * * *", AuditOutcome.OK)
    assert states(refused) == (None, None, AuditOutcome.REFUSED, "invalid_value")


async def test_a_denied_action_of_operators_is_recorded_and_other_denials_are_not(
    keyed_in_one_instant: ApiFixture,
) -> None:
    keyed = keyed_in_one_instant
    tenant = await create_key(keyed.database, "red", scopes=[Scope.READ])
    viewer = await create_key(keyed.database, "ops", scopes=[Scope.VIEWER])
    headers = {"Authorization": f"Bearer {tenant.text}"}
    calls = [
        ("DELETE", "/admin/models/org/mine"),
        ("GET", "/admin/quotas"),
        ("POST", "/v1/batches"),
        ("DELETE", "/v1/files/file-x"),
        ("PUT", "/admin/nothing"),
    ]
    for method, path in calls:
        assert (await keyed.http.request(method, path, headers=headers)).status_code == 403
    assert (await keyed.http.put("/admin/quotas")).status_code == 401
    [entry] = await entries(keyed, viewer)
    assert states(entry) == (None, None, AuditOutcome.REFUSED, "missing_scope")
    assert (entry.action, entry.target.id) == (AuditAction.MODEL_REMOVE, "org/mine")
    assert entry.actor.tenant == "red"
    assert entry.actor.key_id is not None
    for _ in range(REPEATABLE_PER_MINUTE + 3):
        await keyed.http.put("/admin/quotas", headers=headers)
    assert len(keyed.database.rows.audit_log) <= REPEATABLE_PER_MINUTE + 1


async def test_an_action_that_names_the_tenant_of_another_is_recorded_for_the_tenant_of_the_key(
    keyed_in_one_instant: ApiFixture,
) -> None:
    keyed = keyed_in_one_instant
    admin = await create_key(keyed.database, "ops", scopes=[Scope.ADMIN])
    writer = await create_key(keyed.database, "green", scopes=[Scope.WRITE])
    foreign = {"Authorization": f"Bearer {writer.text}", "X-Tenant": "blue"}
    file = "file-" + "0" * 32
    for method, path in (("DELETE", f"/v1/files/{file}"), ("PUT", "/admin/quotas"), ("GET", "/v1/files")):
        assert (await keyed.http.request(method, path, headers=foreign)).status_code == 403
    invalid = {**foreign, "X-Tenant": "?"}
    assert (await keyed.http.delete(f"/v1/files/{file}", headers=invalid)).status_code == 400
    # Nothing tells who sent a request with a wrong key.
    unknown = {**foreign, "Authorization": f"Bearer {new_key().text}"}
    assert (await keyed.http.delete(f"/v1/files/{file}", headers=unknown)).status_code == 401
    found = await entries(keyed, admin)
    assert [(entry.action.value, entry.target.id, entry.outcome.value, entry.code) for entry in found] == [
        ("file.delete", file, "refused", "tenant_mismatch"),
        ("quota.set", None, "refused", "tenant_mismatch"),
        ("file.delete", file, "refused", "invalid_value"),
    ]
    assert {(entry.actor.tenant, entry.target.tenant) for entry in found} == {("green", None)}
    for _ in range(REPEATABLE_PER_MINUTE + 3):
        await keyed.http.delete(f"/v1/files/{file}", headers=foreign)
    assert len(keyed.database.rows.audit_log) <= REPEATABLE_PER_MINUTE + 1


async def test_the_name_in_a_denied_action_is_recorded_up_to_256_characters(keyed: ApiFixture) -> None:
    reader = await create_key(keyed.database, "red", scopes=[Scope.READ])
    viewer = await create_key(keyed.database, "ops", scopes=[Scope.VIEWER])
    headers = {"Authorization": f"Bearer {reader.text}"}
    assert (await keyed.http.delete(f"/admin/models/{'x' * 300}", headers=headers)).status_code == 403
    [entry] = await entries(keyed, viewer)
    assert entry.target.id == "x" * 256


async def test_a_denial_that_cannot_be_recorded_is_logged_and_stays_a_denial(
    keyed: ApiFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unavailable(*_: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(keyed.database.audit_log, "begin", unavailable)
    reader = await create_key(keyed.database, "red", scopes=[Scope.READ])
    headers = {"Authorization": f"Bearer {reader.text}"}
    assert (await keyed.http.put("/admin/quotas", headers=headers)).status_code == 403
    [record] = [each for each in caplog.records if each.name == "batchwright.api.audit_log.denials"]
    assert (vars(record)["action"], vars(record)["error"]) == ("quota.set", "away")


async def test_an_action_that_cannot_be_recorded_does_not_happen(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await api.upload()

    async def unavailable(*_: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(api.database.audit_log, "begin", unavailable)
    assert (await api.http.delete(f"/v1/files/{file.id}")).status_code == 503
    assert (await api.http.put("/admin/holds", json={"tenant": "red"})).status_code == 503
    assert (await api.http.get(f"/v1/files/{file.id}")).status_code == 200
    assert api.database.rows.holds == {}


async def test_an_outcome_that_cannot_be_recorded_is_unknown_and_the_action_stays(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(_: AuditLogTable, id: str, result: AuditResult) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(type(api.database.audit_log), "finish", unavailable)
    assert (await api.http.put("/admin/holds", json={"tenant": "red"})).status_code == 200
    [entry] = await entries(api, outcome="unknown")
    assert states(entry) == (None, None, AuditOutcome.UNKNOWN, None)


async def test_an_error_of_the_server_is_a_failed_action(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(api.database.holds, "put", broken)
    assert (await api.http.put("/admin/holds", json={"model": "llama"})).status_code == 503
    [entry] = await entries(api)
    assert states(entry) == (None, None, AuditOutcome.FAILED, "DatabaseUnavailable")


async def test_parallel_requests_of_a_tenant_cannot_fill_the_log(api_in_one_instant: ApiFixture) -> None:
    api = api_in_one_instant
    made = await api.http.post("/v1/x/webhooks", json={"url": "http://127.0.0.1:9/hook"})
    path = f"/v1/x/webhooks/{read(made, WebhookObject).id}/rotate"
    sent = [api.http.post(path, json={}) for _ in range(2 * REPEATABLE_PER_MINUTE)]
    answers = await asyncio.gather(*sent)
    assert Counter(answer.status_code for answer in answers)[429] >= REPEATABLE_PER_MINUTE - 2
    assert len(api.database.rows.audit_log) <= REPEATABLE_PER_MINUTE + 2


async def test_what_postgresql_cannot_store_is_recorded_with_a_replacement(keyed: ApiFixture) -> None:
    admin = await create_key(keyed.database, "ops", scopes=[Scope.ADMIN])
    writer = await create_key(keyed.database, "red", scopes=[Scope.WRITE])
    body = {"tenant": "a\0", "live_batches": 3}
    for key, status in ((writer, 403), (admin, 400)):
        headers = {"Authorization": f"Bearer {key.text}"}
        assert (await keyed.http.put("/admin/quotas", json=body, headers=headers)).status_code == status
        deleted = await keyed.http.delete("/admin/models/a%00b", headers=headers)
        assert deleted.status_code == status
    targets = {entry.target.id for entry in await entries(keyed, admin)}
    assert targets >= {"a\ufffdb", "a\ufffd"}


async def test_the_cap_of_a_batch_may_end_it_so_its_change_is_recorded(api: ApiFixture) -> None:
    batch = (await api.create()).id
    await api.http.post(f"/v1/batches/{batch}/x/max_cost", json={"max_cost": "1"})
    (entry,) = await entries(api)
    assert (entry.action, entry.target.id) == (AuditAction.BATCH_LIMIT_COST, batch)
    assert entry.actor.tenant == entry.target.tenant
