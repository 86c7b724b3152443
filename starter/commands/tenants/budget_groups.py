"""`batchwright budget-groups`: manages organizations, teams and users that share daily budgets."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, JsonValue

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.contracts.terms import GroupKind
from batchwright.database.database import Database
from batchwright.database.errors import UnknownBudgetGroup
from batchwright.database.records import ApiKeyRow, BudgetGroupRow
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.database.tables.tenants.daily_usage import UsageOfDay
from batchwright.rules.tenants.quotas import BudgetGroup, DailyAmounts
from batchwright.rules.token_costs import amount_of, amount_text
from batchwright.starter.commands.tenants.budget_output import (
    FirstBudget,
    FirstCostBudget,
    NewBudget,
    NewCostBudget,
    budget_text,
    check_name,
    checked_cost,
    id_or_prefix,
    usage_texts,
    without_secret,
)
from batchwright.starter.diagnostics.connections import query_or_stop
from batchwright.starter.options import JsonLine, command_group
from batchwright.starter.output import (
    ExitCode,
    column_table,
    local_time,
    print_json,
    property_table,
    stderr,
    stdout,
    stop,
)
from batchwright.starter.recorded_command import CommandRefused, recorded_command

_Result = TypeVar("_Result")
budget_groups = command_group("Create and change groups that share daily budgets.")
_Kind = Annotated[
    GroupKind, typer.Argument(metavar="KIND", help="organization, team or user.", show_default=False)
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.", show_default=False)]
_Members = Annotated[
    list[str],
    typer.Argument(
        metavar="MEMBER",
        help="Tenants of an organization; keys of a team or user, by id or prefix bw_...",
        show_default=False,
    ),
]
_Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Tenant of the team or user.", show_default=False)
]


class BudgetGroupOutput(BudgetGroupRow):
    """A budget group: tenants or API keys that share daily budgets.

    `tokens_used` and `cost_used` are the totals that all its members have used today.
    """

    tokens_used: int
    cost_used: str

    @property
    def used(self) -> DailyAmounts:
        return DailyAmounts(self.tokens_used, amount_of(self.cost_used))


class BudgetGroupsOutput(BaseModel):
    budget_groups: list[BudgetGroupOutput]


@budget_groups.callback()
def commands() -> None:
    """Create and change groups that share daily budgets of tokens and cost.

    Members of an organization are tenants. Members of a team or a user are API keys of one tenant.
    """


@budget_groups.command("create")
def create(
    kind: _Kind,
    name: _Name,
    tenant: _Tenant = None,
    tokens_per_day: FirstBudget = None,
    cost_per_day: FirstCostBudget = None,
    json: JsonLine = False,
) -> None:
    """Create a group.

    To add members, use `batchwright budget-groups add`.
    """
    check_name(name, "a group's")
    group, cost = _group(kind, tenant, name), checked_cost(cost_per_day)
    cost = None if cost == "0" else cost

    async def make(database: Database) -> BudgetGroupOutput:
        now = datetime.now(UTC)
        if not await database.budget_groups.create(group, tokens_per_day, now, cost_per_day=cost):
            subject = f"Tenant {tenant!r} has" if tenant else "There is"
            article = "an" if kind is GroupKind.ORGANIZATION else "a"
            message = f"{subject} {article} {kind} {name!r} already."
            raise CommandRefused("budget_group_exists", message)
        return await _load(database, group)

    _print(_recorded(AuditAction.BUDGET_GROUP_SET, group, make), json)


@budget_groups.command("list")
def list_groups(
    kind: Annotated[
        GroupKind | None, typer.Option("--kind", help="Only groups of this kind.", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only teams and users of this tenant.", show_default=False)
    ] = None,
    json: JsonLine = False,
) -> None:
    """List budget groups with today's usage, by kind, tenant and name."""
    found = query_or_stop(lambda database: _all(database, kind, tenant))
    if json:
        return print_json(BudgetGroupsOutput(budget_groups=found))
    if not found:
        subject = f"Tenant {tenant!r} has no" if tenant else "There is no"
        remedy = "`batchwright budget-groups create KIND NAME` creates one."
        stderr().print(f"{subject} {kind or 'budget group'}; {remedy}", markup=False)
        return
    table = column_table("kind", "tenant", "name", "tokens today", "cost today", "members")
    for one in found:
        is_organization = one.kind is GroupKind.ORGANIZATION
        members = ", ".join(one.members) if is_organization else f"{len(one.members)} keys"
        table.add_row(one.kind, one.tenant, one.name, *usage_texts(one.used, one.budget), members)
    stdout().print(table)


