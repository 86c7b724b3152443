"""Options and texts that all commands for token budgets share."""

from typing import Annotated

import typer

from batchwright.rules.ids import is_tenant
from batchwright.rules.quotas import MAX_QUOTA
from batchwright.starter.output import stop

_BUDGET = "Tokens per day in UTC"
_CAP = "Requests in flight at once, over all workers; at least 1 for each."


def _count(least: int, help: str, metavar: str | None = None) -> object:
    """Return a command-line option for a number of at least `least`. The help does not show its default."""
    return typer.Option(min=least, max=MAX_QUOTA, metavar=metavar, help=help, show_default=False)


FirstBudget = Annotated[int | None, _count(1, f"{_BUDGET}. [none]")]
NewBudget = Annotated[int, _count(0, f"{_BUDGET}; 0 removes the budget.")]
FirstCap = Annotated[int | None, _count(1, f"{_CAP} [no cap]", "N")]
NewCap = Annotated[int | None, _count(0, f"{_CAP} 0 removes the cap.", "N")]


def check_name(name: str, owner: str) -> None:
    """Check the name of a tenant or group. If it is not valid, end the command with an error.

    Args:
        owner: the owner of the name, for the error message, such as "a tenant's".
    """
    if not is_tenant(name):
        stop(
            f"{name!r} cannot be {owner} name: 1 to 64 letters, digits, '.', '_' or '-', the first of "
            "them a letter or digit."
        )


def budget_text(tokens_per_day: int | None, none: str = "no budget") -> str:
    return f"{tokens_per_day} tokens a day" if tokens_per_day else none


def usage_text(tokens: int, tokens_per_day: int | None) -> str:
    """Return the tokens used today as text, such as `500 of 1000`; only the number if there is no budget."""
    return f"{tokens} of {tokens_per_day}" if tokens_per_day else str(tokens)


def id_or_prefix(key: str) -> str:
    """Return the prefix of a full key `bw_...`. Return an id or a prefix unchanged.

    Messages must not contain the secret part of a full key.
    """
    return key.removeprefix("bw_").partition("_")[0] if key.startswith("bw_") else key
