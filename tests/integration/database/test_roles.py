"""A database with two roles, as the Kubernetes guide creates them: an owner, and a role that changes rows."""

import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from batchwright.contracts.api_objects.audit_log import AuditEntryObject
from batchwright.database.driver import ServerError, connect
from batchwright.database.migrate import migrate
from tests.fakes.api import LINE
from tests.integration.api.test_process import environment, running
from tests.unit.deploy.files import ROOT

pytestmark = pytest.mark.integration

_GUIDE = ROOT / "docs" / "how-to" / "run-on-kubernetes.md"
_RIGHTS = "SELECT", "INSERT", "UPDATE", "DELETE"


@pytest.fixture
async def urls(postgres_url: str) -> AsyncGenerator[tuple[str, str]]:
    """URLs of an empty database for the owner and for the role that only changes rows."""
    server = postgres_url.rpartition("/")[0]
    address = server.partition("@")[2]
    [block] = re.findall("```sql\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    before, after = block.split("\\connect batchwright\n")
    admin = await connect(f"{server}/postgres")
    for statement in filter(str.strip, before.split(";")):
        await admin.execute(statement)
    inside = await connect(f"{server}/batchwright")
    await inside.execute(after)
    await inside.close()
    yield (
        f"postgresql://batches_owner:OWNER_PASSWORD@{address}/batchwright",
        f"postgresql://batchwright:PASSWORD@{address}/batchwright",
    )
    await admin.execute("DROP DATABASE batchwright WITH (FORCE)")
    await admin.execute("DROP ROLE batchwright")
    await admin.execute("DROP ROLE batches_owner")
    await admin.close()


async def test_the_data_role_can_do_everything_the_api_and_the_commands_do(
    urls: tuple[str, str], tmp_path: Path
) -> None:
    owner, rows = urls
    await migrate(owner)
    with running(tmp_path, database_url=rows) as (_, client):
        form = {"file": ("a.jsonl", LINE)}
        headers = {"Idempotency-Key": "k"}
        response = client.post("/v1/files", files=form, data={"purpose": "batch"}, headers=headers)
        assert response.status_code == 200, response.text
        changed = client.put("/admin/quotas", json={"tenant": "blue", "live_batches": 3})
        assert changed.status_code == 200, changed.text
        deleted = client.delete(f"/v1/files/{response.json()['id']}")
        assert deleted.status_code == 200, deleted.text
        exported = client.get("/admin/audit-log/export").text.splitlines()
        actions = [AuditEntryObject.model_validate_json(line) for line in exported]
        assert [(action.action, action.outcome, action.actor.address) for action in actions] == [
            ("quota.set", "ok", "127.0.0.1"),
            ("file.delete", "ok", "127.0.0.1"),
        ]
    for command in (["tenants", "create", "blue"], ["keys", "create", "blue"]):
        run_command(command, environment(tmp_path, database_url=rows))


def run_command(command: list[str], variables: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "batchwright.starter", *command], env=variables, check=True, timeout=240
    )


async def test_the_data_role_reads_and_writes_every_table_and_cannot_create_or_alter_one(
    urls: tuple[str, str],
) -> None:
    owner, rows = urls
    await migrate(owner)
    connection = await connect(rows)
    missing = await connection.fetch(
        "SELECT tablename, right_ FROM pg_tables, unnest($1::text[]) AS right_ "
        "WHERE schemaname = 'public' AND NOT has_table_privilege(tablename, right_)",
        list(_RIGHTS),
    )
    assert missing == []
    for statement in ("DROP TABLE files", "ALTER TABLE files ADD COLUMN x text", "CREATE TABLE x ()"):
        with pytest.raises(ServerError):
            await connection.execute(statement)
    await connection.close()
