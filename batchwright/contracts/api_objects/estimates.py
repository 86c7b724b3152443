"""Objects of the API that estimate the time and cost of a batch before it is created."""

from typing import Literal

from batchwright.contracts.api_objects.openai import ApiObject, BatchErrors


class EstimatedCost(ApiObject):
    """Estimated cost. Amounts are decimal numbers as text, in units of `currency`.

    `expected` is null if the number of output tokens is not known. `at_most` is null if at least one line
    does not limit its output tokens.
    """

    currency: str
    expected: str | None
    at_most: str | None


class ModelEstimateObject(ApiObject):
    """Estimate for the lines of one model.

    `error` is the error code with which all these lines would fail without being sent, for example because
    the model does not exist. It is null if they would be sent.
    """

    model: str
    lines: int
    input_tokens: int
    output_tokens: int | None
    max_output_tokens: int | None
    cost: EstimatedCost | None
    error: str | None


class EstimatedTime(ApiObject):
    """An estimate of how long a batch would take if it began now.

    It would be done within `seconds_p50` seconds with a probability of 50 %, and within `seconds_p90` seconds
    with a probability of 90 %. `lines_ahead` is the number of lines of other batches that would be sent
    before the last line of this batch.
    """

    seconds_p50: int
    seconds_p90: int
    lines_ahead: int


class EstimateObject(ApiObject):
    """Estimated lines, tokens and cost of a batch, computed from its input. Lines with errors do not count.

    - `input_tokens` is one token for four bytes of prompt.
    - `output_tokens` is computed from your earlier batches. Without earlier batches, it is computed from the
      limits of the lines. It is then null if a line has no limit.
    - `max_output_tokens` is the sum of the limits of all lines. It is null if a line has no limit.
    - `cost` is null if no model has prices. If only some models have prices, it is their cost.
    - `forecast` is null if the speed of one of the models is not known.
    - `errors` are the errors with which the batch would fail.
    """

    object: Literal["batch.estimate"] = "batch.estimate"
    lines: int
    input_tokens: int
    output_tokens: int | None
    max_output_tokens: int | None
    cost: EstimatedCost | None
    models: list[ModelEstimateObject]
    forecast: EstimatedTime | None = None
    errors: BatchErrors | None
