"""What all tests of activities have in common."""

import pytest


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """A slice that waits for its backend looks a hundred times a second whether it is there again."""
    monkeypatch.setattr("activities.slices.turn._LOOK_AGAIN_SECONDS", 0.01)
