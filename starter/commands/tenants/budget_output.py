"""Options and texts that all commands for budgets share."""

from typing import Annotated

import typer

from batchwright.contracts.model_registry.price_config import parse_decimal
from batchwright.rules.ids import is_tenant
from batchwright.rules.tenants.quotas import MAX_QUOTA, DailyAmounts
from batchwright.rules.token_costs import amount_text
from batchwright.starter.output import stop

_BUDGET = "Tokens per day in UTC"
_CAP = "Requests in flight at once, over all workers; at least 1 for each."


def _count(least: int, help: str, metavar: str | None = None) -> object:
    """Return a command-line option for a number that is at least `least`. The help shows no default."""
    return typer.Option(min=least, max=MAX_QUOTA, metavar=metavar, help=help, show_default=False)


def _cost(default: str) -> object:
    text = f"Cost per day in UTC, in the currency of the prices. {default}"
    return typer.Option("--cost-per-day", metavar="AMOUNT", help=text, show_default=False)


FirstBudget = Annotated[int | None, _count(1, f"{_BUDGET}. [none]")]
NewBudget = Annotated[int | None, _count(0, f"{_BUDGET}; 0 removes the budget.")]
FirstCostBudget = Annotated[str | None, _cost("[none]")]
NewCostBudget = Annotated[str | None, _cost("0 removes the budget.")]
FirstCap = Annotated[int | None, _count(1, f"{_CAP} [no cap]", "N")]
NewCap = Annotated[int | None, _count(0, f"{_CAP} 0 removes the cap.", "N")]


def check_name(name: str, owner: str) -> None:
    """Check the name of a tenant or group. If it is not valid, end the command with an error.

    Args:
        owner: owner of the name, as text for the error message, such as "a tenant's".
    """
    if not is_tenant(name):
        stop(
            f"{name!r} cannot be {owner} name: 1 to 64 letters, digits, '.', '_' or '-', the first of "
            "them a letter or digit."
        )


def checked_cost(text: str | None) -> str | None:
    """Check a cost budget that the user has given, and return it as decimal text; None if `text` is None.

    If the text is not a valid number, the command ends with an error.
    """
    try:
        return None if text is None else parse_decimal(text)
    except ValueError as problem:
        stop(f"--cost-per-day: {problem}, but it is {text!r}.")


def budget_text(budget: DailyAmounts, fallback: str = "no budget") -> str:
    """Return a budget as text, such as `500 tokens and a cost of 2.5 a day`.

    If the budget limits neither tokens nor cost, return `fallback`.
    """
    parts = [f"{budget.tokens} tokens"] if budget.tokens else []
    parts += [f"a cost of {amount_text(budget.cost)}"] if budget.cost else []
    return f"{' and '.join(parts)} a day" if parts else fallback


def usage_texts(used: DailyAmounts, budget: DailyAmounts) -> tuple[str, str]:
    """Return the tokens and the cost that were used today, each as text.

    A text is `500 of 1000`, or only `500` if there is no budget.
    """
    cost = amount_text(used.cost)
    return (
        f"{used.tokens} of {budget.tokens}" if budget.tokens else str(used.tokens),
        f"{cost} of {amount_text(budget.cost)}" if budget.cost else cost,
    )


def id_or_prefix(key: str) -> str:
    """Return `<prefix>` if `key` is a whole API key `bw_<prefix>_<secret>`.

    If `key` is the id or the prefix of an API key, return `key` unchanged.
    """
    return key.removeprefix("bw_").partition("_")[0] if key.startswith("bw_") else key


def without_secret(key: str) -> str:
    """Return `bw_<prefix>` if `key` is a whole API key `bw_<prefix>_<secret>`, for messages.

    If `key` is the id or the prefix of an API key, return `key` unchanged.
    """
    return f"bw_{id_or_prefix(key)}" if key.startswith("bw_") else key
