"""Prefix groups: if a system prompt is in no cache yet, one of its lines is sent before the others."""

import pytest

from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_group_is_full_with_one_line_until_a_response_arrives() -> None:
    groups = PrefixGroups()
    assert not groups.is_full(1)
    groups.record_sent(1)
    assert (groups.is_full(1), groups.is_full(2)) == (True, False)
    groups.record_success(1)
    assert not groups.is_full(1)


def test_after_a_first_line_that_failed_one_more_is_sent() -> None:
    groups = PrefixGroups()
    groups.record_sent(1)
    groups.record_end(1)
    assert (groups.is_full(1), groups.lines_until_full(1)) == (False, 1)
    groups.record_sent(1)
    assert groups.is_full(1)


def test_a_group_stays_warm_while_its_lines_are_in_flight_and_for_a_minute_after_them() -> None:
    clock = Clock()
    groups = PrefixGroups(clock)
    groups.record_sent(1)
    groups.record_success(1)
    clock.now += 600
    groups.record_sent(1)
    assert not groups.is_full(1)
    for _ in range(2):
        groups.record_success(1)
        groups.record_end(1)
    clock.now += 60
    groups.record_sent(1)
    assert not groups.is_full(1)
    groups.record_end(1)
    clock.now += 0.5
    groups.record_sent(1)
    assert groups.is_full(1)


def test_lines_without_a_system_prompt_never_wait() -> None:
    groups = PrefixGroups()
    groups.set_width([1], is_affine=False)
    for _ in range(5):
        groups.record_sent(0)
    assert not groups.is_full(0)
    groups.record_end(0)


@pytest.mark.parametrize(
    ("in_flight", "is_affine", "expected"),
    [
        ([4], False, 1),
        ([8], False, 1),
        ([64], False, 8),
        ([64, 32], False, 12),
        ([64, 32], True, 4),
        ([64, None], False, None),
        ([None], True, None),
        ([], False, None),
    ],
)
def test_a_warm_group_has_a_limit_only_if_every_backend_states_its_own(
    in_flight: list[int | None], is_affine: bool, expected: int | None
) -> None:
    groups = PrefixGroups()
    groups.set_width(in_flight, is_affine=is_affine)
    groups.record_sent(1)
    groups.record_success(1)
    for _ in range(19 if expected is None else expected - 1):
        assert not groups.is_full(1)
        groups.record_sent(1)
    assert groups.is_full(1) is (expected is not None)


def test_of_warm_groups_that_are_idle_only_the_last_ten_thousand_are_remembered() -> None:
    groups = PrefixGroups()
    for group in (*range(1, 10_001), 1, 10_001):
        groups.record_success(group)
    for group in (1, 2, 3):
        groups.record_sent(group)
    assert [groups.is_full(group) for group in (1, 2, 3)] == [False, True, False]


def test_without_a_stated_number_no_prompt_is_in_a_slot() -> None:
    groups = PrefixGroups()
    groups.record_sent(1)
    groups.record_success(1)
    groups.record_end(1)
    assert groups.in_slot([1]) is None


def test_a_prompt_stays_in_its_slot_until_a_line_of_another_group_takes_the_slot() -> None:
    groups = PrefixGroups()
    groups.set_width([2], is_affine=False)

    def answered(*sent: int) -> None:
        for group in sent:
            groups.record_sent(group)
        for group in sent:
            groups.record_success(group)
            groups.record_end(group)

    answered(1, 2)
    answered(2)
    assert [groups.in_slot([group]) for group in (1, 2)] == [1, 2]
    answered(3)
    assert [groups.in_slot([group]) for group in (1, 2, 3)] == [None, 2, 3]
    groups.record_sent(2)
    assert groups.in_slot([2]) is None
    groups.record_sent(3)
    groups.record_end(2)
    groups.record_sent(4)
    for group in (3, 4):  # no line of group 4 has succeeded
        groups.record_end(group)
    assert [groups.in_slot([group]) for group in (2, 3, 4)] == [None, 3, None]
    groups.set_width([None], is_affine=False)
    assert groups.in_slot([2, 3]) is None


def with_warm_lines_in_flight(*sent: int, slots: int) -> PrefixGroups:
    """Return groups that each have a line in flight and have had a success, for a backend with `slots`."""
    groups = PrefixGroups()
    groups.set_width([slots], is_affine=False)
    for group in sent:
        groups.record_sent(group)
        groups.record_success(group)
    return groups


def test_a_line_that_waits_for_a_slot_takes_the_next_one_that_becomes_free() -> None:
    groups = with_warm_lines_in_flight(1, 2, 3, slots=2)
    groups.record_end(1)
    assert groups.in_slot([1]) is None
    groups.record_end(2)
    groups.record_end(3)
    assert [groups.in_slot([group]) for group in (1, 2, 3)] == [None, 2, 3]


@pytest.mark.parametrize("is_part", [False, True], ids=["of the backend", "of this process"])
def test_after_a_limit_was_lowered_a_slot_is_free_only_if_fewer_lines_are_in_flight(is_part: bool) -> None:
    groups = with_warm_lines_in_flight(1, 2, 3, 4, slots=4)
    if is_part:
        groups.max_in_flight = lambda: 2
    else:
        groups.set_width([2], is_affine=False)
    groups.record_end(1)
    groups.record_end(2)
    assert groups.in_slot([1, 2]) is None
    groups.record_end(3)
    assert [groups.in_slot([group]) for group in (1, 2, 3)] == [None, None, 3]


