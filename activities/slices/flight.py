"""A line that is being asked."""

from msgspec import Struct

from activities.slices.judge import Request
from activities.slices.work import Line
from batchwright.inference.engine import Exchange
from batchwright.inference.limits import Permit
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Sending


class Flight(Struct, eq=False):
    line: Line
    request: Request
    permit: Permit
    sending: Sending  # the one under way
    held: int  # bytes of the budget
    job_since: float | None = None  # Unix seconds: it goes on with a job that runs since then
    exchange: Exchange | None = None  # where nobody awaits it
    outcome: Outcome | None = None  # of that, where more than its answer follows
    seconds: float = 0.0  # that took
