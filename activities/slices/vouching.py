"""Whether a backend answers at all, asked before a line that was left without an answer is sent again.

Without another line that is answered meanwhile, nothing else tells a request that breaks its connections
from a backend that breaks them all (decision 0005).
"""

from activities.slices.work import Line
from batchwright.inference.routes import Sending


async def vouch(line: Line, sending: Sending) -> None:
    """Notes it with the line; the line is sent either way. Others answered since its last try vouch, too."""
    line.vouched = False
    if line.attempt.unanswered:
        lane = sending.lane
        known = line.tried_at is not None and lane.circuit.answered_since(line.tried_at)
        line.vouched = known or await lane.backend.client.answers(lane.backend.url)
