"""Validates budgets per day: names of tenants and budget groups, amounts, and lists of members."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter

from batchwright.api.errors import invalid_value
from batchwright.api.schemas.json_body import check_text, required_integer, wrong_type
from batchwright.contracts.model_registry.price_config import parse_decimal
from batchwright.rules.ids import is_tenant
from batchwright.rules.tenants.quotas import MAX_QUOTA

MAX_MEMBERS = 1_000
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
TokensPerDay = Annotated[int, Field(ge=0, le=MAX_QUOTA)]
_MAX_SHOWN_CHARACTERS = 40  # maximum characters of a wrong value in an error message
_LIST = TypeAdapter(list[object])


def checked_name(name: str, param: str) -> str:
    """Return `name` if it is a valid name of a tenant or budget group.

    Raises:
        ApiError: the name is not valid. The error is about the parameter `param`.
    """
    if not is_tenant(name):
        message = (
            f"Invalid value for '{param}': expected 1 to 64 letters, digits, '.', '_' or '-', the first of "
            "them a letter or digit."
        )
        raise invalid_value(param, message)
    return name


def tokens_per_day_of(fields: Mapping[str, object]) -> int | None:
    """Return the field `tokens_per_day`. Return None (no budget) if the field is null, missing or 0.

    Raises:
        ApiError: the value is not an integer in the allowed range.
    """
    name = "tokens_per_day"
    if fields.get(name) is None:
        return None
    budget = required_integer(fields, name)
    if not 0 <= budget <= MAX_QUOTA:
        message = f"Invalid value for '{name}': expected 0, for no budget, to {MAX_QUOTA}, but got {budget}."
        raise invalid_value(name, message)
    return budget or None


def cost_per_day_of(fields: Mapping[str, object]) -> str | None:
    """Return the field `cost_per_day` as decimal text; None if the field is null or missing.

    The text `0` means no budget. If the field is null, a tenant gets the default budget, and a budget group
    gets no budget. If the field is missing, existing budgets stay unchanged.

    Raises:
        ApiError: the value is not a number in the allowed range.
    """
    name = "cost_per_day"
    if fields.get(name) is None:
        return None
    try:
        return parse_decimal(fields[name])
    except ValueError as problem:
        shown = repr(fields[name])[:_MAX_SHOWN_CHARACTERS]
        raise invalid_value(name, f"Invalid value for '{name}': {problem}, but it is {shown}.") from None


def text_list_of(fields: Mapping[str, object], name: str) -> Sequence[str]:
    """Return the field `name`, which must be a list of strings; empty if the field is missing.

    Raises:
        ApiError: the value is not a list of strings, or has more than `MAX_MEMBERS` items.
    """
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise wrong_type(name, "an array", value)
    items = _LIST.validate_python(value)
    if len(items) > MAX_MEMBERS:
        raise invalid_value(name, f"Invalid value for '{name}': expected at most {MAX_MEMBERS} names.")
    return [check_text(item, f"{name}[{at}]") for at, item in enumerate(items)]
