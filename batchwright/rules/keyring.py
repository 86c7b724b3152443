"""Where the keys of payloads are kept: `id=file:PATH` or `id=env:NAME`."""

import re
from typing import Literal, NamedTuple

_FORM = re.compile(r"(?P<id>[A-Za-z0-9._-]{1,64})=(?P<kind>file|env):(?P<place>.+)", re.DOTALL)


class KeyReference(NamedTuple):
    id: str  # stands beside every payload that the key encrypted
    kind: Literal["file", "env"]
    place: str


def key_references(references: list[str]) -> list[KeyReference]:
    """In the given order.

    Raises:
        ValueError: one has another form, or two have one id.
    """
    found = [_reference(text) for text in references]
    ids = [reference.id for reference in found]
    for key_id in ids:
        if ids.count(key_id) > 1:
            raise ValueError(f"two keys have the id {key_id!r}")
    return found


def _reference(text: str) -> KeyReference:
    match = _FORM.fullmatch(text)
    if match is None:
        # Not quoted: what stands here instead of a reference may be the key itself.
        raise ValueError("a key is not given as id=file:PATH or id=env:NAME")
    kind: Literal["file", "env"] = "file" if match["kind"] == "file" else "env"
    return KeyReference(match["id"], kind, match["place"])
