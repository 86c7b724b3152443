"""Whether a backend answers at all, asked before a line that was left without an answer is sent again.

Without another line that is answered meanwhile, nothing else tells a request that breaks its connections
from a backend that breaks them all (decision 0005).
"""

from activities.slices.work import Line
from batchwright.inference.routes import Sending


async def vouch(line: Line, sending: Sending) -> None:
    """Notes it with the line; the line is sent either way. Others answered since its last try vouch, too."""
    line.vouched = await _vouched(line, sending)


async def _vouched(line: Line, sending: Sending) -> bool | None:
    circuit, backend = sending.lane.circuit, sending.lane.backend
    if line.tried_at is not None and circuit.answered_since(line.tried_at):
        return True
    if await backend.answers():
        return True
    # One that answers requests and never a listing: that it does not now says nothing.
    return False if backend.was_heard or not circuit.answered_since(0.0) else None
