"""Computes what the pages show of a batch: its states over time, its completion window, its throughput, and
what to do if it waits.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from batchwright.contracts.api_objects.openai import BatchObject, ThroughputSample, WaitingObject
from batchwright.contracts.temporal_payloads.batch import SCHEDULED

_EXACT_REMEDIES = {
    "paused": "Resume the batch to continue.",
    SCHEDULED: "Nothing to do: the batch starts at its time.",
}
# The first entry whose text is in the reason applies.
_REMEDIES = (
    ("no worker polls", "Start a worker that serves this queue. `batchwright workers` lists those that run."),
    ("no backend serves", "Check the model's name, or ask the operator to add a backend that serves it."),
    ("rejects Batchwright's API key", "The operator has to correct the API key of the backend."),
    ("forbids Batchwright's API key", "The operator has to give the backend's key access to the model."),
    ("accepts no requests now", "Nothing to do: it is tried again until it answers."),
    ("next attempt", "Nothing to do: these lines are sent again when their delay is over."),
    ("max_in_flight", "Wait, or ask the operator to raise the cap on requests in flight."),
    ("is divided between the workers", "Wait, or the operator raises `in_flight` or runs fewer workers."),
    ("an operator holds", "Ask the operator, who can release the hold."),
    ("limited by", "Wait, or ask the operator to raise the rate."),
    ("behind", "Wait, or raise the priority: other slices run first."),
    ("no response recently", "Nothing to do: slices of a dead worker continue elsewhere."),
    ("enqueued", "Wait until other batches have ended, or ask the operator to raise the quota."),
)
_DEFAULT_REMEDY = "Nothing to do: it is tried again. If it lasts, the operator finds the cause in the log."


class Step(NamedTuple):
    """A state in the timeline of a batch (the list of its states, with times).

    Attributes:
        at: Unix time at which the state began.
        seconds: time until the next state; None for the last state.
    """

    name: str
    at: int
    seconds: int | None


class WindowBar(NamedTuple):
    """A bar that shows how much of the completion window has passed. Its fields are percentages of the
    window's length.

    Attributes:
        elapsed: part of the window that has passed.
        p50, p90: part of the window within which the batch will end with a probability of 50 % or 90 %. A
            value over 100 is a time after the end of the window. None if there is no forecast.
    """

    elapsed: float
    p50: float | None
    p90: float | None


class ThroughputChart(NamedTuple):
    """A chart of how many lines per second get a result, over time.

    Attributes:
        path: outline of the chart as SVG path data, in a drawing area of 1000 by 100 units.
        peak: highest rate in lines per second. It is drawn at the top of the chart.
        average: average rate in lines per second.
        start: Unix time of the left edge.
        end: Unix time of the right edge.
    """

    path: str
    peak: float
    average: float
    start: int
    end: int


def is_live(batch: BatchObject) -> bool:
    """Return True if the page of a batch can still change.

    The page no longer changes when all of these are true:

    - The batch has ended.
    - The files of the batch are written.
    - Copying the files to the batch's output location, if it has one, has ended.
    """
    copy, has_files = batch.x_batchwright.output_location, batch.output_file_id or batch.error_file_id
    is_copied = not has_files or copy is None or copy.state != "pending"
    return not batch.status.is_terminal or batch.x_batchwright.files_pending or not is_copied


def timeline(batch: BatchObject) -> list[Step]:
    """Return the states that the batch has gone through, oldest first."""
    times = {
        "created": batch.created_at,
        "in progress": batch.in_progress_at,
        "cancelling": batch.cancelling_at,
        "finalizing": batch.finalizing_at,
        **({} if batch.ended_at is None else {batch.status.value: batch.ended_at}),
    }
    found = sorted(((at, name) for name, at in times.items() if at is not None), key=lambda each: each[0])
    steps = [Step(name, at, after - at) for (at, name), (after, _) in pairwise(found)]
    return [*steps, Step(found[-1][1], found[-1][0], None)]


def window_bar(batch: BatchObject, now: float) -> WindowBar:
    start = batch.x_batchwright.start_at or batch.created_at
    length = max(batch.expires_at - start, 1)
    end = batch.ended_at or now

    def percent(at: float) -> float:
        return round(100 * max(at - start, 0) / length, 2)

    elapsed, forecast = min(percent(end), 100), batch.forecast
    if forecast is None:
        return WindowBar(elapsed, None, None)
    p50, p90 = forecast.remaining_seconds_p50, forecast.remaining_seconds_p90
    return WindowBar(elapsed, percent(now + p50), percent(now + p90))


def remedy(why: WaitingObject) -> str:
    """Return a text that tells the user what to do if a batch waits for the reason `why`."""
    exact = _EXACT_REMEDIES.get(why.reason)
    return exact or next((text for part, text in _REMEDIES if part in why.reason), _DEFAULT_REMEDY)


def throughput_chart(samples: Sequence[ThroughputSample]) -> ThroughputChart | None:
    """Return a chart of the throughput of a batch; None if there are too few samples."""
    steps = [
        (after.at, max(after.lines - before.lines, 0) / (after.at - before.at))
        for before, after in pairwise(samples)
        if after.at > before.at
    ]
    if len(steps) < 2:
        return None
    first, last, peak = samples[0], samples[-1], max(rate for _, rate in steps)
    seconds = last.at - first.at
    outline = [
        f"V{100 - round(100 * rate / peak) if peak else 100}H{round(1000 * (at - first.at) / seconds)}"
        for at, rate in steps
    ]
    average = max(last.lines - first.lines, 0) / seconds
    return ThroughputChart(f"M0 100{''.join(outline)}V100Z", peak, average, first.at, last.at)
