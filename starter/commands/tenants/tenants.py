"""`batchwright tenants`: creates, shows, disables and enables tenants.

The commands use the database directly, because no API key exists before the first tenant.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import BaseModel, JsonValue

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.database.database import Database
from batchwright.database.errors import UnknownTenant
from batchwright.database.records import TenantRow
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.rules.tenants.api_keys import is_usable
from batchwright.starter.commands.tenants.budget_output import check_name
from batchwright.starter.diagnostics.connections import query_or_stop
from batchwright.starter.options import JsonLine, command_group
from batchwright.starter.output import column_table, local_time, print_json, stderr, stdout
from batchwright.starter.recorded_command import CommandRefused, recorded_command

tenants = command_group("Create, show, disable and enable tenants.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.", show_default=False)]


class TenantOutput(TenantRow):
    """A tenant. `keys` is the number of its API keys that are valid now."""

    keys: int
    last_used_at: datetime | None
    live_batches: int


class TenantsOutput(BaseModel):
    tenants: list[TenantOutput]


@tenants.callback()
def commands() -> None:
    """Create, show, disable and enable tenants."""


@tenants.command("create")
def create(name: Name, json: JsonLine = False) -> None:
    """Create a tenant; `batchwright keys create` creates its keys."""
    check_name(name, "a tenant's")

    async def make(database: Database) -> TenantOutput:
        if not await database.tenants.create(name, datetime.now(UTC)):
            raise CommandRefused("tenant_exists", f"There is a tenant {name!r} already.")
        return await _existing(database, name)

    tenant = _recorded(AuditAction.TENANT_CREATE, name, make)
    _print(tenant, f"Created the tenant {name}; `batchwright keys create {name}` creates a key.", json)


@tenants.command("list")
def list_tenants(json: JsonLine = False) -> None:
    """List tenants by name."""

    async def look(database: Database) -> list[TenantOutput]:
        return [await _load(database, row) for row in await database.tenants.all()]

    found = query_or_stop(look)
    if json:
        return print_json(TenantsOutput(tenants=found))
    if not found:
        stderr().print("There is no tenant; `batchwright tenants create NAME` creates one.")
        return
    table = column_table("tenant", "state", "keys", "last used", "live batches")
    for tenant in found:
        table.add_row(
            tenant.name,
            _state(tenant),
            str(tenant.keys),
            local_time(tenant.last_used_at),
            str(tenant.live_batches),
        )
    stdout().print(table)


@tenants.command("show")
def show(name: Name, json: JsonLine = False) -> None:
    """Show one tenant."""
    tenant = query_or_stop(lambda database: _existing(database, name))
    if json:
        return print_json(tenant)
    table = column_table("tenant", tenant.name)
    table.add_row("state", _state(tenant))
    table.add_row("created", local_time(tenant.created_at))
    table.add_row("keys", str(tenant.keys))
    table.add_row("last used", local_time(tenant.last_used_at))
    table.add_row("live batches", str(tenant.live_batches))
    stdout().print(table)


@tenants.command("disable")
def disable(name: Name, json: JsonLine = False) -> None:
    """Disable a tenant: its keys are rejected within seconds.

    Its running batches continue, and its files are kept.
    """

    async def disable_tenant(database: Database) -> TenantOutput:
        await database.tenants.disable(name, datetime.now(UTC))
        return await _existing(database, name)

    tenant = _recorded(AuditAction.TENANT_DISABLE, name, disable_tenant)
    _print(tenant, f"Disabled the tenant {name}; its batches continue.", json)


@tenants.command("enable")
def enable(name: Name, json: JsonLine = False) -> None:
    """Enable a disabled tenant.

    Its keys are valid again.
    """

    async def enable_tenant(database: Database) -> TenantOutput:
        await database.tenants.enable(name)
        return await _existing(database, name)

    _print(_recorded(AuditAction.TENANT_ENABLE, name, enable_tenant), f"Enabled the tenant {name}.", json)


def _recorded(
    action: AuditAction, name: str, change: Callable[[Database], Awaitable[TenantOutput]]
) -> TenantOutput:
    """Change a tenant with `change`, record the change in the audit log, and return the changed tenant."""

    async def run(database: Database) -> TenantOutput:
        async def read() -> JsonValue:
            row = await database.tenants.get(name)
            return None if row is None else {"enabled": row.disabled_at is None}

        target = AuditTarget(type=AuditTargetType.TENANT, id=name, tenant=name)
        return await recorded_command(database, action, target, read, lambda: change(database))

    return query_or_stop(run)


async def _existing(database: Database, name: str) -> TenantOutput:
    """Return a tenant.

    Raises:
        UnknownTenant: the tenant does not exist.
    """
    row = await database.tenants.get(name)
    if row is None:
        raise UnknownTenant(name)
    return await _load(database, row)


async def _load(database: Database, row: TenantRow) -> TenantOutput:
    keys, now = await database.api_keys.all(row.name), datetime.now(UTC)
    valid = [
        key
        for key in keys
        if is_usable(now, expires_at=key.expires_at, revoked_at=key.revoked_at, disabled_at=row.disabled_at)
    ]
    return TenantOutput(
        **row.model_dump(),
        keys=len(valid),
        last_used_at=max((key.last_used_at for key in keys if key.last_used_at), default=None),
        live_batches=await database.batch_list.count_live(row.name),
    )


def _print(tenant: TenantOutput, sentence: str, json: bool) -> None:
    if json:
        print_json(tenant)
    else:
        stderr().print(sentence, markup=False)


def _state(tenant: TenantRow) -> str:
    return "enabled" if tenant.disabled_at is None else f"disabled since {local_time(tenant.disabled_at)}"
