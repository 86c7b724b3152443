"""The choice between several backends for a request."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from batchwright.rules.dispatch.load_balancing import least_outstanding, prefix_affine


@dataclass(eq=False)
class Spot:
    key: str
    weight: float = 1.0
    outstanding: int = 0


def drawing(*draws: float) -> Callable[[], float]:
    left: Iterator[float] = iter(draws)
    return lambda: next(left)


def test_two_are_drawn_and_the_less_busy_wins() -> None:
    a, b, idle = Spot("a", outstanding=5), Spot("b", outstanding=4), Spot("idle")
    assert least_outstanding([a, b, idle], drawing(0.0, 0.0)) is b
    assert least_outstanding([a, b, idle], drawing(0.5, 0.0)) is b
    assert least_outstanding([a, b, idle], drawing(0.0, 0.9)) is idle


def test_of_equally_busy_backends_the_first_drawn_wins() -> None:
    a, b = Spot("a"), Spot("b")
    assert [least_outstanding([a, b], drawing(at, 0.0)) for at in (0.1, 0.6)] == [a, b]


def test_load_is_divided_by_weight() -> None:
    strong, weak = Spot("strong", weight=4, outstanding=6), Spot("weak", outstanding=1)
    assert least_outstanding([weak, strong], drawing(0.0, 0.0)) is strong


def test_the_highest_draw_still_finds_a_backend() -> None:
    spots = [Spot("a", 0.1), Spot("b", 0.2), Spot("c", 0.7)]
    assert least_outstanding(spots, lambda: 1.0 - 2**-53) in spots


def test_prefixes_are_distributed_by_weight() -> None:
    heavy, light = Spot("heavy", weight=3), Spot("light")
    counts = Counter(prefix_affine([heavy, light], prefix).key for prefix in range(1, 4001))
    assert 2850 < counts["heavy"] < 3150


def test_a_heavy_backend_beside_many_light_ones_gets_its_part_of_the_prefixes() -> None:
    spots = [Spot("heavy", weight=2), *(Spot(f"light {number}") for number in range(8))]
    counts = Counter(prefix_affine(spots, prefix).key for prefix in range(1, 4001))
    assert 700 < counts["heavy"] < 900  # two of ten


def test_the_order_of_backends_does_not_matter_to_a_prefix() -> None:
    spots = [Spot(name) for name in "abcde"]
    for prefix in range(1, 100):
        assert prefix_affine(spots, prefix) is prefix_affine(spots[::-1], prefix)


def test_a_new_backend_moves_no_prefix_between_the_others() -> None:
    old, new = [Spot("a"), Spot("b")], Spot("c")
    for prefix in range(1, 200):
        assert prefix_affine([*old, new], prefix) in (new, prefix_affine(old, prefix))


def test_a_much_busier_backend_is_skipped() -> None:
    a, b = Spot("a"), Spot("b")
    home = prefix_affine([a, b], 1)
    other = b if home is a else a
    home.outstanding = 4
    assert prefix_affine([a, b], 1) is home
    home.outstanding = 5
    assert prefix_affine([a, b], 1) is other


@pytest.mark.parametrize(
    ("weak_outstanding", "strong_outstanding", "keeps"),
    [(0, 16, True), (0, 17, False), (1, 24, True), (1, 25, False)],
)
def test_a_backend_with_four_times_the_weight_is_skipped_at_four_times_the_requests(
    weak_outstanding: int, strong_outstanding: int, keeps: bool
) -> None:
    strong, weak = Spot("strong", weight=4), Spot("weak")
    home = next(prefix for prefix in range(1, 100) if prefix_affine([strong, weak], prefix) is strong)
    strong.outstanding, weak.outstanding = strong_outstanding, weak_outstanding
    assert (prefix_affine([strong, weak], home) is strong) is keeps


def test_the_least_busy_backend_is_found_by_weight_too() -> None:
    strong, weak = Spot("strong", weight=4), Spot("weak")
    home = next(prefix for prefix in range(1, 100) if prefix_affine([strong, weak], prefix) is weak)
    strong.outstanding, weak.outstanding = 4, 6
    assert prefix_affine([strong, weak], home) is weak
    weak.outstanding = 7
    assert prefix_affine([strong, weak], home) is strong


def test_a_line_without_a_prefix_goes_to_the_least_busy_backend() -> None:
    busy, idle = Spot("busy", outstanding=3), Spot("idle")
    assert prefix_affine([busy, idle], 0, drawing(0.0, 0.0)) is idle