def test_of_more_free_slots_than_a_lowered_limit_those_that_were_used_last_are_remembered() -> None:
    groups = with_warm_lines_in_flight(1, 2, 3, 4, slots=4)
    for group in (1, 2, 3, 4):
        groups.record_end(group)
    groups.set_width([2], is_affine=False)
    assert [groups.in_slot([group]) for group in (1, 2, 3, 4)] == [None, None, 3, 4]


def test_of_prompts_in_free_slots_the_one_that_was_used_last_goes_first() -> None:
    """Other clients of the backend get the slot that was not used for the longest time."""
    groups = with_warm_lines_in_flight(1, 2, 3, slots=4)
    for group in (1, 2, 3):
        groups.record_end(group)
    assert groups.in_slot([1, 2]) == 2


@pytest.mark.parametrize(
    ("in_flight", "is_affine", "expected"),
    [([4], False, 4), ([8, 7], True, 15), ([8, 8], True, 0), ([64], False, 0), ([4, None], False, 0)],
)
def test_slots_are_known_only_if_all_backends_have_few(
    in_flight: list[int | None], is_affine: bool, expected: int
) -> None:
    groups = PrefixGroups()
    groups.set_width(in_flight, is_affine=is_affine)
    assert groups.slots == expected


def test_several_groups_are_seen_in_flight_and_in_free_slots() -> None:
    groups = PrefixGroups()
    groups.set_width([2], is_affine=False)
    for sent in (0, 1, 1):
        groups.record_sent(sent)
    assert not groups.has_several
    groups.record_sent(2)
    assert groups.has_several
    for ended in (1, 1, 2):
        groups.record_success(ended)
        groups.record_end(ended)
    assert not groups.has_several


def test_slots_are_kept_while_a_line_of_a_warm_group_is_in_flight() -> None:
    groups = PrefixGroups()
    groups.set_width([2], is_affine=False)
    groups.record_sent(1)
    assert not groups.must_keep_slots
    groups.record_success(1)
    assert groups.must_keep_slots
    groups.record_end(1)
    assert not groups.must_keep_slots
    groups.record_sent(1)
    groups.set_width([64], is_affine=False)
    assert not groups.must_keep_slots


def measured(first: float, later: float) -> PrefixGroups:
    """Return groups of lines, for a backend with two slots, with group 9 in flight once.

    The first line of each group took about `first` seconds, later lines about `later` seconds.
    """
    groups = PrefixGroups()
    groups.set_width([2], is_affine=False)
    for group in range(1, 5):
        groups.record_success(group, first + group / 10_000)
        groups.record_success(group, later + group / 10_000)
    groups.record_sent(9)
    return groups


def test_a_line_waits_for_the_slot_that_has_its_prompt_if_a_copy_would_save_less_time_than_it_takes() -> None:
    groups = measured(first=0.2, later=0.05)
    # Two slots would end ten lines after (0.5 + 0.15) / 2 s, which is 0.175 s earlier than one slot.
    assert groups.slot_wait_seconds(9, 10) == 0
    # Five lines would end after (0.25 + 0.15) / 2 s, which is only 0.05 s earlier.
    assert groups.slot_wait_seconds(9, 5) == pytest.approx(0.45, abs=0.01)
    groups.record_sent(9)
    assert groups.slot_wait_seconds(9, 10) == pytest.approx(0.6, abs=0.01)


def test_no_line_waits_longer_than_a_second_and_none_waits_if_the_lines_before_it_take_a_second() -> None:
    groups = measured(first=60.0, later=0.2)
    assert [groups.slot_wait_seconds(9, lines) for lines in (1, 4, 6)] == [1.0, 1.0, 0.0]


def test_no_line_waits_if_a_prompt_takes_no_time_or_if_its_time_is_not_known() -> None:
    assert measured(first=1.0, later=1.0).slot_wait_seconds(9, 1) == 0
    assert PrefixGroups().slot_wait_seconds(9, 1) == 0
    groups = PrefixGroups()
    for group, seconds in enumerate((9.0, 2.0, 4.0, 8.0)):
        groups.record_success(1 + group, seconds)
    assert groups.slot_wait_seconds(9, 1) == 0  # no later line has ended


def test_first_lines_that_took_longer_by_chance_or_because_a_model_was_loaded_make_no_line_wait() -> None:
    groups = PrefixGroups()
    for group, (first, later) in enumerate(((1.0, 9.0), (90.0, 1.0), (80.0, 2.0), (2.0, 4.0)), 1):
        groups.record_success(group, first)
        groups.record_success(group, later)
    assert groups.slot_wait_seconds(9, 1) == 0


def test_the_time_that_a_prompt_takes_is_that_of_the_last_responses() -> None:
    groups = measured(first=4.0, later=1.0)
    for number in range(100):
        groups.record_success(100 + number, 0.2)
        groups.record_success(100 + number, 0.1)
    assert groups.slot_wait_seconds(9, 1) == pytest.approx(0.3, abs=0.01)
