"""`batchwright keys`: makes, lists, changes and revokes keys, in the database as `tenants` does."""

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import BaseModel

from batchwright.database.pool import Database
from batchwright.database.spent import spent_by_keys
from batchwright.database.tenant_rows import KeyRow
from batchwright.rules.api_keys import Scope, keep, life, new_key, new_key_id
from starter.operate.asking import asked
from starter.options import JsonLine
from starter.output import Exit, print_json, stderr, stdout, stop
from starter.sharing import FirstBudget, NewBudget, budget, used
from starter.tables import columns, local_time, plain

_MOST_CHARACTERS = 200
_Key = Annotated[str, typer.Argument(metavar="KEY", help="Its id, or its prefix bw_...", show_default=False)]
keys = typer.Typer(
    help="Make, list, change and revoke API keys.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class MadeKey(KeyRow):
    """The only time that the whole key is shown."""

    secret_key: str


class Keys(BaseModel):
    keys: list[KeyRow]


@keys.callback()
def commands() -> None:
    """Make, list, change and revoke API keys."""


@keys.command("create")
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose key.", show_default=False)],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What it may do; repeatable. [read and write]", show_default=False),
    ] = None,
    expires_in: Annotated[
        str,
        typer.Option("--expires-in", help="Hours or days, such as 12h or 90d. [never]", show_default=False),
    ] = "",
    label: Annotated[str, typer.Option("--label", help="What it is for.", show_default=False)] = "",
    tokens_per_day: FirstBudget = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="Of the tenant's users. [none]", show_default=False),
    ] = None,
    json: JsonLine = False,
) -> None:
    """Make a key and print it, alone on a line.

    It is shown this once: only a hash is kept.
    """
    key, now = new_key(), datetime.now(UTC)
    row = KeyRow(
        id=new_key_id(),
        tenant=tenant,
        prefix=key.prefix,
        scopes=sorted(set(scope or [Scope.READ, Scope.WRITE]), key=list(Scope).index),
        label=_label(label),
        created_at=now,
        expires_at=_end(now, expires_in),
        tokens_per_day=tokens_per_day,
        user_name=user,
    )
    asked(lambda database: database.api_keys.insert(row, keep(key)))
    if json:
        return print_json(MadeKey(**row.model_dump(exclude_unset=True), secret_key=key.text))
    print(key.text)
    whose = f"{tenant}, the user {user}'s" if user else tenant
    told = f"{row.id} of {whose}: {', '.join(row.scopes)}. It is not shown again."
    stderr().print(told, markup=False, style="dim")


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]", show_default=False)] = None,
    json: JsonLine = False,
) -> None:
    """List the keys of a tenant, or of all.

    Revoked and expired ones too.
    """
    found, spent = asked(lambda database: _listed(database, tenant))
    if json:
        return print_json(Keys(keys=found))
    if not found:
        whose = f"Tenant {tenant!r} has no key" if tenant else "There is no key"
        create = f"`batchwright keys create {tenant or 'TENANT'}` makes one."
        stderr().print(f"{whose}; {create}", markup=False)
        return
    has_users = any(row.user_name for row in found)
    names = ("tenant", *(["user"] if has_users else []), "key", "scopes", "state")
    table = columns(*names, "last used", "tokens today", "label", whole="key")
    for row in found:
        scopes = ",".join(row.scopes)
        table.add_row(
            row.tenant,
            *([row.user_name or ""] if has_users else []),
            f"bw_{row.prefix}_...",
            scopes,
            _state(row),
            local_time(row.last_used_at),
            used(spent[row.tenant, row.id], row.tokens_per_day),
            plain(row.label),
        )
    stdout().print(table)


@keys.command("limit")
def limit(
    key: _Key,
    tokens_per_day: NewBudget,
    json: JsonLine = False,
) -> None:
    """Give a key a budget of tokens, or take it back.

    Workers know it within seconds; lines above it end as `policy_rejected`.
    """

    async def change(database: Database) -> KeyRow | None:
        return await database.api_keys.limit(_named(key), tokens_per_day or None)

    row = _found(asked(change), key)
    if json:
        return print_json(row)
    has = budget(row.tokens_per_day, "no budget of its own")
    stderr().print(f"{_shown(row)} has {has}.", markup=False)


@keys.command("assign")
def assign(
    key: _Key,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="Of its tenant's users.", show_default=False),
    ] = None,
    no_user: Annotated[bool, typer.Option("--no-user", help="Nobody has it any more.")] = False,
    json: JsonLine = False,
) -> None:
    """Give a key to a user, or take it back.

    What it has used today goes with it, from one budget to the other.
    """
    if (user is None) != no_user:
        stop("Name either --user NAME or --no-user.")

    async def change(database: Database) -> KeyRow | None:
        return await database.api_keys.give(_named(key), user)

    row = _found(asked(change), key)
    if json:
        return print_json(row)
    whose = f"the user {row.user_name}'s" if row.user_name else "no user's"
    stderr().print(f"{_shown(row)} is {whose} now.", markup=False)


@keys.command("revoke")
def revoke(
    key: _Key,
    json: JsonLine = False,
) -> None:
    """Let nobody in with a key any more, within seconds.

    What its batches have not sent yet is refused, line by line. That cannot be taken back.
    """

    async def shut(database: Database) -> KeyRow | None:
        return await database.api_keys.revoke(_named(key), datetime.now(UTC))

    row = _found(asked(shut), key)
    if json:
        return print_json(row)
    stderr().print(f"Revoked {_shown(row)}.", markup=False)


async def _listed(database: Database, tenant: str | None) -> tuple[list[KeyRow], Counter[tuple[str, str]]]:
    """The keys, and the tokens of today by tenants and ids."""
    spent = await spent_by_keys(database.quotas, datetime.now(UTC).date())
    return await database.api_keys.all(tenant), spent


def _shown(row: KeyRow) -> str:
    return f"{row.id} (bw_{row.prefix}_...) of {row.tenant}"


def _found(row: KeyRow | None, key: str) -> KeyRow:
    if row is None:
        stop(f"There is no key {_named(key)!r}; `batchwright keys list` lists them.", Exit.FAILED)
    return row


def _named(key: str) -> str:
    """An id or a prefix, of whatever form it was given in: a whole key is cut, and not repeated anywhere."""
    return key.removeprefix("bw_").partition("_")[0] if key.startswith("bw_") else key


def _label(text: str) -> str:
    if len(text) > _MOST_CHARACTERS or not text.isprintable():
        stop(f"A label has at most {_MOST_CHARACTERS} characters, all of them printable.")
    return text


def _end(now: datetime, text: str) -> datetime | None:
    try:
        return now + life(text) if text else None
    except ValueError as error:
        stop(f"--expires-in: {error}.")
    except OverflowError:
        stop(f"--expires-in: {text} is beyond the calendar; leave it out for a key without an end.")


def _state(row: KeyRow) -> str:
    if row.revoked_at is not None:
        return f"revoked {local_time(row.revoked_at)}"
    if row.expires_at is None:
        return "good"
    is_over = row.expires_at <= datetime.now(UTC)
    return f"{'expired' if is_over else 'good until'} {local_time(row.expires_at)}"
