"""What is said of those who share a budget of tokens: their names, how much it is, and who is in it."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter

from api.bodies import check_text, integer_of, wrong_type
from api.errors import invalid_value
from batchwright.rules.ids import is_tenant
from batchwright.rules.quotas import MOST

MOST_IN_ONE = 1_000
NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Budget = Annotated[int, Field(ge=0, le=MOST)]
_LIST = TypeAdapter(list[object])


def checked_name(name: str, param: str) -> str:
    """Raises ApiError unless it can be one, of a tenant, an organization or a user."""
    if not is_tenant(name):
        message = (
            f"Invalid value for '{param}': expected 1 to 64 letters, digits, '.', '_' or '-', the first of "
            "them a letter or digit."
        )
        raise invalid_value(param, message)
    return name


def budget_of(fields: Mapping[str, object]) -> int | None:
    """`tokens_per_day`; None: there is to be none. Raises ApiError."""
    name = "tokens_per_day"
    if fields.get(name) is None:
        return None
    budget = integer_of(fields, name)
    if not 0 <= budget <= MOST:
        message = f"Invalid value for '{name}': expected 0, for no budget, to {MOST}, but got {budget}."
        raise invalid_value(name, message)
    return budget or None


def texts_of(fields: Mapping[str, object], name: str) -> Sequence[str]:
    """A list of texts, empty where it is not there. Raises ApiError."""
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise wrong_type(name, "an array", value)
    items = _LIST.validate_python(value)
    if len(items) > MOST_IN_ONE:
        raise invalid_value(name, f"Invalid value for '{name}': expected at most {MOST_IN_ONE} names.")
    return [check_text(item, f"{name}[{at}]") for at, item in enumerate(items)]
