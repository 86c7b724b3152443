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

    If the lines would be sent, `error` is null. If all lines would fail without being sent, `error` is the
    error code. For example, the lines fail if the model does not exist.
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

    - With a probability of 50 %, the batch would take no longer than `seconds_p50` seconds.
    - With a probability of 90 %, the batch would take no longer than `seconds_p90` seconds.
    - `lines_ahead` is the number of lines of other batches that would be sent before the last line of this
      batch.
    """

    seconds_p50: int
    seconds_p90: int
    lines_ahead: int


class EstimateObject(ApiObject):
    """Estimated lines, tokens and cost of a batch, computed from its input.

    - `lines` is the number of all lines. Lines with errors do not count in the other fields.
    - `input_tokens` is one token for four bytes of prompt.
    - `output_tokens` is computed from your earlier batches. If a model has no earlier batches,
      `max_output_tokens` of the model is used instead. If this is null, `output_tokens` is null, too.
    - `max_output_tokens` is the sum of the lines' limits of output tokens. It is null if a line has no limit.
    - `cost` is the cost of the models that have prices and no `error`. It is null if there is no such model.
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
