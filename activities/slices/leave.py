"""Whether lines of a slice may be sent: asked for each, looked up when what is known may have changed."""

from activities.slices.tools import Tools
from activities.slices.work import Line
from batchwright.contracts.execution import SliceRequest


class Leave:
    """Of one turn."""

    def __init__(self, tools: Tools, request: SliceRequest) -> None:
        self._tools, self._request = tools, request
        self._edition: int | None = None  # of permissions, by which any line may be sent

    def refusal(self, line: Line) -> str:
        """Why it may not be sent now; empty: it may."""
        edition = self._tools.permissions.edition
        if edition is not None and edition == self._edition:
            return ""
        has_job = line.attempt.job is not None
        refusal = self._tools.refusal(self._request, has_job=has_job)
        if not refusal and not has_job:  # of a line with a job less is asked
            self._edition = edition
        return refusal
