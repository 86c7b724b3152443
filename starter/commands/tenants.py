"""`batchwright tenants`: who may have keys. It asks the database, not the API: the first key needs no key."""

from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer
from pydantic import BaseModel

from batchwright.database.pool import Database
from batchwright.database.tenant_rows import KeyRow, TenantRow
from batchwright.rules.api_keys import is_usable
from starter.operate.asking import asked
from starter.options import JsonLine
from starter.output import Exit, print_json, stderr, stdout, stop
from starter.sharing import check_name
from starter.tables import columns, local_time

tenants = typer.Typer(
    help="Make, show, disable and enable tenants.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.", show_default=False)]


class Tenant(TenantRow):
    """Keys are those that open now."""

    keys: int
    last_used_at: datetime | None
    live_batches: int


class Tenants(BaseModel):
    tenants: list[Tenant]


@tenants.callback()
def commands() -> None:
    """Make, show, disable and enable tenants."""


@tenants.command("create")
def create(name: Name, json: JsonLine = False) -> None:
    """Make a tenant; `batchwright keys create` makes its keys."""
    check_name(name, "a tenant's")

    async def make(database: Database) -> tuple[bool, Tenant | None]:
        made = await database.tenants.create(name, datetime.now(UTC))
        return made, await _tenant(database, name)

    made, tenant = asked(make)
    if not made:
        stop(f"There is a tenant {name!r} already.", Exit.FAILED)
    _say(tenant, name, f"Made the tenant {name}; `batchwright keys create {name}` makes a key.", json)


@tenants.command("list")
def list_tenants(json: JsonLine = False) -> None:
    """List tenants by name."""

    async def look(database: Database) -> list[Tenant]:
        return [await _look(database, row) for row in await database.tenants.all()]

    found = asked(look)
    if json:
        return print_json(Tenants(tenants=found))
    if not found:
        stderr().print("There is no tenant; `batchwright tenants create NAME` makes one.")
        return
    table = columns("tenant", "state", "keys", "last used", "live batches")
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
    tenant = asked(lambda database: _tenant(database, name))
    if tenant is None:
        _stop_unknown(name)
    if json:
        return print_json(tenant)
    table = columns("tenant", tenant.name)
    table.add_row("state", _state(tenant))
    table.add_row("created", local_time(tenant.created_at))
    table.add_row("keys", str(tenant.keys))
    table.add_row("last used", local_time(tenant.last_used_at))
    table.add_row("live batches", str(tenant.live_batches))
    stdout().print(table)


@tenants.command("disable")
def disable(name: Name, json: JsonLine = False) -> None:
    """Let nobody in for a tenant, within seconds.

    Its batches go on; its files stay.
    """

    async def shut(database: Database) -> Tenant | None:
        await database.tenants.disable(name, datetime.now(UTC))
        return await _tenant(database, name)

    _say(asked(shut), name, f"Disabled the tenant {name}; its batches go on.", json)


@tenants.command("enable")
def enable(name: Name, json: JsonLine = False) -> None:
    """Let a disabled tenant in again.

    Its keys are what they were.
    """

    async def open_up(database: Database) -> Tenant | None:
        await database.tenants.enable(name)
        return await _tenant(database, name)

    _say(asked(open_up), name, f"Enabled the tenant {name}.", json)


def _stop_unknown(name: str) -> NoReturn:
    stop(f"There is no tenant {name!r}: `batchwright tenants create {name}` makes it.", Exit.FAILED)


async def _tenant(database: Database, name: str) -> Tenant | None:
    row = await database.tenants.get(name)
    return None if row is None else await _look(database, row)


async def _look(database: Database, row: TenantRow) -> Tenant:
    keys = await database.api_keys.all(row.name)
    return Tenant(
        **row.model_dump(),
        keys=sum(_opens(key, row) for key in keys),
        last_used_at=max((key.last_used_at for key in keys if key.last_used_at), default=None),
        live_batches=await database.batches.count_live(row.name),
    )


def _opens(key: KeyRow, tenant: TenantRow) -> bool:
    return is_usable(
        datetime.now(UTC),
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        disabled_at=tenant.disabled_at,
    )


def _say(tenant: Tenant | None, name: str, sentence: str, json: bool) -> None:
    if tenant is None:
        _stop_unknown(name)
    if json:
        print_json(tenant)
    else:
        stderr().print(sentence, markup=False)


def _state(tenant: TenantRow) -> str:
    return "enabled" if tenant.disabled_at is None else f"disabled since {local_time(tenant.disabled_at)}"
