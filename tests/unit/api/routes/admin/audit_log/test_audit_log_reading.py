"""The audit log: how operators list, filter and export its records."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.contracts.api_objects.audit_log import (
    AuditEntryObject,
    AuditLogPage,
    AuditOutcome,
)
from batchwright.database.tables.operations.audit_log import AuditResult
from tests.fakes.api import ApiFixture, error_of, read
from tests.unit.api.routes.admin.audit_log.audit_entries import entries


async def test_the_export_is_complete_and_continues_after_a_line(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright.api.routes.admin.audit_log._EXPORT_PAGE", 2)
    for number in range(5):
        await api.http.put("/admin/holds", json={"tenant": f"t{number}"})
    answer = await api.http.get("/admin/audit-log/export")
    assert answer.headers["content-type"].startswith("application/jsonl")
    lines = [AuditEntryObject.model_validate_json(line) for line in answer.text.splitlines()]
    assert [entry.target.tenant for entry in lines] == [f"t{number}" for number in range(5)]
    rest = await api.http.get("/admin/audit-log/export", params={"after": lines[2].id})
    assert rest.text.splitlines() == answer.text.splitlines()[3:]
    one = await api.http.get("/admin/audit-log/export?tenant=t4")
    assert one.text.splitlines() == answer.text.splitlines()[4:]
    assert (await api.http.head("/admin/audit-log/export")).status_code == 200


async def test_an_export_ends_before_an_action_that_may_still_be_running(api: ApiFixture) -> None:
    await api.http.put("/admin/holds", json={"tenant": "red"})
    [finished] = (await api.http.get("/admin/audit-log/export")).text.splitlines()
    entry = api.database.rows.audit_log[json.loads(finished)["id"]].entry
    running = await api.database.audit_log.begin(entry.model_copy(update={"created_at": datetime.now(UTC)}))
    await api.http.put("/admin/holds", json={"tenant": "blue"})
    # The end of the export does not depend on its filters, so that the next one misses nothing.
    for query in ("", "?outcome=ok"):
        exported = await api.http.get(f"/admin/audit-log/export{query}")
        assert exported.text.splitlines() == [finished]
    await api.database.audit_log.finish(running, AuditResult(outcome=AuditOutcome.OK))
    rest = await api.http.get("/admin/audit-log/export", params={"after": json.loads(finished)["id"]})
    assert [json.loads(line)["outcome"] for line in rest.text.splitlines()] == ["ok", "ok"]
    # After ten minutes its process must have ended, and the export goes on.
    await api.database.audit_log.begin(
        entry.model_copy(update={"created_at": datetime(2026, 1, 1, tzinfo=UTC)})
    )
    rest = await api.http.get("/admin/audit-log/export?outcome=unknown")
    assert len(rest.text.splitlines()) == 1


async def test_a_cursor_outlives_its_entry_and_the_export_says_what_is_missing(api: ApiFixture) -> None:
    for number in range(4):
        await api.http.put("/admin/holds", json={"tenant": f"t{number}"})
    lines = (await api.http.get("/admin/audit-log/export")).text.splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    for id in ids[:3]:
        del api.database.rows.audit_log[id]
    for number, warning in ((0, f"Retention has deleted entries after {ids[0]}: 2 are missing"), (2, None)):
        for method in ("GET", "HEAD"):
            url = "/admin/audit-log/export"
            rest = await api.http.request(method, url, params={"after": ids[number]})
            assert rest.headers.get("x-batchwright-warning") == warning
            assert rest.text.splitlines() == (lines[3:] if method == "GET" else [])
    page = read(await api.http.get(f"/admin/audit-log?order=asc&after={ids[0]}"), AuditLogPage)
    assert [entry.id for entry in page.data] == ids[3:]


async def test_an_export_does_not_continue_after_an_entry_that_a_restored_database_has_lost(
    api: ApiFixture,
) -> None:
    """The restored database uses the number of the lost entry again. If the export continued after it,
    entries with this or a lower number would be missing.
    """
    for number in range(2):
        await api.http.put("/admin/holds", json={"tenant": f"t{number}"})
    lost = (await entries(api))[-1].id
    del api.database.rows.audit_log[lost]
    api.database.rows.audit_log_position -= 1
    for _ in range(2):
        refused = await api.http.get("/admin/audit-log/export", params={"after": lost})
        assert (refused.status_code, "restored" in error_of(refused).message) == (404, True)
        await api.http.put("/admin/holds", json={"tenant": "new"})


async def test_the_list_is_filtered_and_paged(api: ApiFixture) -> None:
    for name in ("red", "blue"):
        await api.http.put("/admin/holds", json={"tenant": name})
    await api.http.put("/admin/holds", json={})
    assert [entry.code for entry in await entries(api, outcome="refused")] == ["missing_required_parameter"]
    assert [entry.target.tenant for entry in await entries(api, tenant="red")] == ["red"]
    assert await entries(api, action="quota.set") == []
    now = int(datetime.now(UTC).timestamp())
    assert await entries(api, created_after=str(now + 60)) == []
    assert len(await entries(api, created_before=str(now + 60))) == 3
    first = read(await api.http.get("/admin/audit-log?limit=2"), AuditLogPage)
    rest = read(await api.http.get(f"/admin/audit-log?after={first.last_id}"), AuditLogPage)
    assert (len(first.data), first.has_more, len(rest.data), rest.has_more) == (2, True, 1, False)


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("action=dance", 400, "action"),
        ("outcome=good", 400, "outcome"),
        ("order=up", 400, "order"),
        ("limit=0", 400, "limit"),
        ("created_after=now", 400, "created_after"),
        ("actor=%00", 400, "actor"),
        ("acton=quota.set", 400, "acton"),
        ("after=x", 404, "after"),
        ("after=act_000000000000000a0000000000000000", 404, "after"),
    ],
)
async def test_a_wrong_filter_is_an_error_that_names_it(
    api: ApiFixture, query: str, status: int, param: str
) -> None:
    answers: list[httpx.Response] = [await api.http.get(f"/admin/audit-log?{query}")]
    if param not in ("limit", "order"):
        answers.append(await api.http.get(f"/admin/audit-log/export?{query}"))
    for answer in answers:
        assert (answer.status_code, error_of(answer).param) == (status, param)
