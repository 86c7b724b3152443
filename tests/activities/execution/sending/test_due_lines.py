"""The order in which a slice sends its due lines.

Lines with the same system prompt form a prefix group. If a group may send no more lines now, its lines are
skipped while other lines are due.
"""

from dataclasses import dataclass

import pytest

from batchwright.activities.execution.slice_state.line_queue import DueLines, PromptCost
from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups


@dataclass(frozen=True)
class Due:
    name: str
    due_group: int


def due(prefixes: PrefixGroups, names: str) -> DueLines[Due]:
    """Return due lines with these names, which are separated by spaces.

    A line whose name begins with `a` belongs to prefix group 1, with `b` to group 2, and so on. `-` is in no
    group.
    """
    lines = DueLines[Due](prefixes)
    for name in names.split():
        lines.append(Due(name, "-abcdefgh".index(name[0])))
    return lines


def names(lines: DueLines[Due], prefixes: PrefixGroups) -> list[str]:
    """Send all lines, and return their names in the order in which they are sent."""
    sent: list[str] = []
    while (line := lines.pop()) is not None:
        prefixes.record_sent(line.due_group)
        sent.append(line.name)
    return sent


def test_the_first_lines_of_all_groups_are_sent_before_any_second_line() -> None:
    prefixes = PrefixGroups()
    sent = names(due(prefixes, "- a1 a2 b1 b2 b3 c1"), prefixes)
    assert sent == ["-", "a1", "b1", "c1", "a2", "b2", "b3"]


def test_lines_of_a_warm_group_follow_before_other_groups_begin() -> None:
    prefixes = PrefixGroups()
    prefixes.record_success(1)
    assert names(due(prefixes, "a1 a2 a3 b1 b2 c1"), prefixes) == ["a1", "a2", "a3", "b1", "c1", "b2"]


def test_a_line_that_is_put_back_keeps_its_place_and_that_of_its_group() -> None:
    lines = due(PrefixGroups(), "a1 b1 b2")
    first = lines.pop()
    assert first is not None
    lines.push_front(first)
    assert [line.name for line in lines] == ["a1", "b1", "b2"]


def test_lines_of_full_groups_are_not_counted() -> None:
    prefixes = PrefixGroups()
    prefixes.record_sent(1)
    lines = due(prefixes, "a1 a2 b1 b2 b3 -1 -2")
    assert lines.count_outside_full_groups() == 3


def test_a_line_whose_system_prompt_is_in_a_free_slot_goes_first() -> None:
    prefixes = PrefixGroups()
    prefixes.set_width([2], is_affine=False)
    lines = due(prefixes, "a1 b1 b2 c1")
    assert lines.prompt_cost() is PromptCost.ONE_PROMPT
    prefixes.record_sent(2)
    prefixes.record_success(2)
    prefixes.record_end(2)
    assert lines.prompt_cost() is PromptCost.NONE
    assert names(lines, prefixes) == ["b1", "a1", "c1", "b2"]


@pytest.mark.parametrize(
    ("in_flight", "sent"), [(2, ["b1", "a1", "b2", "b3"]), (64, ["a1", "b1", "b2", "b3"])]
)
def test_if_all_groups_are_full_few_slots_help_the_group_with_the_most_lines_for_each_in_flight(
    in_flight: int, sent: list[str]
) -> None:
    prefixes = PrefixGroups()
    prefixes.set_width([in_flight], is_affine=False)
    lines = due(prefixes, "a1 b1 b2 b3")
    for group in (1, 2):
        prefixes.record_sent(group)
    assert names(lines, prefixes) == sent


def test_a_second_copy_of_a_prompt_costs_less_if_more_lines_follow() -> None:
    prefixes = PrefixGroups()
    prefixes.set_width([2], is_affine=False)
    few, many = due(prefixes, "a1"), due(prefixes, "b1 b2 b3")
    for group in (1, 2):
        prefixes.record_sent(group)
    assert PromptCost.SECOND_COPY < many.prompt_cost() < few.prompt_cost()
    prefixes.set_width([64], is_affine=False)
    assert few.prompt_cost() == many.prompt_cost() == PromptCost.ONE_PROMPT
