"""Parse references to encryption keys, such as `id=file:PATH`."""

import re
from typing import Literal, NamedTuple

_KEY_REFERENCE = re.compile(r"(?P<id>[A-Za-z0-9._-]{1,64})=(?P<kind>file|env):(?P<place>.+)", re.DOTALL)


class KeyReference(NamedTuple):
    """A reference to an encryption key: where the key is stored, but not the key itself.

    Attributes:
        id: name of the key. The name is stored together with the encrypted data.
        kind: `file` or `env`.
        place: path of the file, or name of the environment variable.
    """

    id: str  # stored with every payload that was encrypted with the key
    kind: Literal["file", "env"]
    place: str


def parse_key_references(references: list[str]) -> list[KeyReference]:
    """Parse references of the form `id=file:PATH` or `id=env:NAME`. Return them in the given order.

    Raises:
        ValueError: a reference has another form, or two references have the same id.
    """
    found = [_parse_reference(text) for text in references]
    ids = [reference.id for reference in found]
    for key_id in ids:
        if ids.count(key_id) > 1:
            raise ValueError(f"two keys have the id {key_id!r}")
    return found


def _parse_reference(text: str) -> KeyReference:
    match = _KEY_REFERENCE.fullmatch(text)
    if match is None:
        # The message does not quote the reference, because it may be the key itself.
        raise ValueError("a key is not given as id=file:PATH or id=env:NAME")
    kind: Literal["file", "env"] = "file" if match["kind"] == "file" else "env"
    return KeyReference(match["id"], kind, match["place"])
