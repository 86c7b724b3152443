"""`batchwright users`: keys of a tenant that share one budget, in the database as `keys` are."""

from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer
from pydantic import BaseModel

from batchwright.database.errors import UnknownUser
from batchwright.database.pool import Database
from batchwright.database.spent import spent_by_users
from batchwright.database.tenant_rows import KeyRow, UserRow
from starter.operate.asking import asked
from starter.options import JsonLine
from starter.output import Exit, print_json, stderr, stdout, stop
from starter.sharing import FirstBudget, NewBudget, budget, check_name, used
from starter.tables import columns, facts, local_time

users = typer.Typer(
    help="Make and change users of tenants.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Whose user.", show_default=False)]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]


class User(UserRow):
    """`used` are tokens of today, of all its keys; `keys` are their ids."""

    used: int


class Users(BaseModel):
    users: list[User]


@users.callback()
def commands() -> None:
    """Make and change users of tenants.

    The keys of one share a budget of tokens a day.
    """


@users.command("create")
def create(
    tenant: _Tenant,
    name: _Name,
    tokens_per_day: FirstBudget = None,
    json: JsonLine = False,
) -> None:
    """Make a user.

    `batchwright keys create --user` makes its keys, `keys assign` gives it one that there is.
    """
    check_name(name, "a user's")

    async def make(database: Database) -> tuple[bool, User | None]:
        made = await database.users.create(tenant, name, tokens_per_day, datetime.now(UTC))
        return made, await _look(database, tenant, name)

    made, found = asked(make)
    if not made:
        stop(f"Tenant {tenant!r} has a user {name!r} already.", Exit.FAILED)
    _say(found, tenant, name, json)


@users.command("list")
def list_users(
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]", show_default=False)] = None,
    json: JsonLine = False,
) -> None:
    """List the users of a tenant, or of all."""
    found = asked(lambda database: _all(database, tenant))
    if json:
        return print_json(Users(users=found))
    if not found:
        whose = f"Tenant {tenant!r} has no user" if tenant else "There is no user"
        create = f"`batchwright users create {tenant or 'TENANT'} NAME` makes one."
        stderr().print(f"{whose}; {create}", markup=False)
        return
    table = columns("tenant", "user", "tokens today", "keys")
    for one in found:
        table.add_row(one.tenant, one.name, used(one.used, one.tokens_per_day), str(len(one.keys)))
    stdout().print(table)


@users.command("show")
def show(tenant: _Tenant, name: _Name, json: JsonLine = False) -> None:
    """Show one user, and its keys."""

    async def look(database: Database) -> tuple[User | None, list[KeyRow]]:
        return await _look(database, tenant, name), await database.api_keys.all(tenant)

    found, keys = asked(look)
    if found is None:
        _stop_unknown(tenant, name)
    if json:
        return print_json(found)
    table = facts()
    table.add_row("user", f"{found.name} of {found.tenant}")
    table.add_row("created", local_time(found.created_at))
    table.add_row("tokens today", used(found.used, found.tokens_per_day))
    if found.tokens_per_day:
        table.add_row("left", str(max(found.tokens_per_day - found.used, 0)))
    own = [f"bw_{key.prefix}_...{_end(key)}" for key in keys if key.user_name == name]
    table.add_row("keys", "\n".join(own) or "none")
    stdout().print(table)


@users.command("limit")
def limit(
    tenant: _Tenant,
    name: _Name,
    tokens_per_day: NewBudget,
    json: JsonLine = False,
) -> None:
    """Give a user a budget of tokens, or take it back.

    Workers know it within seconds; lines above it end as `policy_rejected`.
    """

    async def change(database: Database) -> User | None:
        await database.users.limit(tenant, name, tokens_per_day or None)
        return await _look(database, tenant, name)

    _say(asked(change), tenant, name, json)


@users.command("delete")
def delete(tenant: _Tenant, name: _Name) -> None:
    """Delete a user; its keys stay, and open as before.

    They have their own budgets alone from then on.
    """
    if not asked(lambda database: database.users.delete(tenant, name)):
        _stop_unknown(tenant, name)
    stderr().print(f"Deleted the user {name} of {tenant}.", markup=False)


async def _all(database: Database, tenant: str | None) -> list[User]:
    rows, today = await database.users.all(tenant), datetime.now(UTC).date()
    return [
        User(**row.model_dump(), used=tokens)
        for row, tokens in await spent_by_users(database.quotas, rows, today)
    ]


async def _look(database: Database, tenant: str, name: str) -> User | None:
    return next((found for found in await _all(database, tenant) if found.name == name), None)


def _stop_unknown(tenant: str, name: str) -> NoReturn:
    stop(str(UnknownUser(tenant, name)), Exit.FAILED)


def _end(key: KeyRow) -> str:
    return "" if key.revoked_at is None else f", revoked {local_time(key.revoked_at)}"


def _say(found: User | None, tenant: str, name: str, json: bool) -> None:
    if found is None:
        _stop_unknown(tenant, name)
    if json:
        return print_json(found)
    stderr().print(
        f"{name} of {tenant} has {budget(found.tokens_per_day)}. Keys: {len(found.keys)}.", markup=False
    )
