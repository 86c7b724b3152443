"""Decides which requests are equal: those with the same model, and bodies with the same meaning.

The order of the fields and white space do not matter. Numbers must be written in the same way.
"""

import json
from operator import itemgetter


class _Number(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def canonical_body(body: bytes) -> bytes:
    """Return a JSON body in a normal form, so that bodies with the same meaning can be compared as bytes.

    A body that is nested too deeply is returned unchanged.
    """
    try:
        value: object = json.loads(
            body,
            parse_int=_Number,
            parse_float=_Number,
            object_pairs_hook=lambda pairs: tuple(sorted(pairs, key=itemgetter(0))),
        )
        return repr(value).encode()
    except RecursionError:
        return body
