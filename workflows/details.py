"""What a batch shows of itself: search attributes, and Markdown for the Web UI."""

from collections.abc import Sequence

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import BatchOrder, BatchState, ModelProgress, WaitingReason
    from batchwright.contracts.openai import BatchStatus
    from batchwright.contracts.search import DEADLINE, MODELS, STATUS, TENANT

_SHOWN_MODELS = 20


def show_start(order: BatchOrder) -> None:
    """Sets what the start had to set too, if it did not: a run started by hand is found like any other."""
    known = workflow.info().typed_search_attributes
    missing = [
        *([] if order.policy.few_steps and STATUS in known else [STATUS.value_set(BatchStatus.VALIDATING)]),
        *([] if TENANT in known else [TENANT.value_set(order.tenant)]),
        *([] if DEADLINE in known else [DEADLINE.value_set(order.expires_at)]),
    ]
    if missing:
        workflow.upsert_search_attributes(missing)  # pyright: ignore[reportUnknownMemberType]


def show_status(status: BatchStatus, models: Sequence[str] = ()) -> None:
    workflow.upsert_search_attributes(  # pyright: ignore[reportUnknownMemberType]
        [
            STATUS.value_set(status),
            *([MODELS.value_set(list(models[:_SHOWN_MODELS]))] if models else []),
        ]
    )


def markdown(order: BatchOrder, state: BatchState) -> str:
    lines = [f"**{_headline(state)}**{_window(order, state)}"]
    reasons = {waiting.model: _reason(waiting) for waiting in state.waiting}
    if "" in reasons:  # of the whole batch
        lines.append(f"- waiting: {reasons['']}")
    lines += [_model(progress, reasons) for progress in state.models[:_SHOWN_MODELS]]
    if len(state.models) > _SHOWN_MODELS:
        lines.append(f"- and {len(state.models) - _SHOWN_MODELS} more models")
    return "\n".join([lines[0], "", *lines[1:]])


def _window(order: BatchOrder, state: BatchState) -> str:
    return "" if state.status.is_terminal else f", window closes {order.expires_at:%Y-%m-%d %H:%M:%S} UTC"


def _headline(state: BatchState) -> str:
    notes = [state.status.value]
    if state.cancel_requested and not state.status.is_terminal:
        notes.append("cancel requested")
    if state.paused and not state.status.is_terminal:
        notes.append("paused")
    return ", ".join(notes)


def _reason(waiting: WaitingReason) -> str:
    since = f" (since {waiting.since:%H:%M:%S} UTC)" if waiting.since else ""
    return f"{waiting.reason}{since}"


def _model(progress: ModelProgress, reasons: dict[str, str]) -> str:
    waiting = f", waiting: {reasons[progress.model]}" if progress.model in reasons else ""
    done = f"{progress.slices_done} of {progress.slices} slices done"
    return f"- `{progress.model}`, {progress.lines:,} lines: {done}{waiting}"
