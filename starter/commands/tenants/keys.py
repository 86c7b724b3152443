"""`batchwright keys`: creates, lists, changes and revokes API keys, directly in the database."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import BaseModel, JsonValue

from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.contracts.terms import GroupKind
from batchwright.database.database import Database
from batchwright.database.records import ApiKeyRow
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.database.tables.tenants.daily_usage import UsageOfDay
from batchwright.rules.tenants.api_keys import hash_secret, new_key, new_key_id, parse_lifetime
from batchwright.rules.tenants.quotas import BudgetGroup
from batchwright.rules.tenants.scopes import Scope
from batchwright.starter.commands.tenants.budget_output import (
    FirstBudget,
    FirstCap,
    FirstCostBudget,
    NewBudget,
    NewCap,
    NewCostBudget,
    budget_text,
    checked_cost,
    id_or_prefix,
    usage_texts,
    without_secret,
)
from batchwright.starter.diagnostics.connections import query_or_stop
from batchwright.starter.options import JsonLine, command_group
from batchwright.starter.output import (
    column_table,
    escaped,
    local_time,
    print_json,
    stderr,
    stdout,
    stop,
)
from batchwright.starter.recorded_command import CommandRefused, recorded_command

_MAX_LABEL_CHARACTERS = 200
_AUDITED_FIELDS = {
    *("scopes", "label", "expires_at", "revoked_at", "tokens_per_day", "cost_per_day", "max_in_flight")
}
_Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Id of the key, or its prefix bw_...", show_default=False)
]
keys = command_group("Create, list, change and revoke API keys.")


class KeyOutput(ApiKeyRow):
    """An API key as the commands print it, with the names of its team and user, if any."""

    team: str | None = None
    user: str | None = None


class CreatedKeyOutput(KeyOutput):
    """A new API key with its secret.

    The secret is shown only once, because the database stores only its hash.
    """

    secret_key: str


class KeysOutput(BaseModel):
    keys: list[KeyOutput]


@keys.callback()
def commands() -> None:
    """Create, list, change and revoke API keys."""


@keys.command("create")
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Tenant of the key.", show_default=False)],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What the key allows; repeatable. [read and write]", show_default=False),
    ] = None,
    expires_in: Annotated[
        str,
        typer.Option("--expires-in", help="Hours or days, such as 12h or 90d. [never]", show_default=False),
    ] = "",
    label: Annotated[str, typer.Option("--label", help="Purpose of the key.", show_default=False)] = "",
    tokens_per_day: FirstBudget = None,
    cost_per_day: FirstCostBudget = None,
    max_in_flight: FirstCap = None,
    team: Annotated[
        str | None,
        typer.Option("--team", metavar="NAME", help="Team of the tenant. [none]", show_default=False),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="User of the tenant. [none]", show_default=False),
    ] = None,
    json: JsonLine = False,
) -> None:
    """Create a key and print it on a line of its own.

    The key is shown only this time, because the database stores only its hash.
    """
    if len(label) > _MAX_LABEL_CHARACTERS or not label.isprintable():
        stop(f"A label has at most {_MAX_LABEL_CHARACTERS} characters, all of them printable.")
    key, now = new_key(), datetime.now(UTC)
    row = ApiKeyRow(
        id=new_key_id(),
        tenant=tenant,
        prefix=key.prefix,
        scopes=sorted(set(scope or [Scope.READ, Scope.WRITE]), key=list(Scope).index),
        label=label,
        created_at=now,
        expires_at=_expiry(now, expires_in),
        tokens_per_day=tokens_per_day,
        cost_per_day=checked_cost(cost_per_day),
        max_in_flight=max_in_flight,
    )
    names = {GroupKind.TEAM: team, GroupKind.USER: user}
    groups = [BudgetGroup(kind, tenant, name) for kind, name in names.items() if name is not None]

    async def insert(database: Database) -> ApiKeyRow:
        await database.api_keys.insert(row, hash_secret(key), groups)
        return row

    _recorded(AuditAction.KEY_CREATE, row.id, insert, tenant)
    if json:
        shown = row.model_dump(exclude_unset=True)
        return print_json(CreatedKeyOutput(**shown, team=team, user=user, secret_key=key.text))
    print(key.text)
    owners = "".join(f", {group.kind} {group.name}" for group in groups)
    message = f"{row.id} of {tenant}{owners}: {', '.join(row.scopes)}. It is not shown again."
    stderr().print(message, markup=False, style="dim")


@keys.command("list")
def list_keys(
    tenant: Annotated[
        str | None, typer.Argument(metavar="TENANT", help="Only keys of this tenant.", show_default=False)
    ] = None,
    json: JsonLine = False,
) -> None:
    """List the keys of one tenant, or of all tenants.

    Revoked and expired keys are included.
    """
    found, usage = query_or_stop(lambda database: _listed(database, tenant))
    if json:
        return print_json(KeysOutput(keys=found))
    if not found:
        subject = f"Tenant {tenant!r} has no key" if tenant else "There is no key"
        create = f"`batchwright keys create {tenant or 'TENANT'}` creates one."
        stderr().print(f"{subject}; {create}", markup=False)
        return
    has_teams, has_users = any(row.team for row in found), any(row.user for row in found)
    has_caps = any(row.max_in_flight for row in found)
    kinds = [*(["team"] if has_teams else []), *(["user"] if has_users else [])]
    used = {row.id: usage.of_key(row.tenant, row.id) for row in found}
    has_costs = any(row.budget.cost or used[row.id].cost for row in found)
    extra = [*(["cost today"] if has_costs else []), *(["in flight"] if has_caps else [])]
    columns = ["tenant", *kinds, "key", "scopes", "state", "last used", "tokens today", *extra, "label"]
    table = column_table(*columns, whole=["key"])
    for row in found:
        scopes, (tokens, cost) = ",".join(row.scopes), usage_texts(used[row.id], row.budget)
        table.add_row(
            row.tenant,
            *([row.team or ""] if has_teams else []),
            *([row.user or ""] if has_users else []),
            f"bw_{row.prefix}_...",
            scopes,
            _state(row),
            local_time(row.last_used_at),
            tokens,
            *([cost] if has_costs else []),
            *([f"{row.max_in_flight or ''}"] if has_caps else []),
            escaped(row.label),
        )
    stdout().print(table)


@keys.command("limit")
def limit(
    key: _Key,
    tokens_per_day: NewBudget = None,
    cost_per_day: NewCostBudget = None,
    max_in_flight: NewCap = None,
    json: JsonLine = False,
) -> None:
    """Set or remove the budgets of a key or its cap on requests in flight.

    If the batches of the key have reached the cap, their other lines wait. If a budget is used up, lines fail
    with `policy_rejected`. Changes take effect within seconds.
    """
    if tokens_per_day is None and cost_per_day is None and max_in_flight is None:
        stop("There is nothing to change: give --tokens-per-day, --cost-per-day or --max-in-flight.")
    cost = checked_cost(cost_per_day)

    async def change(database: Database) -> ApiKeyRow | None:
        return await database.api_keys.limit(
            id_or_prefix(key), tokens_per_day=tokens_per_day, cost_per_day=cost, max_in_flight=max_in_flight
        )

    row = _recorded(AuditAction.KEY_LIMIT, key, change)
    if json:
        return print_json(row)
    has = budget_text(row.budget, "no budget of its own")
    if row.max_in_flight is not None:
        has += f" and at most {row.max_in_flight} requests in flight"
    stderr().print(f"{_shown(row)} has {has}.", markup=False)


@keys.command("revoke")
def revoke(
    key: _Key,
    json: JsonLine = False,
) -> None:
    """Revoke a key permanently. The revocation takes effect within seconds.

    Unsent lines of the key's batches fail. You cannot undo a revocation.
    """
    now, name = datetime.now(UTC), id_or_prefix(key)
    row = _recorded(AuditAction.KEY_REVOKE, key, lambda database: database.api_keys.revoke(name, now))
    if json:
        return print_json(row)
    stderr().print(f"Revoked {_shown(row)}.", markup=False)


async def _listed(database: Database, tenant: str | None) -> tuple[list[KeyOutput], UsageOfDay]:
    """Return the keys of one tenant (None for all tenants), and what each key has used today."""
    usage = UsageOfDay(await database.quotas.daily_usage(datetime.now(UTC).date()))
    groups = await database.budget_groups.all(tenant=tenant)
    names = {(group.kind, key): group.name for group in groups for key in group.members}
    keys = [
        KeyOutput(
            **row.model_dump(),
            team=names.get((GroupKind.TEAM, row.id)),
            user=names.get((GroupKind.USER, row.id)),
        )
        for row in await database.api_keys.all(tenant)
    ]
    return keys, usage


def _shown(row: ApiKeyRow) -> str:
    return f"{row.id} (bw_{row.prefix}_...) of {row.tenant}"


def _recorded(
    action: AuditAction,
    key: str,
    change: Callable[[Database], Awaitable[ApiKeyRow | None]],
    tenant: str = "",
) -> ApiKeyRow:
    """Change a key with `change`, record the change in the audit log, and return the changed key.

    If `change` returns None, the key does not exist, and the command ends with an error.

    Args:
        key: id or prefix of the key, or the whole key.
        tenant: tenant of a new key. Empty for an existing key, whose tenant is looked up.
    """
    name = id_or_prefix(key)

    async def run(database: Database) -> ApiKeyRow:
        async def find() -> ApiKeyRow | None:
            keys = await database.api_keys.all()
            return next((key for key in keys if name in (key.id, key.prefix)), None)

        async def read() -> JsonValue:
            found = await find()
            return None if found is None else found.model_dump(mode="json", include=_AUDITED_FIELDS)

        async def perform() -> ApiKeyRow:
            row = await change(database)
            if row is None:
                message = f"There is no key {without_secret(key)!r}; `batchwright keys list` lists them."
                raise CommandRefused("key_not_found", message)
            return row

        row = await find()
        id, owner = (name, tenant) if row is None else (row.id, row.tenant)
        target = AuditTarget(type=AuditTargetType.KEY, id=id, tenant=owner)
        return await recorded_command(database, action, target, read, perform)

    return query_or_stop(run)


def _expiry(now: datetime, text: str) -> datetime | None:
    try:
        return now + parse_lifetime(text) if text else None
    except ValueError as error:
        stop(f"--expires-in: {error}.")
    except OverflowError:
        stop(f"--expires-in: {text} is beyond the calendar; omit it for a key that never expires.")


def _state(row: ApiKeyRow) -> str:
    if row.revoked_at is not None:
        return f"revoked {local_time(row.revoked_at)}"
    if row.expires_at is None:
        return "valid"
    is_over = row.expires_at <= datetime.now(UTC)
    return f"{'expired' if is_over else 'valid until'} {local_time(row.expires_at)}"
