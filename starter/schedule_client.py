"""Client of the routes `/v1/x/schedules`, for the command line."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from batchwright.contracts.api_objects.schedules import DeletedSchedule, ScheduleObject, SchedulePage
from batchwright.starter.client import Client

_SCHEDULES = "/v1/x/schedules"


class ScheduleClient:
    """A client for the API routes of schedules. Each method raises ClientError if the call fails."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, body: Mapping[str, object]) -> ScheduleObject:
        return self._client.call("POST", _SCHEDULES, ScheduleObject, body)

    def page(self, limit: int) -> SchedulePage:
        """Return the newest schedules, at most `limit` of them."""
        return self._client.call("GET", f"{_SCHEDULES}?{urlencode({'limit': limit})}", SchedulePage)

    def get(self, id: str) -> ScheduleObject:
        return self._client.call("GET", _path(id), ScheduleObject)

    def change(self, id: str, changes: Mapping[str, object]) -> ScheduleObject:
        return self._client.call("PATCH", _path(id), ScheduleObject, changes)

    def perform(self, id: str, action: str) -> ScheduleObject:
        """Pause, resume or trigger a schedule, and return it. `action` is `pause`, `resume` or `trigger`."""
        return self._client.call("POST", _path(id, action), ScheduleObject)

    def delete(self, id: str) -> DeletedSchedule:
        return self._client.call("DELETE", _path(id), DeletedSchedule)


def _path(*parts: str) -> str:
    return "/".join([_SCHEDULES, *(quote(part, safe="") for part in parts)])
