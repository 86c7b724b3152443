"""A prefix cache as inference servers have one: chained blocks of prompts, least recently used out."""

from collections import OrderedDict

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 16
_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


def token_count(text: bytes) -> int:
    """Four bytes are a token: near enough, and the same on every machine."""
    return -(-len(text) // BYTES_PER_TOKEN)


class PrefixCache:
    """Holds at most `budget_tokens`; 0 switches it off."""

    def __init__(self, budget_tokens: int) -> None:
        self._capacity = budget_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, prompt: bytes) -> int:
        """How many leading tokens of `prompt` were held; afterwards all its whole blocks are."""
        if not self._capacity:
            return 0
        chain = _chain(prompt)
        hits = next((i for i, block in enumerate(chain) if block not in self._blocks), len(chain))
        # From the leaf to the root, so that a chain loses its end before its beginning.
        for block in reversed(chain[: self._capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return hits * BLOCK_TOKENS


def _chain(prompt: bytes) -> list[int]:
    """A number for each whole block that stands for it and everything before it."""
    chain: list[int] = []
    last = 0
    for start in range(0, len(prompt) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        last = hash((last, prompt[start : start + _BLOCK_BYTES]))
        chain.append(last)
    return chain
