"""A worker that misses what slices need puts them back at once: another may have it."""

from activities.slices.ends import next_turn
from activities.slices.tools import Tools
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest

_AGAIN_SECONDS = 5.0
_LABEL = "dependency"


def check_needs(tools: Tools, request: SliceRequest) -> None:
    """Raises Deferred (ApplicationError), benign, while the worker misses something."""
    missing = tools.missing()
    if not missing:
        return
    reason = f"a worker misses what slices need: {missing}"
    tools.waiting.waits(request.tenant, request.batch_id, request.model, reason, _AGAIN_SECONDS)
    tools.deferrals.note(request.batch_id, request.model, _LABEL, _AGAIN_SECONDS)
    raise next_turn(Failure.DEFERRED, reason, _AGAIN_SECONDS)
