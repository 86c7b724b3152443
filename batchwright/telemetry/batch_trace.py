"""A batch's place in a trace: below a root span that is made last, by whoever ends the batch.

The root's id follows from the batch's, so that whoever runs a part of it knows the root before it is there.
"""

import hashlib
import time
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from batchwright.rules.ids import is_batch_id

ROOT = "process-batch"


class BatchTrace(NamedTuple):
    root: SpanContext
    around: Context  # the parent of the root: the call that created the batch, if that was traced

    @property
    def inside(self) -> Context:
        """The parent of everything that belongs to the batch."""
        return trace.set_span_in_context(NonRecordingSpan(self.root), Context())


def batch_trace(batch_id: str, around: Context, sampler: Sampler) -> BatchTrace:
    """In the caller's trace, or in one of the batch's own, of the same id on all workers."""
    caller = trace.get_current_span(around).get_span_context()
    trace_id = caller.trace_id if caller.is_valid else _digest(batch_id, 16)
    sampled = sampler.should_sample(around, trace_id, ROOT).decision.is_sampled()
    others = caller.trace_flags & ~TraceFlags.SAMPLED
    root = SpanContext(
        trace_id,
        _digest(batch_id, 8),
        is_remote=True,
        trace_flags=TraceFlags(others | TraceFlags.SAMPLED if sampled else others),
        trace_state=caller.trace_state,
    )
    return BatchTrace(root, around)


def started_at(batch_id: str) -> int:
    """When the id was made, in nanoseconds since 1970: its first 48 bits are milliseconds (R11)."""
    if not is_batch_id(batch_id):
        return time.time_ns()
    return int(batch_id.removeprefix("batch_")[:12], 16) * 1_000_000


def _digest(batch_id: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"trace of {batch_id}".encode(), digest_size=size).digest())
