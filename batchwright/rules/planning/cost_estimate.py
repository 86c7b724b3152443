"""Estimate the tokens and the cost of a batch from its input, before anything is sent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from batchwright.contracts.api_objects.estimates import EstimatedCost, EstimateObject, ModelEstimateObject
from batchwright.contracts.api_objects.openai import BatchError, BatchErrors
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.terms import Endpoint
from batchwright.rules.input.input_validator import CheckedLine, InputValidator
from batchwright.rules.input.line_rules import RejectedRequest
from batchwright.rules.input.validation_errors import ValidationCode
from batchwright.rules.planning.request_work import answers, estimate_tokens, output_limit, prompt_bytes
from batchwright.rules.results.token_usage import Tokens
from batchwright.rules.token_costs import UnitPrices, amount_text

_WITHOUT_OUTPUT = frozenset({Endpoint.EMBEDDINGS, Endpoint.MODERATIONS, Endpoint.SCORE, Endpoint.RERANK})


class ModelLoad(Struct):
    """The number of lines of one model in an input, and the sums of their tokens.

    Attributes:
        lines: number of lines.
        input_tokens: estimated tokens of all prompts.
        limited_output: maximum number of output tokens of all lines that are not in `unlimited`.
        unlimited: number of lines whose maximum number of output tokens is unknown.
    """

    lines: int = 0
    input_tokens: int = 0
    limited_output: int = 0
    unlimited: int = 0

    @property
    def most_output(self) -> int | None:
        """Maximum number of output tokens of all lines together; None if it is unknown for one line."""
        return None if self.unlimited else self.limited_output


class OutputHistory(NamedTuple):
    """The number of requests of one model in earlier batches, and the sum of their output tokens."""

    requests: int
    output_tokens: int


class InputEstimator:
    """A counter of the lines and tokens of each model in an input. It also validates the input.

    It is not thread-safe.

    Args:
        endpoint: endpoint of the batch.
        validator: validates the input. It has not read anything yet.
        canonical: function that returns the registered name of a model. Its argument is the model's name in a
            line, which may be an alias, or None if the line names no model.
        max_models: maximum number of models. An input with more models gets an error.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        validator: InputValidator,
        canonical: Callable[[str | None], str],
        max_models: int,
    ) -> None:
        self._validator = validator
        self.errors = validator.errors
        self._has_output = endpoint not in _WITHOUT_OUTPUT
        self._canonical, self._max_models = canonical, max_models
        self.models: dict[str, ModelLoad] = {}

    @property
    def lines(self) -> int:
        return self._validator.total

    def feed(self, piece: bytes) -> None:
        """Read `piece`, the next bytes of the input.

        Lines beyond the maximum number of lines of a batch are ignored.
        """
        if not self._validator.is_full:
            self._add(self._validator.feed(piece))

    def finish(self) -> None:
        self._add(self._validator.finish())

    def _add(self, checked: Iterator[CheckedLine]) -> None:
        for line, request in checked:
            if isinstance(request, RejectedRequest):
                continue  # it fails without being sent
            model = self._canonical(request.model)
            load = self.models.get(model)
            if load is None:
                if len(self.models) == self._max_models:
                    most = self._max_models
                    message = f"The batch names more than {most} models. Split it into several batches."
                    self.errors.add(
                        ValidationCode.TOO_MANY_MODELS, message, param="body.model", line=line.number
                    )
                    continue
                load = self.models[model] = ModelLoad()
            load.lines += 1
            load.input_tokens += estimate_tokens(request.body, prompt_bytes(request.body))
            if self._has_output:
                limit, count = output_limit(request.body), answers(request.body)
                if limit is None or count is None:
                    load.unlimited += 1
                else:
                    load.limited_output += limit * count


def estimate_object(
    read: InputEstimator,
    prices: Mapping[str, PriceConfig],
    history: Mapping[str, OutputHistory],
    refused: Mapping[str, str],
) -> EstimateObject:
    """Return the estimate of an input's tokens and cost, as clients see it.

    Args:
        read: the estimator, after it has read the whole input.
        prices: prices by model. A model without a price gets no estimate of its cost.
        history: earlier requests by model, for the expected number of output tokens.
        refused: error codes by model, for models whose lines would fail without being sent.
    """
    models: list[ModelEstimateObject] = []
    totals = list[tuple[int | None, int | None]]()
    for model, load in sorted(read.models.items()):
        most = load.most_output
        expected = _expected_output(load, history.get(model))
        cost = None
        if model in prices and model not in refused:
            amounts = (_amount(load, expected, prices[model]), _amount(load, most, prices[model]))
            totals.append(amounts)
            cost = _cost(*amounts, prices[model].currency)
        models.append(
            ModelEstimateObject(
                model=model,
                lines=load.lines,
                input_tokens=load.input_tokens,
                output_tokens=expected,
                max_output_tokens=most,
                cost=cost,
                error=refused.get(model),
            )
        )
    currency = next((each.cost.currency for each in models if each.cost is not None), "")
    errors = [BatchError(**error.model_dump()) for error in read.errors.as_list()]
    return EstimateObject(
        lines=read.lines,
        input_tokens=sum(load.input_tokens for load in read.models.values()),
        output_tokens=_sum([each.output_tokens for each in models]),
        max_output_tokens=_sum([each.max_output_tokens for each in models]),
        cost=_cost(_sum([low for low, _ in totals]), _sum([most for _, most in totals]), currency)
        if totals
        else None,
        models=models,
        errors=BatchErrors(data=errors) if errors else None,
    )


def _expected_output(load: ModelLoad, known: OutputHistory | None) -> int | None:
    """Return how many output tokens the lines of a model probably need.

    The estimate is the mean of the model's earlier requests, multiplied by the number of lines. It is at most
    `load.most_output`. If there are no earlier requests, return `load.most_output`, which may be None.
    """
    most = load.most_output
    if known is None or not known.requests:
        return most
    expected = -(-known.output_tokens * load.lines // known.requests)
    return expected if most is None else min(expected, most)


def _amount(load: ModelLoad, output: int | None, prices: PriceConfig) -> int | None:
    if output is None:
        return None
    return UnitPrices.of(prices).cost(Tokens(load.input_tokens, 0, output), load.lines)


def _cost(expected: int | None, most: int | None, currency: str) -> EstimatedCost:
    return EstimatedCost(
        currency=currency,
        expected=None if expected is None else amount_text(expected),
        at_most=None if most is None else amount_text(most),
    )


def _sum(parts: Sequence[int | None]) -> int | None:
    """Return the sum of `parts`; None if one of them is None."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