@budget_groups.command("show")
def show(kind: _Kind, name: _Name, tenant: _Tenant = None, json: JsonLine = False) -> None:
    """Show one group and its members."""
    group = _group(kind, tenant, name)

    async def look(database: Database) -> tuple[BudgetGroupOutput, list[ApiKeyRow]]:
        keys = await database.api_keys.all(group.tenant) if group.tenant else []
        return await _load(database, group), keys

    found, keys = query_or_stop(look)
    if json:
        return print_json(found)
    table = property_table()
    table.add_row(kind, f"{name} of {tenant}" if tenant else name)
    table.add_row("created", local_time(found.created_at))
    used, budget = found.used, found.budget
    tokens, cost = usage_texts(used, budget)
    table.add_row("tokens today", tokens)
    if budget.tokens:
        table.add_row("left", str(max(budget.tokens - used.tokens, 0)))
    table.add_row("cost today", cost)
    if budget.cost:
        table.add_row("left", amount_text(max(budget.cost - used.cost, 0)))
    if kind is GroupKind.ORGANIZATION:
        members = found.members
    else:
        members = [_shown_key(key) for key in keys if key.id in found.members]
    table.add_row("tenants" if kind is GroupKind.ORGANIZATION else "keys", "\n".join(members) or "none")
    stdout().print(table)


@budget_groups.command("limit")
def limit(
    kind: _Kind,
    name: _Name,
    tokens_per_day: NewBudget = None,
    cost_per_day: NewCostBudget = None,
    tenant: _Tenant = None,
    json: JsonLine = False,
) -> None:
    """Set or remove budgets of a group.

    Changes take effect within seconds. If a budget is used up, lines fail with `policy_rejected`.
    """
    if tokens_per_day is None and cost_per_day is None:
        stop("There is nothing to change: give --tokens-per-day or --cost-per-day.")
    group, cost = _group(kind, tenant, name), checked_cost(cost_per_day)

    async def change(database: Database) -> BudgetGroupOutput:
        await database.budget_groups.limit(group, tokens_per_day=tokens_per_day, cost_per_day=cost)
        return await _load(database, group)

    _print(_recorded(AuditAction.BUDGET_GROUP_SET, group, change), json)


@budget_groups.command("add")
def add(kind: _Kind, name: _Name, members: _Members, tenant: _Tenant = None, json: JsonLine = False) -> None:
    """Add tenants to an organization, or keys to a team or user.

    Tokens and cost that the added members used earlier today count towards the group's budgets. A tenant can
    be in only one organization. A key that is in another team or user is removed from that team or user.
    """
    group = _group(kind, tenant, name)
    if kind is GroupKind.ORGANIZATION:
        for member in members:
            check_name(member, "a tenant's")

    async def change(database: Database) -> BudgetGroupOutput:
        await database.budget_groups.add(group, await _member_ids(database, group, members))
        return await _load(database, group)

    _print(_recorded(AuditAction.BUDGET_GROUP_SET, group, change), json)


@budget_groups.command("remove")
def remove(
    kind: _Kind, name: _Name, members: _Members, tenant: _Tenant = None, json: JsonLine = False
) -> None:
    """Remove tenants from an organization, or keys from a team or user."""
    group = _group(kind, tenant, name)

    async def change(database: Database) -> tuple[list[str], BudgetGroupOutput]:
        ids = await _member_ids(database, group, members)
        removed = await database.budget_groups.remove(group, ids)
        return [id for id in ids if id not in removed], await _load(database, group)

    others, found = _recorded(AuditAction.BUDGET_GROUP_SET, group, change)
    if others:
        stop(f"Not in the {kind} {name}: {', '.join(map(repr, others))}.", ExitCode.FAILED)
    _print(found, json)


