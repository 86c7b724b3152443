"""How long an answer takes."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

_NORMAL = NormalDist()
_FIELDS = ("latency_ms", "jitter", "token_ms", "prompt_token_ms")


@dataclass(frozen=True, slots=True)
class Latency:
    """`latency_ms` times a lognormal factor of median 1 and sigma `jitter`, plus `token_ms` per output
    token, plus `prompt_token_ms` per prompt token that was not in the prefix cache."""

    latency_ms: float = 0.0
    jitter: float = 0.0
    token_ms: float = 0.0
    prompt_token_ms: float = 0.0

    def seconds(self, *, uncached: int, output: int, digest: bytes) -> float:
        """The same for the same body: `digest` takes the place of chance."""
        wait = self.latency_ms
        if self.jitter and wait:
            chance = (int.from_bytes(digest[:4], "big") + 0.5) / 2**32
            wait *= math.exp(self.jitter * _NORMAL.inv_cdf(chance))
        return (wait + self.token_ms * output + self.prompt_token_ms * uncached) / 1000


def parse_override(text: str, default: Latency) -> tuple[str, Latency]:
    """`model:latency_ms=200,jitter=0.3` as the model's name and `default` with those changed.

    Raises:
        ValueError: with a message that says what is expected.
    """
    model, colon, fields = text.rpartition(":")
    changes: dict[str, float] = {}
    for field in fields.split(","):
        name, _, value = field.partition("=")
        if not colon or name not in _FIELDS:
            raise ValueError(f"{text!r} is not MODEL:FIELD=NUMBER[,...] with a field of {', '.join(_FIELDS)}")
        changes[name] = float(value)
    return model, replace(default, **changes)
