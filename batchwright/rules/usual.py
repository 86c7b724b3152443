"""Lines as nearly all are, read in one pass; one that is not of this shape has to be looked at carefully."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from batchwright.rules.lines import UNREADABLE, Line, Prompting

_SPARE_FRAMES = 200
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)] | UnsetType | None


class UsualBody(Prompting, gc=False):
    model: _Text | UnsetType = UNSET
    stream: bool | UnsetType | None = UNSET
    max_tokens: _Count = UNSET
    max_completion_tokens: _Count = UNSET
    max_output_tokens: _Count = UNSET


class UsualLine(Struct, gc=False):
    """Of equal keys the last counts, as long as each is of its type."""

    custom_id: _Text
    body: UsualBody
    method: Literal["POST"] | UnsetType = UNSET
    url: str | UnsetType = UNSET


_LINE = msgspec.json.Decoder(UsualLine)


def usual_lines(lines: Sequence[Line]) -> list[UsualLine | None]:
    """What each says; None where that has to be looked at carefully.

    The interpreter limits nesting by what is left of its stack: with less of it here than anywhere else, what
    is accepted can always be read again.
    """
    return _deep_down(lines, _SPARE_FRAMES)


def _deep_down(lines: Sequence[Line], frames: int) -> list[UsualLine | None]:
    return _deep_down(lines, frames - 1) if frames else [_usual(line.data) for line in lines]


def _usual(line: bytes | None) -> UsualLine | None:
    if line is None:
        return None
    try:
        if not line.isascii():
            line.decode()
        return _LINE.decode(line)
    except UNREADABLE:
        return None
