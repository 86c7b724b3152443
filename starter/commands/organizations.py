"""`batchwright organizations`: tenants that share one budget, in the database as `tenants` and `keys` are."""

from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer
from pydantic import BaseModel

from batchwright.database.pool import Database
from batchwright.database.spent import spent_by_organizations
from batchwright.database.tenant_rows import OrganizationRow
from starter.operate.asking import asked
from starter.options import JsonLine
from starter.output import Exit, print_json, stderr, stdout, stop
from starter.sharing import FirstBudget, NewBudget, budget, check_name, used
from starter.tables import columns

organizations = typer.Typer(
    help="Make and change organizations of tenants.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The organization's name.", show_default=False)]
_Tenants = Annotated[list[str], typer.Argument(metavar="TENANT...", show_default=False)]


class Organization(OrganizationRow):
    """`used` are tokens of today, of all its tenants."""

    used: int


class Organizations(BaseModel):
    organizations: list[Organization]


@organizations.callback()
def commands() -> None:
    """Make and change organizations of tenants.

    The tenants of one share a budget of tokens a day.
    """


@organizations.command("create")
def create(
    name: _Name,
    tokens_per_day: FirstBudget = None,
    json: JsonLine = False,
) -> None:
    """Make an organization.

    `batchwright organizations add` puts tenants in it.
    """
    check_name(name, "an organization's")

    async def make(database: Database) -> tuple[bool, Organization | None]:
        made = await database.organizations.create(name, tokens_per_day, datetime.now(UTC))
        return made, await _look(database, name)

    made, found = asked(make)
    if not made:
        stop(f"There is an organization {name!r} already.", Exit.FAILED)
    _say(found, name, json)


@organizations.command("list")
def list_organizations(json: JsonLine = False) -> None:
    """List organizations by name."""
    found = asked(_all)
    if json:
        return print_json(Organizations(organizations=found))
    if not found:
        stderr().print("There is no organization; `batchwright organizations create NAME` makes one.")
        return
    table = columns("organization", "tokens today", "tenants")
    for one in found:
        table.add_row(one.name, used(one.used, one.tokens_per_day), ", ".join(one.tenants))
    stdout().print(table)


@organizations.command("limit")
def limit(
    name: _Name,
    tokens_per_day: NewBudget,
    json: JsonLine = False,
) -> None:
    """Give an organization a budget of tokens, or take it back.

    Workers know it within seconds; lines above it end as `policy_rejected`.
    """

    async def change(database: Database) -> Organization | None:
        await database.organizations.limit(name, tokens_per_day or None)
        return await _look(database, name)

    _say(asked(change), name, json)


@organizations.command("add")
def add(name: _Name, tenants: _Tenants, json: JsonLine = False) -> None:
    """Put tenants in an organization.

    What they have used today counts at once. A tenant is in one organization at most.
    """
    for tenant in tenants:
        check_name(tenant, "a tenant's")

    async def change(database: Database) -> tuple[dict[str, str | None], Organization | None]:
        places = {tenant: await database.organizations.add(name, tenant) for tenant in tenants}
        return places, await _look(database, name)

    places, found = asked(change)
    for tenant, place in places.items():
        if place not in (None, name):
            remedy = f"`batchwright organizations remove {place} {tenant}` takes it out."
            stop(f"The tenant {tenant} is in the organization {place}; {remedy}", Exit.FAILED)
    _say(found, name, json)


@organizations.command("remove")
def remove(name: _Name, tenants: _Tenants, json: JsonLine = False) -> None:
    """Take tenants out of an organization."""

    async def change(database: Database) -> tuple[list[str], Organization | None]:
        others = [tenant for tenant in tenants if not await database.organizations.remove(name, tenant)]
        return others, await _look(database, name)

    others, found = asked(change)
    if found is not None and others:
        stop(f"Not in the organization {name}: {', '.join(map(repr, others))}.", Exit.FAILED)
    _say(found, name, json)


@organizations.command("delete")
def delete(name: _Name) -> None:
    """Delete an organization; its tenants stay.

    They have their own budgets alone from then on.
    """
    if not asked(lambda database: database.organizations.delete(name)):
        _stop_unknown(name)
    stderr().print(f"Deleted the organization {name}.", markup=False)


async def _all(database: Database) -> list[Organization]:
    found = await spent_by_organizations(database.quotas, datetime.now(UTC).date())
    return [Organization(**row.model_dump(), used=tokens) for row, tokens in found]


async def _look(database: Database, name: str) -> Organization | None:
    return next((found for found in await _all(database) if found.name == name), None)


def _stop_unknown(name: str) -> NoReturn:
    stop(f"There is no organization {name!r}: `batchwright organizations create` makes one.", Exit.FAILED)


def _say(found: Organization | None, name: str, json: bool) -> None:
    if found is None:
        _stop_unknown(name)
    if json:
        return print_json(found)
    tenants = ", ".join(found.tenants) or "none"
    stderr().print(f"{found.name} has {budget(found.tokens_per_day)}. Tenants: {tenants}.", markup=False)
