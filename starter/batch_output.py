"""Tables and texts about batches."""

import time
from collections.abc import Sequence
from decimal import Decimal

from rich.table import Table

from batchwright.contracts.api_objects.estimates import EstimatedCost, EstimateObject
from batchwright.contracts.api_objects.openai import (
    BatchError,
    BatchObject,
    ForecastObject,
    RequestCounts,
    StartForecastObject,
    WaitingObject,
)
from batchwright.contracts.temporal_payloads.batch import (
    DEFAULT_PRIORITY,
    SCHEDULED,
    ErrorCount,
    StartFit,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.duration_text import duration_text
from batchwright.starter.output import column_table, escaped, local_timestamp, property_table, short_timestamp

_COLOURS = {
    BatchStatus.COMPLETED: "green",
    BatchStatus.FAILED: "red",
    BatchStatus.EXPIRED: "red",
    BatchStatus.CANCELLED: "yellow",
    BatchStatus.CANCELLING: "yellow",
}
_SHOWN_ERRORS = 10
_SLOWEST_SHOWN = 0.05  # lines per second; less is shown as 0.0


def status_markup(batch: BatchObject) -> str:
    paused = ", paused" if batch.x_batchwright.paused else ""
    pending = ", files pending" if batch.x_batchwright.files_pending else ""
    start = batch.x_batchwright.start_at
    scheduled = ", scheduled" if start and start > time.time() and not batch.status.is_terminal else ""
    colour = _COLOURS.get(batch.status, "cyan")
    return f"[{colour}]{batch.status.value}{scheduled}{paused}{pending}[/{colour}]"


def count_text(of: RequestCounts) -> str:
    failed = f", {of.failed:,} failed" if of.failed else ""
    return f"{of.settled:,} of {of.total:,} lines{failed}"


def batch_table(batch: BatchObject) -> Table:
    """Return a table with all data about a batch, at most 80 columns wide."""
    table = property_table()
    for name, value in _facts(batch):
        if value:
            table.add_row(name, value)
    for part in batch.x_batchwright.models:
        settled = count_text(RequestCounts(total=part.lines, completed=part.completed, failed=part.failed))
        table.add_row("model", f"{escaped(part.model)}: {settled}")
    if batch.forecast is not None:
        table.add_row("forecast", forecast_text(batch.forecast))
    if batch.start_forecast is not None:
        table.add_row("at start", start_forecast_text(batch.start_forecast))
    for why in batch.waiting:
        table.add_row("waiting", escaped(waiting_text(why)))
    for failed in batch.x_batchwright.errors_summary:
        table.add_row("failed", escaped(failure_text(failed)))
    for problem in (batch.errors.data if batch.errors else [])[:_SHOWN_ERRORS]:
        table.add_row("error", escaped(error_text(problem)))
    if batch.errors and len(batch.errors.data) > _SHOWN_ERRORS:
        table.add_row(
            "", f"and {len(batch.errors.data) - _SHOWN_ERRORS:,} more errors; --json lists all of them"
        )
    return table


def _facts(batch: BatchObject) -> list[tuple[str, str]]:
    tokens = batch.usage
    used = f"{tokens.input_tokens:,} in, {tokens.output_tokens:,} out" if tokens.total_tokens else ""
    origin, priority = batch.x_batchwright.origin, batch.x_batchwright.priority
    metadata = ", ".join(f"{key}={value}" for key, value in (batch.metadata or {}).items())
    return [
        ("batch", batch.id),
        ("status", status_markup(batch)),
        ("settled", count_text(batch.request_counts) if batch.request_counts.total else ""),
        ("endpoint", batch.endpoint),
        ("window", batch.completion_window),
        ("priority", "" if priority == DEFAULT_PRIORITY else str(priority)),
        ("rerun of", f"{origin.batch_id} ({origin.kind})" if origin else ""),
        ("created", local_timestamp(batch.created_at)),
        ("starts", local_timestamp(batch.x_batchwright.start_at)),
        ("ended", local_timestamp(batch.ended_at))
        if batch.ended_at
        else ("expires", local_timestamp(batch.expires_at)),
        ("tokens", used),
        ("cost", cost_text(batch)),
        ("metadata", escaped(metadata)),
        ("input", batch.input_file_id),
        ("output", batch.output_file_id or ""),
        ("errors", batch.error_file_id or ""),
        ("written to", output_location_text(batch)),
    ]


def output_location_text(batch: BatchObject) -> str:
    """Return the URL to which the files of a batch are copied, and the state of the copy.

    An example is `s3://a/b/ (pending)`. If there was an error, its message follows the state. The text is
    empty if the batch has no output location.
    """
    location = batch.x_batchwright.output_location
    if location is None:
        return ""
    reason = f": {location.error}" if location.error else ""
    return escaped(f"{location.url} ({location.state}{reason})")


def cost_text(batch: BatchObject) -> str:
    """Return the cost of a batch as text, such as `1.25 USD so far, at most 5`.

    In this example, 5 is the maximum cost that the user has set. If no prices are set for the batch's models,
    the text is empty. If only some models have no price, the text ends with their names.
    """
    cost, cap = batch.x_batchwright.cost, batch.x_batchwright.max_cost
    if cost is None:
        return ""
    limit = "" if cap is None else f", at most {money_text(cap)}"
    unpriced = [part.model for part in cost.models if part.amount is None]
    without = f", without {escaped(', '.join(unpriced))}" if unpriced else ""
    return f"{money_text(cost.amount)} {cost.currency}{'' if cost.final else ' so far'}{limit}{without}"


def estimate_table(estimate: EstimateObject) -> Table:
    """Return a table with the estimated lines, tokens and cost of a batch, with one row for each model."""
    table = column_table("model", "lines", "input tokens", "output tokens", "cost", "at most", right=5)
    rows = [(each.model or "no model named", each, each.error or "") for each in estimate.models]
    for name, part, error in [*rows, ("all", estimate, "")]:
        cost = part.cost
        table.add_row(
            escaped(f"{name}{f' ({error})' if error else ''}"),
            f"{part.lines:,}",
            f"{part.input_tokens:,}",
            "?" if part.output_tokens is None else f"{part.output_tokens:,}",
            *(_estimated(amount, cost) for amount in (cost and cost.expected, cost and cost.at_most)),
        )
    return table


def _estimated(amount: str | None, cost: EstimatedCost | None) -> str:
    if cost is None:
        return "-"
    return "?" if amount is None else f"{money_text(amount)} {cost.currency}"


def money_text(amount: str) -> str:
    """Format an amount of money, such as `1,234.5` or `0.00002`.

    The amount is rounded to six decimals, or to twelve if it is less than 0.01. Zeros at the end of the
    decimals are left out.
    """
    if "." not in amount:
        return f"{int(amount):,}"
    places = 6 if Decimal(amount) >= Decimal("0.01") else 12
    return f"{round(Decimal(amount), places):,f}".rstrip("0").rstrip(".")


def waiting_text(why: WaitingObject) -> str:
    """Return as text why a batch waits, such as `alpha: REASON (since 2026-11-28 12:30:00)`."""
    model = f"{why.model}: " if why.model else ""
    return f"{model}{why.reason}" + (f" (since {local_timestamp(why.since)})" if why.since else "")


def failure_text(failed: ErrorCount) -> str:
    """Describe the lines that failed with one error code.

    In the example `12 lines: http_400 (alpha), e.g. 'req-1': TEXT`, the error code is `http_400` and the
    model is `alpha`. One of the lines has the custom id `req-1` and the error message TEXT.
    """
    lines = f"{failed.count:,} line" + ("" if failed.count == 1 else "s")
    model = f" ({failed.model})" if failed.model else ""
    example = _one_line(f"'{failed.example.custom_id}': {failed.example.message}")
    return f"{lines}: {failed.code}{model}, e.g. {example}"


def _one_line(text: str) -> str:
    """Return text from a client or backend as one line, without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


_FITS = {
    WindowFit.FITS: "fits the window",
    WindowFit.AT_RISK: "may be late",
    WindowFit.LATE: "late",
}
_FITS_AT_START = {
    StartFit.FITS: "fits the window",
    StartFit.AT_RISK: "may be late",
    StartFit.CANNOT: "cannot be done in the window",
}


def forecast_text(forecast: ForecastObject) -> str:
    """Return the forecast for a running batch as text: its remaining time, its speed, and the lines ahead.

    Lines ahead are lines of other batches that are sent before the last line of this batch.
    """
    ahead = f", {forecast.lines_ahead:,} lines ahead" if forecast.lines_ahead else ""
    rate = forecast.lines_per_second
    speed = f"{rate:,.1f} lines/s" if rate >= _SLOWEST_SHOWN else "no lines are sent now"
    return f"{done_in_text(forecast)}, {speed}{ahead}"


def done_in_text(forecast: ForecastObject) -> str:
    """Return the remaining time as text, such as `done in 4 min (90 %: 6 min), fits the window`.

    In this example, the batch is done within 4 min with a probability of 50 %, and within 6 min with a
    probability of 90 %. `fits the window` says that it will probably end in its completion window.
    """
    p50, p90 = (
        duration_text(seconds) for seconds in (forecast.remaining_seconds_p50, forecast.remaining_seconds_p90)
    )
    return f"done in {p50} (90 %: {p90}), {_FITS[forecast.window]}"


def start_forecast_text(forecast: StartForecastObject) -> str:
    """Return the forecast that was made before a batch began, as text.

    An example is `4 min (90 %: 6 min), fits the window, 100 lines ahead`. It has these parts:

    - The batch ends within 4 min with a probability of 50 %, and within 6 min with a probability of 90 %.
    - It will probably end before its completion window is over.
    - 100 lines of other batches are sent before the last line of this batch. If there are none, this part is
      left out.
    """
    ahead = f", {forecast.lines_ahead:,} lines ahead" if forecast.lines_ahead else ""
    p50, p90 = duration_text(forecast.seconds_p50), duration_text(forecast.seconds_p90)
    return f"{p50} (90 %: {p90}), {_FITS_AT_START[forecast.window]}{ahead}"


def error_text(problem: BatchError) -> str:
    where = f"line {problem.line}: " if problem.line is not None else ""
    return f"{where}{problem.message} ({problem.code})"


def batch_list_table(batches: list[BatchObject]) -> Table:
    waits, *cells = waits_column(batches)
    table = column_table("batch", "status", *waits, "created", "settled", right=1, whole=["batch"])
    for batch, cell in zip(batches, cells, strict=True):
        settled = f"{batch.request_counts.settled}/{batch.request_counts.total}"
        table.add_row(batch.id, status_markup(batch), *cell, short_timestamp(batch.created_at), settled)
    return table


def waits_column(batches: Sequence[BatchObject]) -> list[list[str]]:
    """Return the cells of the column `waits` in a table of batches. The cells show why the batches wait.

    The first list contains the name of the column. Each further list contains the cell of one batch. If no
    batch waits, all lists are empty, and the table has no such column. The column does not show the reasons
    `paused` and `scheduled`, because the column of the status shows these reasons.
    """
    cells = [_waits_text(batch) for batch in batches]
    return [[text] for text in ["waits", *cells]] if any(cells) else [[] for _ in ["waits", *cells]]


def _waits_text(batch: BatchObject) -> str:
    reasons = [why for why in batch.waiting if why.reason not in ("paused", SCHEDULED)]
    if not reasons:
        return ""
    model = f"{reasons[0].model}: " if reasons[0].model else ""
    more = f"; {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return escaped(f"{model}{reasons[0].reason}{more}")
