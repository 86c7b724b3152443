"""Latency of simulated responses. It depends on the model and on the numbers of tokens."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

_NORMAL = NormalDist()
_FIELDS = ("latency_ms", "jitter", "token_ms", "prompt_token_ms")


def random_factor(sigma: float, seed: bytes) -> float:
    """Return a random factor from a lognormal distribution with median 1. Equal seeds give equal factors.

    Args:
        sigma: standard deviation of the logarithm of the factor.
        seed: four bytes from which the factor is computed.
    """
    chance = (int.from_bytes(seed, "big") + 0.5) / 2**32
    return math.exp(sigma * _NORMAL.inv_cdf(chance))


@dataclass(frozen=True, slots=True)
class Latency:
    """The parameters for the latency of a model's responses. All times are in milliseconds.

    The latency is the sum of three parts:

    - `latency_ms` times a random factor. The factor is lognormal with median 1 and sigma `jitter`.
    - `token_ms` for each output token.
    - `prompt_token_ms` for each prompt token that was not in the prefix cache.
    """

    latency_ms: float = 0.0
    jitter: float = 0.0
    token_ms: float = 0.0
    prompt_token_ms: float = 0.0

    def seconds(self, *, uncached: int, output: int, digest: bytes) -> float:
        """Return the latency of a response in seconds.

        Args:
            uncached: number of prompt tokens that were not in the prefix cache.
            output: number of output tokens.
            digest: digest of the request body. Equal digests have the same random factor.
        """
        wait = self.latency_ms
        if self.jitter and wait:
            wait *= random_factor(self.jitter, digest[:4])
        return (wait + self.token_ms * output + self.prompt_token_ms * uncached) / 1000


def parse_override(text: str, default: Latency) -> tuple[str, Latency]:
    """Parse a text such as `model:latency_ms=200,jitter=0.3`. Return the model and its latency.

    Fields that are not in the text have the values of `default`.

    Raises:
        ValueError: the text has a wrong form. The message shows the expected form.
    """
    model, colon, fields = text.rpartition(":")
    changes: dict[str, float] = {}
    for field in fields.split(","):
        name, _, value = field.partition("=")
        if not colon or name not in _FIELDS:
            raise ValueError(f"{text!r} is not MODEL:FIELD=NUMBER[,...] with a field of {', '.join(_FIELDS)}")
        changes[name] = float(value)
    return model, replace(default, **changes)
