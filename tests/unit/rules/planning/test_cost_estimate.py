"""Estimates of the tokens and the cost of an input."""

import json

import pytest

from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.input.input_validator import InputValidator
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.planning.cost_estimate import InputEstimator, OutputHistory, estimate_object

PRICES = {"a": PriceConfig(input="1", output="2", request="0.5")}


def a_line(
    number: int, model: str = "a", endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS, **body: object
) -> bytes:
    prompt = (
        {"input": "x" * 38}
        if endpoint is Endpoint.EMBEDDINGS
        else {"messages": [{"role": "user", "content": ""}]}
    )
    return (
        json.dumps({"custom_id": f"c-{number}", "body": {"model": model, **prompt, **body}}).encode() + b"\n"
    )


def estimate(
    *lines: bytes,
    prices: dict[str, PriceConfig] = PRICES,
    history: dict[str, OutputHistory] | None = None,
    refused: dict[str, str] | None = None,
    endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS,
) -> EstimateObject:
    validator = InputValidator(endpoint, Profile.RELAXED, InputLimits(max_lines=5))
    estimator = InputEstimator(endpoint, validator, lambda name: name or "", 2)
    for line in lines:
        estimator.feed(line)
    estimator.finish()
    return estimate_object(estimator, prices, history or {}, refused or {})


def test_limits_of_output_tokens_give_the_most_that_a_batch_can_cost() -> None:
    found = estimate(a_line(1, max_tokens=1000), a_line(2, max_completion_tokens=500))
    tokens = found.input_tokens
    assert (found.lines, found.output_tokens, found.max_output_tokens) == (2, 1500, 1500)
    assert found.cost is not None
    assert found.cost.at_most == found.cost.expected == f"1.00{3000 + tokens:04}".rstrip("0")


def test_earlier_batches_tell_how_much_output_is_expected() -> None:
    history = {"a": OutputHistory(requests=10, output_tokens=1000)}
    found = estimate(a_line(1, max_tokens=5000), a_line(2, max_tokens=5000), history=history)
    assert (found.output_tokens, found.max_output_tokens) == (200, 10_000)
    assert found.cost is not None
    assert found.cost.expected is not None
    assert found.cost.at_most is not None
    assert float(found.cost.expected) < float(found.cost.at_most)


def test_a_line_without_a_limit_makes_the_most_unknown() -> None:
    found = estimate(a_line(1, max_tokens=10), a_line(2))
    assert (found.output_tokens, found.max_output_tokens) == (None, None)
    assert found.cost is not None
    assert (found.cost.expected, found.cost.at_most) == (None, None)


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"n": 8}, 80),
        ({"n": None, "best_of": None}, 10),
        ({"n": 2, "best_of": 5}, 50),
        ({"prompt": ["a", "b", "c"], "n": 2}, 60),
        ({"prompt": [[1, 2], [3]]}, 20),
        ({"prompt": [1, 2, 3]}, 10),
        ({"prompt": []}, 10),
        ({"n": "8"}, None),
        ({"n": 0}, None),
    ],
)
def test_every_answer_to_every_prompt_can_have_as_many_tokens_as_the_limit(
    body: dict[str, object], most: int | None
) -> None:
    request = {"model": "a", "prompt": "", "max_tokens": 10, **body}
    line = json.dumps({"custom_id": "c-1", "body": request}).encode() + b"\n"
    found = estimate(line, endpoint=Endpoint.COMPLETIONS)
    assert (found.lines, found.max_output_tokens) == (1, most)


def test_embeddings_have_no_output() -> None:
    line = a_line(1, endpoint=Endpoint.EMBEDDINGS)
    found = estimate(line, endpoint=Endpoint.EMBEDDINGS)
    assert (found.input_tokens, found.output_tokens) == (10, 0)
    assert found.cost is not None
    assert found.cost.at_most == "0.50001"


def test_models_without_prices_and_lines_that_would_not_be_sent_cost_nothing() -> None:
    found = estimate(a_line(1), a_line(2, "b"), refused={"a": "model_not_found"})
    assert found.cost is None
    assert [(each.model, each.cost, each.error) for each in found.models] == [
        ("a", None, "model_not_found"),
        ("b", None, None),
    ]


def test_errors_of_the_input_are_listed_as_in_a_batch() -> None:
    found = estimate(b"{}\n", a_line(1), a_line(2, "b"), a_line(3, "c"))
    assert found.errors is not None
    assert {error.code for error in found.errors.data} == {"missing_required_parameter", "too_many_models"}
    assert [each.model for each in found.models] == ["a", "b"]


def test_lines_above_the_limit_are_not_read() -> None:
    found = estimate(*(a_line(number) for number in range(50)))
    assert found.errors is not None
    assert [error.code for error in found.errors.data] == ["too_many_tasks"]
    assert found.models[0].lines == 5
