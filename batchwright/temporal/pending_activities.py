"""Find the pending activities of a workflow: where they run, since when, and why an attempt failed."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from batchwright.contracts.temporal_payloads.execution import ExecutionActivities, SliceRequest
from batchwright.contracts.terms import ActivityState
from batchwright.temporal.codec import PayloadDecryptionError

_RPC_TIMEOUT = timedelta(seconds=10)
_SLICE = ExecutionActivities.run_slice.__name__
_EVENTS_PER_PAGE, _MAX_PAGES = 500, 20  # limits of reading the history


class PendingActivity(NamedTuple):
    """An activity that has not ended: it runs, waits or is paused.

    Attributes:
        slice_number: number of the slice (part of a model's lines) that the activity sends. None if it sends
            no slice, or if the number is not known.
        worker: identity of the worker of the latest attempt; empty if no attempt has started.
        state_since: when the present state began.
        attempt: number of the running attempt; if no attempt runs, number of the next attempt.
        heartbeat_at: when the last heartbeat came; None if there was no heartbeat.
        next_attempt_at: when the next attempt may begin, if the state is WAITING; None in all other states.
        last_failure: error message of the last attempt that failed; empty if no attempt failed, or if the
            message is not known.
    """

    name: str
    slice_number: int | None
    state: ActivityState
    queue: str
    worker: str
    state_since: datetime
    attempt: int
    heartbeat_at: datetime | None
    next_attempt_at: datetime | None
    last_failure: str


async def pending_activities(client: Client, workflow_id: str) -> list[PendingActivity]:
    """Return the activities of a workflow that have not ended, in the order of scheduling.

    If payloads are encrypted and this process lacks their key, `slice_number` is None and `last_failure` is
    empty.

    Raises RPCError if the call fails, or if there is no such workflow.
    """
    run = await client.get_workflow_handle(workflow_id).describe(rpc_timeout=_RPC_TIMEOUT)
    found = sorted(run.raw_description.pending_activities, key=lambda each: int(each.activity_id))
    slices = [each.activity_id for each in found if each.activity_type.name == _SLICE]
    numbers = await _slice_numbers(client, WorkflowExecution(workflow_id=run.id, run_id=run.run_id), slices)
    messages = await asyncio.gather(*(_message_of(client, each.last_failure) for each in found))
    return [_pending(each, numbers, message) for each, message in zip(found, messages, strict=True)]


async def _slice_numbers(
    client: Client, execution: WorkflowExecution, activity_ids: Collection[str]
) -> dict[str, int]:
    """Return the numbers of the slices (parts of a model's lines) that these activities send, by activity id.

    The numbers are read from the last 10,000 events of the workflow's history. An activity is left out if it
    was scheduled before these events, or if this process has no key to decrypt the activity's payload.
    """
    left, numbers, token = set(activity_ids), dict[str, int](), b""
    for _ in range(_MAX_PAGES if left else 0):
        page = await client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace,
                execution=execution,
                maximum_page_size=_EVENTS_PER_PAGE,
                next_page_token=token,
            ),
            timeout=_RPC_TIMEOUT,
        )
        for event in page.history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_id in left:
                left.remove(scheduled.activity_id)
                with suppress(PayloadDecryptionError):
                    [request] = await client.data_converter.decode(scheduled.input.payloads, [SliceRequest])
                    numbers[scheduled.activity_id] = request.number
        token = page.next_page_token
        if not left or not token:
            break
    return numbers


async def _message_of(client: Client, failure: Failure) -> str:
    if not failure.ByteSize():
        return ""
    try:
        error = await client.data_converter.decode_failure(failure)
    except PayloadDecryptionError:
        return ""
    return error.message if isinstance(error, ApplicationError) else str(error)


def _pending(info: PendingActivityInfo, numbers: Mapping[str, int], message: str) -> PendingActivity:
    next_attempt_at = _time(info.next_attempt_schedule_time)
    state = _state_of(info)
    if state is ActivityState.QUEUED and next_attempt_at is not None and next_attempt_at > datetime.now(UTC):
        state = ActivityState.WAITING
    since = {
        ActivityState.QUEUED: next_attempt_at,
        ActivityState.WAITING: _time(info.last_attempt_complete_time),
    }.get(state, _time(info.last_started_time))
    return PendingActivity(
        name=info.activity_type.name,
        slice_number=numbers.get(info.activity_id),
        state=state,
        queue=info.activity_options.task_queue.name,
        worker=info.last_worker_identity,
        state_since=since or info.scheduled_time.ToDatetime(UTC),
        attempt=info.attempt,
        heartbeat_at=_time(info.last_heartbeat_time),
        next_attempt_at=next_attempt_at if state is ActivityState.WAITING else None,
        last_failure=message,
    )


def _state_of(info: PendingActivityInfo) -> ActivityState:
    match info.state:
        case PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
            return ActivityState.RUNNING
        case PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED:
            return ActivityState.STOPPING
        case (
            PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED
            | PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED
        ):
            return ActivityState.PAUSED
        case _:
            return ActivityState.QUEUED


def _time(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds else None
