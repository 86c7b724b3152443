"""Prices of a model, and decimal numbers that keep every digit."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from batchwright.contracts.model_registry.config_base import RegistryEntry

MAX_PLACES = 6
_LARGEST = 1_000_000_000
_MAX_TEXT = 40


def parse_decimal(value: object) -> str:
    """Return the number `value` as decimal text in its shortest form, such as `0.5`. No digit is rounded.

    Raises:
        ValueError: `value` is not a number from 0 to 1,000,000,000 with at most 6 decimal places.
    """
    problem = f"it must be a number from 0 to {_LARGEST} with at most {MAX_PLACES} decimal places"
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(problem)
    if isinstance(value, str) and (len(value) > _MAX_TEXT or not value.isascii() or "_" in value):
        raise ValueError(problem)
    try:
        number = Decimal(str(value))
    except (InvalidOperation, ValueError):  # an integer of thousands of digits has no text
        raise ValueError(problem) from None
    if not number.is_finite() or not 0 <= number <= _LARGEST or number != round(number, MAX_PLACES):
        raise ValueError(problem)
    return decimal_text(number)


def parse_max_cost(value: object) -> str:
    """Return the maximum cost `value` of a batch as decimal text in its shortest form, such as `0.5`.

    Raises:
        ValueError: `value` is not a number above 0 and up to 1,000,000,000 with at most 6 decimal places.
    """
    try:
        amount = parse_decimal(value)
    except ValueError:
        amount = "0"
    if amount == "0":
        raise ValueError(
            f"it must be a number above 0 and up to {_LARGEST} with at most {MAX_PLACES} decimal places"
        )
    return amount


def decimal_text(number: Decimal) -> str:
    """Return a decimal number as text, without an exponent and without zeros at the end."""
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("", "-0") else text


DecimalText = Annotated[
    str,
    BeforeValidator(parse_decimal),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": _LARGEST},
                {"type": "string", "pattern": r"^\d{1,10}(\.\d{1,6})?$"},
            ]
        }
    ),
]


class PriceConfig(RegistryEntry):
    """Prices of one model. All models of a deployment have the same currency.

    The token prices are per million tokens. Cached input tokens cost `cached_input` instead of `input`.
    """

    currency: str = Field(
        default="USD",
        pattern=r"^[A-Z]{3}$",
        description="currency of the prices, as in ISO 4217; it is the same for all models",
    )
    input: DecimalText = Field(default="0", description="price of a million input tokens")
    cached_input: DecimalText | None = Field(
        default=None,
        description="price of a million input tokens that the backend reports as cached; unset: `input`",
    )
    output: DecimalText = Field(default="0", description="price of a million output tokens")
    request: DecimalText = Field(default="0", description="price of a line that succeeds, besides its tokens")


def describe_mixed_currencies(prices: Mapping[str, PriceConfig]) -> str:
    """Return a message that names two models whose prices have different currencies.

    Return "" if the prices of all models have the same currency.

    Args:
        prices: prices by model.
    """
    names = sorted(prices)
    for name in names[1:]:
        one, other = prices[names[0]].currency, prices[name].currency
        if one != other:
            return (
                f"the prices of {names[0]!r} are in {one}, and those of {name!r} are in {other}: "
                "use one currency for all models"
            )
    return ""
