"""Compute the cost of requests: their tokens times the prices of their model. All amounts are exact integers.

Amounts are counted in 10^-12 of the currency's unit (such as 10^-12 dollars). A price per million tokens has
at most six decimal places. So the price of one token is a whole number of these small units.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple, Self

from batchwright.contracts.api_objects.openai import BatchCost, ModelCost
from batchwright.contracts.model_registry.price_config import MAX_PLACES, PriceConfig
from batchwright.contracts.temporal_payloads.batch import ModelUsage
from batchwright.rules.results.token_usage import TokenUsage

_UNIT_PLACES = 12
AMOUNT_PER_UNIT = 10**_UNIT_PLACES
_TOKENS_PER_PRICE = 10**MAX_PLACES


class UnitPrices(NamedTuple):
    """Prices of one token and of one request of a model, in 10^-12 of the currency's unit."""

    input: int
    cached_input: int
    output: int
    request: int

    @classmethod
    def of(cls, prices: PriceConfig) -> Self:
        cached = prices.input if prices.cached_input is None else prices.cached_input
        return cls(
            _per_million(prices.input),
            _per_million(cached),
            _per_million(prices.output),
            amount_of(prices.request),
        )

    def cost(self, usage: TokenUsage, requests: int = 1) -> int:
        """Return the cost of successful requests, in 10^-12 of the currency's unit.

        Args:
            usage: tokens of all these requests together.
            requests: number of the requests.
        """
        return (
            (usage.input_tokens - usage.cached_tokens) * self.input
            + usage.cached_tokens * self.cached_input
            + usage.output_tokens * self.output
            + requests * self.request
        )


def amount_of(number: str | Decimal) -> int:
    """Convert an amount of money to an exact integer in 10^-12 of the currency's unit.

    Example: `0.5` (such as 0.5 dollars) becomes 500,000,000,000. The number must have at most 12 decimal
    places.
    """
    return int(Decimal(number).scaleb(_UNIT_PLACES))


def amount_text(amount: int) -> str:
    """Convert an integer amount to exact decimal text in the currency's unit, such as `0.00125`."""
    whole, fraction = divmod(amount, AMOUNT_PER_UNIT)
    return f"{whole}.{fraction:0{_UNIT_PLACES}}".rstrip("0").rstrip(".")


def model_cost(usage: ModelUsage, prices: Mapping[str, PriceConfig]) -> int | None:
    """Return the cost of all requests of one model, in 10^-12 of the currency's unit.

    Return None if `prices` does not have the model.
    """
    own = prices.get(usage.model)
    return None if own is None else UnitPrices.of(own).cost(usage, usage.requests)


def total_cost(usages: Iterable[ModelUsage], prices: Mapping[str, PriceConfig]) -> int:
    """Return the cost of requests of several models, in 10^-12 of the currency's unit.

    Models without a price cost nothing.
    """
    return sum(model_cost(usage, prices) or 0 for usage in usages)


def batch_cost(
    usages: Iterable[ModelUsage], prices: Mapping[str, PriceConfig], *, final: bool
) -> BatchCost | None:
    """Return the cost of a batch as clients see it; None if none of its models has prices.

    Args:
        usages: number of requests and tokens of each model.
        prices: prices by model.
        final: False if requests or tokens may still be added.
    """
    if not prices:
        return None
    used = {usage.model: usage for usage in usages}
    amounts = {
        model: model_cost(used.get(model) or ModelUsage(model=model), prices)
        for model in sorted(used.keys() | prices.keys())
    }
    return BatchCost(
        amount=amount_text(sum(amount or 0 for amount in amounts.values())),
        currency=next(iter(prices.values())).currency,
        final=final,
        models=[
            ModelCost(model=model, amount=None if amount is None else amount_text(amount))
            for model, amount in amounts.items()
        ],
    )


def _per_million(price: str) -> int:
    return amount_of(price) // _TOKENS_PER_PRICE
