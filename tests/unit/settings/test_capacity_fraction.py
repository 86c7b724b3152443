"""The setting that keeps a part of the backends' capacity free for interactive requests."""

import pytest

from batchwright.settings import load


@pytest.mark.parametrize(
    ("of_all", "of_model", "is_shared"),
    [(1.0, None, False), (1.0, 1.0, False), (1.0, 0.5, True), (0.5, None, True), (0.5, 1.0, True)],
)
def test_capacity_is_shared_if_a_part_of_it_is_kept_free(
    of_all: float, of_model: float | None, is_shared: bool
) -> None:
    settings = load(capacity_fraction=of_all, models={"m": {"capacity_fraction": of_model}})
    assert settings.is_shared == is_shared
