"""Show a batch in Temporal's Web UI, with search attributes and a summary in Markdown."""

import json
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.search_attributes import DEADLINE, MODELS, STATUS, TENANT
    from batchwright.contracts.temporal_payloads.batch import (
        SCHEDULED,
        BatchForecast,
        BatchOrder,
        BatchState,
        ModelProgress,
        WindowFit,
    )
    from batchwright.contracts.terms import BatchStatus

_MAX_MODELS = 20
_MAX_ATTRIBUTE_BYTES = 2_000  # of a search attribute; Temporal allows 2,048


def ensure_search_attributes(order: BatchOrder) -> None:
    """Set missing search attributes of the workflow.

    For example, they are missing if the workflow was started by hand.
    """
    known = workflow.info().typed_search_attributes
    missing = [
        *([] if STATUS in known else [STATUS.value_set(BatchStatus.VALIDATING)]),
        *([] if TENANT in known else [TENANT.value_set(order.tenant)]),
        *([] if DEADLINE in known else [DEADLINE.value_set(order.deadline)]),
    ]
    if missing:
        workflow.upsert_search_attributes(missing)  # pyright: ignore[reportUnknownMemberType]


def set_status_attributes(status: BatchStatus, models: Sequence[str]) -> None:
    workflow.upsert_search_attributes(  # pyright: ignore[reportUnknownMemberType]
        [
            STATUS.value_set(status),
            *([MODELS.value_set(_searchable(models))] if models else []),
        ]
    )


def _searchable(models: Sequence[str]) -> list[str]:
    """Return the first models, as many as fit into the search attribute for model names.

    Temporal terminates a workflow whose search attribute has more than 2,048 bytes.
    """
    found, size = list[str](), 2  # the brackets
    for model in models[:_MAX_MODELS]:
        size += len(json.dumps(model)) + 1
        if size > _MAX_ATTRIBUTE_BYTES:
            break
        found.append(model)
    return found


def details_markdown(order: BatchOrder, state: BatchState) -> str:
    lines = [f"**{_headline(state)}**{_window(order, state)}"]
    if state.forecast is not None and not state.paused and not state.cancel_requested:
        lines.append(_forecast(state.forecast))
    reasons: dict[str, str] = {}
    for waiting in state.waiting:
        before = f"{reasons[waiting.model]}; " if waiting.model in reasons else ""
        since = f" (since {waiting.since:%H:%M:%S} UTC)" if waiting.since else ""
        reasons[waiting.model] = f"{before}{waiting.reason}{since}"
    if "" in reasons:  # the reason applies to the whole batch
        lines.append(f"- waiting: {reasons['']}")
    lines += [_model(progress, reasons) for progress in state.models[:_MAX_MODELS]]
    if len(state.models) > _MAX_MODELS:
        lines.append(f"- and {len(state.models) - _MAX_MODELS} more models")
    lines += [
        f"- failed with `{code}`: {count:,} line{'' if count == 1 else 's'}"
        for code, count in state.failed_by_code.items()
    ]
    return "\n".join([lines[0], "", *lines[1:]])


def _window(order: BatchOrder, state: BatchState) -> str:
    if state.status.is_terminal:
        return ""
    is_scheduled = any(waiting.reason == SCHEDULED for waiting in state.waiting)
    starts = f", starts {order.start_at:%Y-%m-%d %H:%M:%S} UTC" if is_scheduled else ""
    return f"{starts}, window closes {order.deadline:%Y-%m-%d %H:%M:%S} UTC"


def _headline(state: BatchState) -> str:
    notes = [state.status.value]
    if state.files_pending:
        notes.append("files pending")
    if state.cancel_requested and not state.status.is_terminal:
        notes.append("cancel requested")
    if state.paused and not state.status.is_terminal:
        notes.append("paused")
    return ", ".join(notes)


_FITS = {
    WindowFit.FITS: "fits the window",
    WindowFit.AT_RISK: "may end after the window",
    WindowFit.LATE: "will end after the window",
}


def _forecast(forecast: BatchForecast) -> str:
    p50 = forecast.made_at + timedelta(seconds=forecast.p50_seconds)
    p90 = forecast.made_at + timedelta(seconds=forecast.p90_seconds)
    rate = f"{forecast.lines_per_second:,.1f} lines/s, {forecast.lines_ahead:,} lines of other batches ahead"
    return (
        f"- forecast of {forecast.made_at:%H:%M:%S} UTC: {_FITS[forecast.window]}; done by "
        f"{p50:%Y-%m-%d %H:%M} UTC (p50), {p90:%Y-%m-%d %H:%M} UTC (p90); {rate}"
    )


def _model(progress: ModelProgress, reasons: dict[str, str]) -> str:
    waiting = f", waiting: {reasons[progress.model]}" if progress.model in reasons else ""
    done = f"{progress.slices_done} of {progress.slices} slices done"
    return f"- `{progress.model}`, {progress.lines:,} lines: {done}{waiting}"
