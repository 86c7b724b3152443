"""Builds the order of a batch: the start argument of the batch's workflow."""

from datetime import datetime, timedelta

from batchwright.contracts.temporal_payloads.batch import (
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    BatchOrder,
    BatchPolicy,
)
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate
from batchwright.settings import Settings

_OUTSTANDING_SLICES = 32
_HAND_OVER_EVENTS = 0  # 0: when the server suggests it


class PriorityNotAllowed(ValueError):
    """Raised if the tenant may not use the requested priority. The message is for the client."""


def build_order(
    template: BatchTemplate,
    batch_id: str,
    tenant: str,
    created_at: datetime,
    settings: Settings,
    *,
    start_at: datetime | None = None,
    fairness_key: str,
    fairness_weight: float | None = None,
    max_priority: int = MAX_PRIORITY,
) -> BatchOrder:
    """Build the start argument of a new batch's workflow from the client's request and the settings.

    Args:
        template: the requested batch: its input, endpoint, completion window and so on.
        start_at: time at which the batch starts; None to start it now.
        fairness_key: key by which Temporal shares the workers between tenants. If it is empty, the tenant's
            name is used.
        fairness_weight: weight that an operator has set for the tenant at run time. A tenant with a greater
            weight gets a greater part of the capacity. None for the weight in the settings.
        max_priority: highest priority that the tenant may use.

    Raises:
        PriorityNotAllowed: the priority in the template is higher than `max_priority`.
    """
    priority = min(DEFAULT_PRIORITY, max_priority) if template.priority is None else template.priority
    if priority > max_priority:
        raise PriorityNotAllowed(
            f"Invalid value for 'x_batchwright.priority': {priority} is above {max_priority}, the highest "
            "priority that you may use. Use a lower one, or ask the operator to raise your 'max_priority'."
        )
    return BatchOrder(
        batch_id=batch_id,
        tenant=tenant,
        input_file_id=template.input_file_id,
        input_location=template.input_location,
        output_location=template.output_location,
        endpoint=template.endpoint,
        completion_window=template.completion_window,
        created_at=created_at,
        start_at=start_at,
        deadline=(start_at or created_at) + timedelta(seconds=template.window_seconds),
        metadata=template.metadata,
        output_expires_after_seconds=template.output_expires_after_seconds,
        weight=settings.weight_of(tenant),
        priority=priority,
        max_cost=template.max_cost,
        policy=_policy(template, settings, fairness_key, fairness_weight),
    )


def _policy(
    template: BatchTemplate, settings: Settings, fairness_key: str, fairness_weight: float | None
) -> BatchPolicy:
    """Return a copy of the settings that apply to the batch. Later changes of the settings have no effect."""
    return BatchPolicy(
        profile=settings.profile,
        cancel_grace_seconds=settings.cancel_grace_seconds,
        expiry_grace_seconds=settings.expiry_grace_seconds,
        finalize_patience_seconds=settings.finalize_patience_seconds,
        heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
        slice_seconds=settings.slice_seconds,
        outstanding_slices=_OUTSTANDING_SLICES,
        hand_over_events=_HAND_OVER_EVENTS,
        fairness_key=fairness_key,
        fairness_weight=fairness_weight,
        deduplicate=template.deduplicate,
        caller=template.caller,
        message_requests=template.message_requests,
    )
