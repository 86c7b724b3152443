"""Faults that the simulator causes on purpose, such as errors, delays and broken responses.

There are three ways to ask for a fault: an option of the simulator, a marker (a text in a request), and POST
/admin/faults.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from zlib import crc32

import msgspec

KINDS = ("slow", "hang", "hold", "cut", "garbage", "truncated", "down", "fail")
_SHORT = re.compile(
    r"(?P<kind>[a-z]+|[45]\d\d)(?:=(?P<seconds>\d+(?:\.\d+)?))?(?:\*(?P<count>\d+))?(?:@(?P<rate>\d*\.?\d+))?"
)
MARKER = "sim:"


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """A fault that the simulated backend causes.

    Attributes:
        kind: an HTTP status from 400 to 599 that the backend responds with, or one of KINDS:

            - `slow`: a normal response, but later.
            - `hang`: no response. The connection stays open for some time.
            - `hold`: a normal response, but only when `for_seconds` are over or the fault is deleted.
            - `cut`: the connection is closed after half of the response's body.
            - `garbage`: a response with status 200 and HTML.
            - `truncated`: a response with status 200 and only half of the JSON.
            - `down`: the connection is reset without a response.
            - `fail`: a response with status 500. If the request is a job, it is accepted and fails later.
        model: model whose requests are affected; None for all models. A `down` for all models also affects
            /v1/models and /healthz.
        rate: fraction of requests that are affected, from 0 to 1. The choice depends only on the request body
            and the number of the attempt, so repeated runs affect the same requests.
        count: maximum number of affected requests; None for no limit. A fault from a marker (a text in a
            request that asks for a fault) affects only the first `count` attempts of this request.
        retry_after: value of the Retry-After header in seconds; None for no header.
        seconds: duration of `slow` and `hang`. If None, `slow` takes 1 s, and `hang` lasts until the client
            disconnects.
        for_seconds: number of seconds after which the fault ends; None for no limit of time.
        hits: number of requests that were affected.
    """

    kind: str | int
    model: str | None = None
    rate: float = 1.0
    count: int | None = None
    retry_after: float | None = None
    seconds: float | None = None
    for_seconds: float | None = None
    id: str = ""
    hits: int = 0

    def __post_init__(self) -> None:
        if self.name not in KINDS and not 400 <= (self.status or 0) <= 599:
            raise ValueError(f"kind is {self.name!r}; it may be 400 to 599, {', '.join(KINDS)}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; it may be 0 to 1")

    @property
    def name(self) -> str:
        return str(self.kind)

    @property
    def status(self) -> int | None:
        """HTTP status of the response to an affected request; None if `kind` is one of KINDS."""
        return int(self.kind) if self.name.isdigit() else None


def parse_short(text: str) -> Fault:
    """Parse a fault in the form `kind[=seconds][*count][@rate]`.

    If the kind is an HTTP status, `seconds` is the value of the Retry-After header.

    Raises:
        ValueError: the text does not have this form. The message shows the form.
    """
    match = _SHORT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not KIND[=SECONDS][*COUNT][@RATE]")
    seconds = float(match["seconds"]) if match["seconds"] else None
    status = match["kind"].isdigit()
    return Fault(
        match["kind"],
        rate=float(match["rate"] or 1),
        count=int(match["count"]) if match["count"] else None,
        retry_after=seconds if status else None,
        seconds=None if status else seconds,
    )


class Faults:
    """The faults that an option of the simulator or POST /admin/faults has set.

    If several faults match a request, only the oldest of these faults affects the request.
    """

    def __init__(self, initial: Iterable[Fault]) -> None:
        self._active: list[Fault] = []
        self._end_times: dict[str, float] = {}
        self._end_callbacks: dict[str, list[Callable[[], None]]] = {}  # by the id of the fault
        self._added = 0
        for fault in initial:
            self.add(fault)

    def add(self, fault: Fault) -> Fault:
        self._added += 1
        fault.id, fault.hits = f"fault-{self._added}", 0
        if fault.for_seconds is not None:
            self._end_times[fault.id] = time.monotonic() + fault.for_seconds
        self._active.append(fault)
        return fault

    def active(self) -> list[Fault]:
        """Delete the faults whose time (`for_seconds`) has passed. Return the remaining faults."""
        if self._end_times:
            now = time.monotonic()
            self._active = [fault for fault in self._active if self._end_times.get(fault.id, now) >= now]
        return self._active

    def clear(self, fault_id: str | None = None) -> int:
        """End the fault with the id `fault_id`; None ends all faults. Return the number of ended faults."""
        before = len(self._active)
        self._active = [fault for fault in self._active if fault_id not in (None, fault.id)]
        for ended in list(self._end_callbacks) if fault_id is None else [fault_id]:
            self._call_back(ended)
        return before - len(self._active)

    def call_at_end(self, fault: Fault, callback: Callable[[], None]) -> None:
        """Call `callback` when the fault ends.

        - A fault ends when its time (`for_seconds`) is over, or when `clear` deletes the fault.
        - A fault from a marker (a text in a request) ends only when `clear` deletes all faults.

        When the fault has affected `count` requests, `callback` is not called.
        """
        self._end_callbacks.setdefault(fault.id, []).append(callback)
        if fault.id in self._end_times:
            seconds_left = self._end_times[fault.id] - time.monotonic()
            asyncio.get_running_loop().call_later(seconds_left, self._call_back, fault.id)

    def _call_back(self, fault_id: str) -> None:
        for callback in self._end_callbacks.pop(fault_id, ()):
            callback()

    def fault_for(self, model: str, digest: bytes, attempt: int) -> Fault | None:
        """Return the fault that affects this attempt of a request; None if there is none.

        The attribute `hits` of the returned fault is increased by 1.

        `digest` is the digest of the request body. `attempt` is the number of the attempt, from 1.
        """
        if not self._active:
            return None
        for fault in self.active():
            is_over = fault.count is not None and fault.hits >= fault.count
            is_for_model = fault.model in (None, model)
            if not is_over and is_for_model and _is_hit(fault.rate, digest, attempt, fault.id):
                fault.hits += 1
                return fault
        return None

    def is_backend_down(self) -> bool:
        """Return True if a fault of the kind `down` is active for all models."""
        return any(fault.model is None and fault.name == "down" for fault in self.active())


def fault_from_marker(marker: str | None, digest: bytes, attempt: int) -> Fault | None:
    """Return the fault that a marker (a text in a request) asks for; None if this attempt is not affected.

    Args:
        marker: a text such as `sim:503*2`, for status 503 in the first two attempts. If the text does not
            begin with `sim:`, or if `marker` is None, the request asks for no fault.
        digest: digest of the request body.
        attempt: number of the attempt, starting at 1.

    Raises:
        ValueError: the marker has a wrong form.
    """
    if marker is None or not marker.startswith(MARKER):
        return None
    fault = parse_short(marker[len(MARKER) :].split(maxsplit=1)[0])
    is_over = fault.count is not None and attempt > fault.count
    return fault if not is_over and _is_hit(fault.rate, digest, attempt, "marker") else None


def _is_hit(rate: float, digest: bytes, attempt: int, salt: str) -> bool:
    return rate >= 1 or crc32(digest + salt.encode() + attempt.to_bytes(4, "big")) / 2**32 < rate
