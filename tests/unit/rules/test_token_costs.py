"""Prices, and the cost of tokens and requests."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from batchwright.contracts.model_registry.price_config import (
    PriceConfig,
    describe_mixed_currencies,
    parse_max_cost,
)
from batchwright.contracts.temporal_payloads.batch import ModelUsage
from batchwright.contracts.terms import Usage
from batchwright.rules.results.token_usage import total_usage
from batchwright.rules.token_costs import UnitPrices, amount_of, amount_text, batch_cost, total_cost

PRICES = PriceConfig.model_validate(
    {"input": 0.15, "cached_input": "0.075", "output": "0.6", "request": 0.001}
)


@pytest.mark.parametrize(
    "price",
    [
        -1,
        "-0.1",
        "abc",
        "",
        None,
        True,
        float("nan"),
        float("inf"),
        "1e-7",
        0.1234567,
        10**10,
        "1" * 5000,
        [],
    ],
)
def test_a_price_that_is_negative_no_number_or_too_precise_is_rejected(price: object) -> None:
    with pytest.raises(
        ValidationError, match="it must be a number from 0 to 1000000000 with at most 6 decimal"
    ):
        PriceConfig.model_validate({"input": price})


@pytest.mark.parametrize(
    ("given_price", "text"), [(0.1, "0.1"), ("1.50", "1.5"), (3, "3"), ("0", "0"), (1e-6, "0.000001")]
)
def test_prices_keep_every_digit(given_price: object, text: str) -> None:
    assert PriceConfig.model_validate({"output": given_price}).output == text


def test_cached_tokens_cost_their_own_price_and_each_request_its_price() -> None:
    used = ModelUsage(
        model="m", requests=2, input_tokens=1_000_000, cached_tokens=400_000, output_tokens=500_000
    )
    cost = UnitPrices.of(PRICES).cost(used, used.requests)
    assert amount_text(cost) == "0.422"  # 0.6 * 0.15 + 0.4 * 0.075 + 0.5 * 0.6 + 2 * 0.001


def test_cached_tokens_without_their_own_price_cost_as_much_as_others() -> None:
    prices = UnitPrices.of(PriceConfig(input="2"))
    assert prices.cost(Usage(input_tokens=10, cached_tokens=4)) == prices.cost(Usage(input_tokens=10))


counts = st.integers(0, 2**32 - 1)
usages = st.builds(Usage, input_tokens=counts, output_tokens=counts)


@given(st.lists(usages, max_size=20))
def test_the_cost_of_all_lines_is_exactly_the_sum_of_the_costs_of_each(lines: list[Usage]) -> None:
    prices = UnitPrices.of(PRICES)
    together = prices.cost(total_usage(lines), len(lines))
    assert together == sum(prices.cost(line) for line in lines)


@given(st.decimals(0, 10**12, places=12))
def test_amounts_have_a_text_without_rounding_or_exponent(amount: Decimal) -> None:
    text = amount_text(amount_of(str(amount)))
    assert Decimal(text) == amount
    assert "E" not in text
    assert text == "0" or not text.startswith(".")


def test_the_cost_of_a_batch_names_the_models_without_prices() -> None:
    usage = [
        ModelUsage(model="a", requests=1, input_tokens=10),
        ModelUsage(model="b", requests=1, input_tokens=10),
    ]
    cost = batch_cost(usage, {"a": PriceConfig(currency="EUR", input="1")}, final=True)
    assert cost is not None
    assert (cost.amount, cost.currency, cost.final) == ("0.00001", "EUR", True)
    assert [(each.model, each.amount) for each in cost.models] == [("a", "0.00001"), ("b", None)]
    assert total_cost(usage, {"a": PriceConfig(input="1")}) == amount_of("0.00001")


def test_a_batch_without_prices_has_no_cost_and_one_without_results_costs_nothing() -> None:
    assert batch_cost([], {}, final=True) is None
    cost = batch_cost([], {"a": PRICES}, final=False)
    assert cost is not None
    assert (cost.amount, [each.amount for each in cost.models]) == ("0", ["0"])


@pytest.mark.parametrize(("value", "text"), [("2.50", "2.5"), (0.000001, "0.000001"), (10**9, "1000000000")])
def test_the_maximum_cost_of_a_batch_is_a_number_above_0(value: object, text: str) -> None:
    assert parse_max_cost(value) == text


@pytest.mark.parametrize("value", [0, "0.0", -1, "free", None, True, 10**9 + 1, "0.0000001"])
def test_another_maximum_cost_is_refused_with_the_allowed_range(value: object) -> None:
    with pytest.raises(ValueError, match="a number above 0 and up to 1000000000 with at most 6 decimal"):
        parse_max_cost(value)


def test_two_models_with_different_currencies_are_named_and_one_currency_is_no_problem() -> None:
    euro, dollar = PriceConfig(currency="EUR"), PriceConfig(currency="USD")
    assert describe_mixed_currencies({"b": euro, "c": dollar, "a": euro}) == (
        "the prices of 'a' are in EUR, and those of 'c' are in USD: use one currency for all models"
    )
    assert describe_mixed_currencies({"b": dollar, "a": euro}).startswith("the prices of 'a' are in EUR")
    assert describe_mixed_currencies({"b": euro, "a": euro}) == describe_mixed_currencies({}) == ""
