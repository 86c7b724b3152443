"""What was read a moment ago is not read again."""

import pytest

from api.recent import Recent


class Source:
    def __init__(self) -> None:
        self.reads: list[str] = []
        self.now, self.fails = 0.0, False
        self.recent = Recent(self.read, 1.0, lambda: self.now)

    async def read(self, key: str) -> int:
        self.reads.append(key)
        if self.fails:
            raise OSError("away")
        return len(self.reads)


async def test_a_value_is_read_once_in_its_time_and_then_again() -> None:
    source = Source()
    assert [await source.recent.get("a"), await source.recent.get("a")] == [1, 1]
    source.now = 1.0
    assert await source.recent.get("a") == 2


async def test_each_key_has_its_own() -> None:
    source = Source()
    assert [await source.recent.get(key) for key in "abab"] == [1, 2, 1, 2]


async def test_a_failure_is_raised_and_not_kept() -> None:
    source = Source()
    source.fails = True
    with pytest.raises(OSError, match="away"):
        await source.recent.get("a")
    source.fails = False
    assert await source.recent.get("a") == 2
