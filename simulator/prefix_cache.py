"""Simulated prefix cache of an inference server: a cache of the beginnings of prompts.

The least recently used parts of prompts are removed first.
"""

from collections import OrderedDict

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 16
_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


def token_count(text: bytes) -> int:
    """Return the estimated number of tokens in a text: a quarter of its bytes, rounded up."""
    return -(-len(text) // BYTES_PER_TOKEN)


class PrefixCache:
    """An imitation of one model's prefix cache, in which a server keeps the beginnings of earlier prompts.

    The cache has space for `budget_tokens` tokens. If this number is 0, nothing is cached.
    """

    def __init__(self, budget_tokens: int) -> None:
        self._capacity = budget_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, prompt: bytes) -> int:
        """Add `prompt` to the cache. Return how many tokens at its beginning were already in the cache."""
        if not self._capacity:
            return 0
        chain = _chain(prompt)
        hits = next((i for i, block in enumerate(chain) if block not in self._blocks), len(chain))
        # From the last block to the first, so that the end of a prompt is evicted before its beginning.
        for block in reversed(chain[: self._capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return hits * BLOCK_TOKENS


def _chain(prompt: bytes) -> list[int]:
    """Return one hash for each full block (64 bytes) of the prompt.

    The hash of a block is computed from this block and all earlier blocks.
    """
    chain: list[int] = []
    last = 0
    for start in range(0, len(prompt) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        last = hash((last, prompt[start : start + _BLOCK_BYTES]))
        chain.append(last)
    return chain