@budget_groups.command("delete")
def delete(kind: _Kind, name: _Name, tenant: _Tenant = None) -> None:
    """Delete a group and keep its tenants or keys.

    Afterwards, only the budgets of the members themselves apply.
    """
    group = _group(kind, tenant, name)
    _recorded(AuditAction.BUDGET_GROUP_DELETE, group, lambda database: database.budget_groups.delete(group))
    stderr().print(f"Deleted the {kind} {_title(group)}.", markup=False)


def _recorded(
    action: AuditAction, group: BudgetGroup, change: Callable[[Database], Awaitable[_Result]]
) -> _Result:
    """Make a change with `change`, record it in the audit log, and return the result of `change`."""

    async def run(database: Database) -> _Result:
        async def read() -> JsonValue:
            for row in await database.budget_groups.all(group.kind, group.tenant or None):
                if row.group == group:
                    return row.model_dump(include={"tokens_per_day", "cost_per_day", "members"})
            return None

        id = f"{group.kind}/{group.name}"
        target = AuditTarget(type=AuditTargetType.BUDGET_GROUP, id=id, tenant=group.tenant)
        return await recorded_command(database, action, target, read, lambda: change(database))

    return query_or_stop(run)


def _group(kind: GroupKind, tenant: str | None, name: str) -> BudgetGroup:
    """Return the budget group with this kind, tenant and name.

    If `tenant` is missing for a team or user, or is given for an organization, the command ends with an
    error.
    """
    if kind is GroupKind.ORGANIZATION and tenant is not None:
        stop("An organization belongs to no tenant: omit --tenant.")
    if kind is not GroupKind.ORGANIZATION and not tenant:
        stop(f"A {kind} belongs to a tenant: give --tenant NAME.")
    return BudgetGroup(kind, tenant or "", name)


async def _member_ids(database: Database, group: BudgetGroup, members: list[str]) -> list[str]:
    """Return the ids of `members`, as the database stores them.

    For an organization, the members are tenants, and the id of a tenant is its name. For a team or user, the
    members are API keys. Each key is given as its id, as its prefix (the part before the secret), or as the
    whole key. A key that does not exist is returned without its secret.
    """
    if group.kind is GroupKind.ORGANIZATION:
        return members
    ids = {key.prefix: key.id for key in await database.api_keys.all(group.tenant)}
    return [ids.get(id_or_prefix(key), without_secret(key)) for key in members]


async def _all(database: Database, kind: GroupKind | None, tenant: str | None) -> list[BudgetGroupOutput]:
    rows, today = await database.budget_groups.all(kind, tenant), datetime.now(UTC).date()
    usage = UsageOfDay(await database.quotas.daily_usage(today))
    return [
        BudgetGroupOutput(**row.model_dump(), tokens_used=used.tokens, cost_used=amount_text(used.cost))
        for row in rows
        for used in (usage.of_group(row),)
    ]


async def _load(database: Database, group: BudgetGroup) -> BudgetGroupOutput:
    for found in await _all(database, group.kind, group.tenant):
        if found.name == group.name:
            return found
    raise UnknownBudgetGroup(group)


def _shown_key(key: ApiKeyRow) -> str:
    revoked = "" if key.revoked_at is None else f", revoked {local_time(key.revoked_at)}"
    return f"bw_{key.prefix}_...{revoked}"


def _title(group: BudgetGroup) -> str:
    return f"{group.name} of {group.tenant}" if group.tenant else group.name


def _print(found: BudgetGroupOutput, json: bool) -> None:
    if json:
        return print_json(found)
    if found.kind is GroupKind.ORGANIZATION:
        members = f"Tenants: {', '.join(found.members) or 'none'}."
    else:
        members = f"Keys: {len(found.members)}."
    stderr().print(f"{_title(found.group)} has {budget_text(found.budget)}. {members}", markup=False)
