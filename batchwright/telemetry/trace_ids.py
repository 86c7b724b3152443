"""Ids of the trace of a batch.

The root span of the trace is recorded last, when the batch ends. Other spans are recorded earlier, and must
name the root span as their parent. Therefore the id of the root span is computed from the batch id.
"""

import hashlib
import time
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from batchwright.rules.ids import is_batch_id

ROOT_SPAN_NAME = "process-batch"


class BatchTrace(NamedTuple):
    root: SpanContext
    caller: Context  # the parent of the root: the API call that created the batch, if it was traced

    @property
    def context(self) -> Context:
        """Trace context for creating spans of the batch, as children of its root span."""
        return trace.set_span_in_context(NonRecordingSpan(self.root), Context())


def batch_trace(batch_id: str, caller: Context, sampler: Sampler) -> BatchTrace:
    """Return the trace of a batch. Every process computes the same ids.

    Args:
        caller: trace context of the request that created the batch. If the request was traced, the batch
            continues its trace. Otherwise the trace id is computed from the batch id.
        sampler: decides if the trace is recorded.
    """
    parent = trace.get_current_span(caller).get_span_context()
    trace_id = parent.trace_id if parent.is_valid else _digest(batch_id, 16)
    is_sampled = sampler.should_sample(caller, trace_id, ROOT_SPAN_NAME).decision.is_sampled()
    flags = parent.trace_flags & ~TraceFlags.SAMPLED
    root = SpanContext(
        trace_id,
        _digest(batch_id, 8),
        is_remote=True,
        trace_flags=TraceFlags(flags | TraceFlags.SAMPLED if is_sampled else flags),
        trace_state=parent.trace_state,
    )
    return BatchTrace(root, caller)


def batch_created_ns(batch_id: str) -> int:
    """Return the creation time of a batch in nanoseconds since 1970, read from the batch id.

    If the id contains no time, return the current time.
    """
    if not is_batch_id(batch_id):
        return time.time_ns()
    return int(batch_id.removeprefix("batch_")[:12], 16) * 1_000_000


def _digest(batch_id: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"trace of {batch_id}".encode(), digest_size=size).digest())
