"""What commands say of those who share a budget of tokens: organizations, and users."""

from typing import Annotated

import typer

from batchwright.rules.ids import is_tenant
from batchwright.rules.quotas import MOST
from starter.output import stop

FirstBudget = Annotated[
    int | None, typer.Option(min=1, max=MOST, help="Its budget of a day in UTC. [none]", show_default=False)
]
NewBudget = Annotated[
    int, typer.Option(min=0, max=MOST, help="Of a day in UTC; 0: no budget.", show_default=False)
]


def check_name(name: str, whose: str) -> None:
    """Ends the command unless it can be one, of a tenant, an organization or a user."""
    if not is_tenant(name):
        stop(
            f"{name!r} cannot be {whose} name: 1 to 64 letters, digits, '.', '_' or '-', the first of "
            "them a letter or digit."
        )


def budget(tokens_per_day: int | None, none: str = "no budget") -> str:
    return f"{tokens_per_day} tokens a day" if tokens_per_day else none


def used(tokens: int, tokens_per_day: int | None) -> str:
    """Of today."""
    return f"{tokens} of {tokens_per_day}" if tokens_per_day else str(tokens)
