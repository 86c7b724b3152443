"""What goes wrong on purpose, by model, by a marker in the body, or as told by POST /admin/faults."""

import re
import time
from collections.abc import Iterable
from zlib import crc32

import msgspec

KINDS = ("slow", "hang", "cut", "garbage", "truncated", "down", "fail")
_SHORT = re.compile(
    r"(?P<kind>[a-z]+|[45]\d\d)(?:=(?P<seconds>\d+(?:\.\d+)?))?(?:\*(?P<count>\d+))?(?:@(?P<rate>\d*\.?\d+))?"
)
MARKER = "sim:"


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """`kind` is an HTTP status of 400 to 599 or one of KINDS.

    model        only its requests; None: all, and then /v1/models and /healthz too where `kind` is `down`
    rate         the share of requests it hits, 0 to 1, chosen by the body's digest and the number of the ask
    count        ends after so many hits; in a marker: hits the first so many asks of that request
    retry_after  header of that name, in seconds
    seconds      how long `slow` delays and `hang` hangs (hang without it: until the client gives up)
    for_seconds  ends by itself so long after it began
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
        """Of a kind that is an HTTP status."""
        return int(self.kind) if self.name.isdigit() else None


def parse_short(text: str) -> Fault:
    """`kind[=seconds][*count][@rate]`; the seconds of an HTTP status are its Retry-After.

    Raises:
        ValueError: with a message that says what is expected.
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
    """Those in force, oldest first: of several that fit, the oldest hits."""

    def __init__(self, initial: Iterable[Fault] = ()) -> None:
        self._held: list[Fault] = []
        self._ends: dict[str, float] = {}
        self._made = 0
        for fault in initial:
            self.add(fault)

    def add(self, fault: Fault) -> Fault:
        self._made += 1
        fault.id, fault.hits = f"fault-{self._made}", 0
        if fault.for_seconds is not None:
            self._ends[fault.id] = time.monotonic() + fault.for_seconds
        self._held.append(fault)
        return fault

    def active(self) -> list[Fault]:
        if self._ends:
            now = time.monotonic()
            self._held = [fault for fault in self._held if self._ends.get(fault.id, now) >= now]
        return self._held

    def clear(self, fault_id: str | None = None) -> int:
        """Ends one, or all; how many that were."""
        before = len(self._held)
        self._held = [fault for fault in self._held if fault_id not in (None, fault.id)]
        return before - len(self._held)

    def hitting(self, model: str, digest: bytes, asked: int) -> Fault | None:
        """The fault that the request's `asked`th ask of `model` meets; counts the hit."""
        if not self._held:
            return None
        for fault in self.active():
            exhausted = fault.count is not None and fault.hits >= fault.count
            if (
                not exhausted
                and fault.model in (None, model)
                and _chosen(fault.rate, digest, asked, fault.id)
            ):
                fault.hits += 1
                return fault
        return None

    def whole_backend(self, kinds: Iterable[str]) -> Fault | None:
        """A fault of one of `kinds` that is not limited to a model."""
        return next((f for f in self.active() if f.model is None and f.name in kinds), None)


def marked(marker: str | None, digest: bytes, asked: int) -> Fault | None:
    """The fault a marker asks for, if it still hits at the `asked`th ask.

    Raises:
        ValueError: the marker cannot be read.
    """
    if marker is None or not marker.startswith(MARKER):
        return None
    fault = parse_short(marker[len(MARKER) :].split(maxsplit=1)[0])
    over = fault.count is not None and asked > fault.count
    return fault if not over and _chosen(fault.rate, digest, asked, "marker") else None


def _chosen(rate: float, digest: bytes, asked: int, salt: str) -> bool:
    return rate >= 1 or crc32(digest + salt.encode() + asked.to_bytes(4, "big")) / 2**32 < rate
