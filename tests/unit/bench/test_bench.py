"""The benchmark's evaluation: medians, targets, the page, and the inputs. These tests measure no times."""

import json
import tracemalloc
from itertools import permutations
from pathlib import Path
from random import Random
from statistics import median

import pytest
from msgspec.structs import replace

from batchwright.rules.input.custom_id_search import CustomIdPart
from bench import page
from bench.activities.harness import BATCH_ID, TENANT, order
from bench.activities.ingestion import measured_database
from bench.cached_engine import CachedEngine, lines_with_shared_prompts, run_lines
from bench.call_stacks import read_stacks, report
from bench.compare import compared, merged
from bench.inputs import MODELS, chat_line, write_input, write_unshared
from bench.longest_first import WORKS, seconds
from bench.page import bar_chart
from bench.prefix_order import best_ratio, hit_ratio, in_order, interleaved, mixes
from bench.results import (
    BenchmarkReport,
    Figure,
    Machine,
    SectionResult,
    Target,
    number,
    percentile,
    summary_table,
)
from bench.section import SectionOptions
from bench.sections import SECTIONS
from bench.sections.calls import Call, answers_per_second
from bench.sections.ingestion import lines
from bench.sections.progress import ProgressSample, oldest
from bench.sections.uneven import utilization
from bench.stage_attribution import EVENT_LOOP, STAGES, shares, stage_of

MOST, LEAST = Target(3.0), Target(0.5, "at least", 0.8)


def a_figure(*rounds: float, target: Target | None = None, unit: str = "") -> Figure:
    return Figure("x", "what", list(rounds), unit, target)


def a_report(*figures: Figure, quick: bool = False, error: str = "") -> BenchmarkReport:
    machine = Machine(2, 24.0, "a processor", "Linux 6", {"python": "3.11"})
    section = SectionResult("one", "First", "What was run.", 1.0, list(figures), error)
    return BenchmarkReport("2026-01-01T00:00:00", "abc", quick, 5, 60.0, machine, [section])


def test_a_figure_is_the_median_of_its_rounds() -> None:
    assert a_figure(9.0, 1.0, 2.0).value == 2.0


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [
        (3.0, MOST, "met"),
        (6.0, MOST, "short by 2.00x"),
        (0.5, LEAST, "met"),
        (0.25, LEAST, "short by 2.00x"),
        (0.0, LEAST, "short"),
        (7.0, None, ""),
    ],
)
def test_a_verdict_says_met_or_how_far_it_falls_short(
    value: float, target: Target | None, verdict: str
) -> None:
    assert a_figure(value, target=target).verdict == verdict


def test_a_target_is_worded_with_its_aim_and_unit() -> None:
    assert a_figure(1.0, target=LEAST).wanted == "at least 0.500, aim 0.800"
    assert a_figure(1.0, target=MOST, unit="s").wanted == "at most 3.00 s"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert number(value) == text


def test_the_page_names_each_target_and_its_shortfall() -> None:
    text = page.text(a_report(a_figure(6.0, target=MOST)), "Notes.")
    assert "0 of 1 are met." in text
    assert "| First: what | 6.00 | at most 3.00 | **short by 2.00x** |" in text
    assert text.endswith("## What this means\n\nNotes.\n")


def test_scenarios_of_one_measure_are_one_target_of_the_page_that_the_worst_has_to_meet() -> None:
    figures = [
        Figure(f"{place}", what, [value], target=target)
        for place, (what, value, target) in enumerate(
            [
                ("in use: short", 0.9, LEAST),
                ("in use: long", 0.6, LEAST),
                ("of greedy: short", 2.0, MOST),
                ("of greedy: long", 4.0, MOST),
                ("a few: ours, of the best", 0.7, LEAST),
                ("many: ours, of the best", 0.8, LEAST),
                ("in use: another target", 2.5, MOST),
                ("in use: no target", 0.1, None),
            ]
        )
    ]
    targets, section = page.text(a_report(*figures), "").split("## First")
    assert "3 of 4 are met." in targets
    assert [line for line in targets.splitlines() if line.startswith("| First")] == [
        "| First: in use: long (the worst of 2 scenarios) | 0.600 | at least 0.500, aim 0.800 | met |",
        "| First: of greedy: long (the worst of 2 scenarios) | 4.00 | at most 3.00 | **short by 1.33x** |",
        "| First: a few: ours, of the best (the worst of 2 scenarios) "
        "| 0.700 | at least 0.500, aim 0.800 | met |",
        "| First: in use: another target | 2.50 | at most 3.00 | met |",
    ]
    assert all(f"| {figure.what} | {figure.shown} |" in section for figure in figures)


@pytest.mark.parametrize(("lost", "remark"), [(0.0, ""), (9.0, " (too low: 9 spans of all rounds were lost")])
def test_the_page_says_beside_the_cost_of_spans_that_some_were_lost(lost: float, remark: str) -> None:
    cost = Figure("tracing.on", "with spans", [50.0], "us")
    text = page.text(a_report(cost, Figure("tracing.lost", "spans lost", [lost])), "")
    assert f"| with spans{remark or ' |'}" in text


def test_the_head_of_the_page_leaves_commit_and_rounds_to_the_sections() -> None:
    head, _ = page.text(a_report(a_figure(1.0)), "").split("## Targets")
    assert "Each section names its own date and\ncommit, and each row its number of rounds" in head
    assert "`abc`" not in head


def test_the_page_says_when_a_run_was_small_or_a_section_failed() -> None:
    text = page.text(a_report(quick=True, error="SystemExit: no simulator"), "")
    assert "its figures have no meaning" in text
    assert "**SystemExit: no simulator**" in text
    assert "its figures have no meaning" not in page.text(a_report(), "")


def test_the_page_has_the_command_date_commit_and_load_of_each_section() -> None:
    report = a_report(a_figure(1.0))
    measured = replace(report.sections[0], at="2026-02-03T04:05:06", commit="def", load=1.25)
    text = page.text(replace(report, sections=[measured]), "")
    assert "`python -m bench --only one`, 2026-02-03, commit `def`, on a machine with a load of 1.2" in text


def test_a_run_of_some_sections_replaces_only_these_on_the_page() -> None:
    def report(*names: str, commit: str, cores: int = 2) -> BenchmarkReport:
        sections = [SectionResult(name, "", "", 1.0, [a_figure(1.0)], commit=commit) for name in names]
        whole = a_report()
        return replace(whole, machine=replace(whole.machine, cores=cores), sections=sections)

    stored = report("whole", "small", commit="old")
    both = page.merged(stored, report("stages", "small", commit="new"))
    assert [(section.name, section.commit) for section in both.sections] == [
        ("whole", "old"),
        ("stages", "new"),
        ("small", "new"),
    ]
    newer = report("whole", "small", commit="new", cores=64)
    assert page.merged(stored, newer) is newer
    with pytest.raises(SystemExit, match="another machine"):
        page.merged(stored, report("small", commit="new", cores=64))
    with pytest.raises(SystemExit, match="not measured: one"):
        page.merged(stored, a_report(error="broken"))


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (
            ("main (batchwright/worker/main.py)", "data_received (inference/transport/http_connection.py)"),
            "HTTP exchange",
        ),
        (("run (activities/ingestion/activity.py)", "write (batchwright/storage/local.py)"), "ingestion"),
        (("run (activities/execution/attempt.py)", "encode (msgspec.py)"), "dispatch of lines"),
        (("main (batchwright/worker/main.py)", "run_forever (uvloop)"), EVENT_LOOP),
    ],
)
def test_a_call_stack_belongs_to_a_whole_step_or_to_its_innermost_stage(
    stack: tuple[str, ...], stage: str
) -> None:
    assert stage_of(stack) == stage


def test_the_shares_of_all_stages_add_up_to_one() -> None:
    found = shares(read_stacks(["run (activities/ingestion/x.py) 1", "poll (uvloop) 3"]))
    assert list(found) == list(STAGES)
    assert (found["ingestion"], found[EVENT_LOOP], sum(found.values())) == (0.25, 0.75, 1.0)


def test_the_page_and_the_plot_match_the_stored_json() -> None:
    for path, content in page.pages().items():
        assert path.read_text() == content, "run `make docs`"


def test_the_stored_json_has_every_section_of_the_benchmark() -> None:
    stored = page.read(Path(page.__file__).parents[1] / "docs" / "performance.json")
    named = {section.name for section in stored.sections}
    assert [section.name for section in SECTIONS if section.on_the_page and section.name not in named] == []


def test_the_summary_counts_met_targets_and_names_failed_sections() -> None:
    text = summary_table(a_report(a_figure(1.0, target=MOST), a_figure(6.0, target=MOST), error="broken"))
    assert "1 of 2 targets met" in text
    assert "one: broken" in text


def test_longer_bars_are_larger_values_and_names_are_escaped() -> None:
    svg = bar_chart("<title>", [("a", 1000.0), ("b & c", 10.0)])
    assert "&lt;title&gt;" in svg
    assert "b &amp; c" in svg
    assert svg.count("<rect") == 2
    assert 'width="470" height="24"' in svg


def test_a_section_stops_its_rounds_when_its_time_is_over(tmp_path: Path) -> None:
    options = SectionOptions(tmp_path, rounds=5)
    assert list(options.turns(3600.0)) == [1, 2, 3, 4, 5]
    assert list(options.turns(-1.0)) == [1]
    assert list(options.turns(3600.0, rounds=2)) == [1, 2]


def test_sections_have_names_of_their_own_and_fit_the_default_time() -> None:
    names = [section.name for section in SECTIONS]
    assert len(set(names)) == len(names)
    assert sum(section.minutes for section in SECTIONS) <= 52.0


@pytest.mark.parametrize("line_bytes", [700, 1024, 4000])
def test_a_request_has_the_requested_size(line_bytes: int) -> None:
    line = chat_line(7, "m", line_bytes)
    assert abs(len(line) - line_bytes) <= 16
    assert json.loads(line)["custom_id"] == "line-7"


def test_an_input_spreads_its_lines_over_the_models(tmp_path: Path) -> None:
    write_input(tmp_path / "in", 6)
    written = [json.loads(line)["body"]["model"] for line in (tmp_path / "in").read_text().splitlines()]
    assert written == [*MODELS, *MODELS]


def test_lines_without_a_shared_prefix_begin_differently(tmp_path: Path) -> None:
    write_unshared(tmp_path / "in", 50)
    found = [json.loads(line)["body"]["messages"] for line in (tmp_path / "in").read_text().splitlines()]
    assert len({messages[0]["content"][:7] for messages in found}) == 50


def test_lines_for_ingestion_have_their_size_and_are_json() -> None:
    written = list(lines(20, 4_190))
    assert {len(line) for line in written} == {4_190}
    assert all(json.loads(line)["body"]["model"] in MODELS for line in written)


async def test_memory_of_ingestion_is_measured_without_what_the_database_server_would_hold() -> None:
    database = measured_database()
    await database.batches.upsert(order())
    tracemalloc.start()
    try:
        await database.custom_ids.store(TENANT, BATCH_ID, 0, CustomIdPart(b"", 1, bytes(1_000_000)))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000 < 1_000_000 <= peak


def test_a_comparison_marks_figures_that_became_worse() -> None:
    slower = (a_figure(1.0, target=MOST), a_figure(1.2, target=MOST))
    faster = (a_figure(0.5, target=LEAST), a_figure(0.6, target=LEAST))
    neither = (a_figure(1.0), a_figure(9.0))
    text = compared({"slower": slower, "faster": faster, "neither": neither})
    assert [("worse" in line) for line in text.splitlines()] == [False, True, False, False]


def test_alternating_runs_of_a_comparison_become_the_rounds_of_one_figure() -> None:
    first = {"x": (a_figure(1.0), a_figure(2.0)), "gone": (a_figure(1.0), a_figure(1.0))}
    second = {"x": (a_figure(3.0), a_figure(4.0))}
    both = merged([first, second])
    assert {key: (old.rounds, new.rounds) for key, (old, new) in both.items()} == {
        "x": ([1.0, 3.0], [2.0, 4.0])
    }


def test_a_profile_separates_own_time_from_total_time() -> None:
    text = report(
        read_stacks(["main;work 1", "main;work;inner 3", "main 0", "main;<frozen importlib._bootstrap> 9"])
    )
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["75.0%", "75.0%", "inner"],
        ["25.0%", "100.0%", "work"],
        ["0.0%", "100.0%", "main"],
    ]


def test_the_age_of_progress_is_the_longest_time_for_which_lines_were_not_reported() -> None:
    samples = [
        ProgressSample(0.0, 0, 0),
        ProgressSample(1.0, 10, 0),
        ProgressSample(2.0, 20, 0),
        ProgressSample(3.0, 30, 20),
    ]
    assert oldest(samples) == 1.0  # the ten answered at 1.0 were not reported at 2.0
    assert oldest([ProgressSample(0.0, 5, 5), ProgressSample(1.0, 9, 9)]) == 0.0


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_slices_are_sent_in_turn_one_line_each() -> None:
    plan = [bytes([n // 256, n % 256]) for n in range(256 * 5)]
    sent = interleaved(plan)
    assert [line[0] for line in sent[:6]] == [0, 1, 2, 3, 0, 1]
    assert sorted(sent) == plan
    assert sent[-1][0] == 4


@pytest.fixture(scope="module")
def six_hundred_lines() -> dict[str, list[bytes]]:
    return mixes(600)


@pytest.mark.parametrize("name", list(mixes(1)))
def test_the_dispatch_order_is_near_the_best_possible_and_the_file_order_is_not(
    name: str, six_hundred_lines: dict[str, list[bytes]]
) -> None:
    lines = six_hundred_lines[name]
    best = best_ratio(lines, replicas=3)
    ours = hit_ratio(in_order(lines, "prefix"), replicas=3, budget_tokens=6_000)
    file = hit_ratio(in_order(lines, "file"), replicas=3, budget_tokens=6_000)
    assert file < 0.9 * best
    assert 0.95 * best <= ours <= best


@pytest.mark.parametrize("stored", [0, 100])
def test_an_engine_with_a_prompt_in_each_slot_computes_it_seldom_more_than_once(stored: int) -> None:
    def computed(*, is_grouped: bool) -> float:
        lines = lines_with_shared_prompts(600, 12, Random(1), is_grouped=is_grouped)
        lines.sort(key=lambda line: line.prompt)
        stated = 4 if is_grouped else None
        return run_lines(CachedEngine(stored=stored), lines, permits=4, stated=stated).computed

    assert 1.0 <= computed(is_grouped=True) < 1.25 < 2.0 < computed(is_grouped=False)


def test_the_longest_lines_first_save_time_where_max_tokens_tells_which_they_are() -> None:
    def ratio(name: str) -> float:
        return median(
            seconds(WORKS[name], 384, seed, "prefix") / seconds(WORKS[name], 384, seed, "file")
            for seed in range(5)
        )

    assert ratio("three kinds of lines") < 0.95
    assert ratio("max_tokens up to eight times the response") < 0.95


def test_the_best_ratio_of_a_small_input_is_reached_and_not_exceeded_by_any_order() -> None:
    texts = ["A" * 200, "A" * 128 + "B" * 72, "C" * 200, "C" * 128 + "D" * 72, "A" * 128 + "E" * 72]
    lines = [json.dumps({"custom_id": "x", "body": {"messages": text}}).encode() for text in texts]
    best = best_ratio(lines, replicas=1)
    ratios = [hit_ratio(order, replicas=1, budget_tokens=64) for order in permutations(lines)]
    assert max(ratios) == pytest.approx(best)
    assert min(ratios) < best


def test_permits_that_wait_for_the_next_line_are_not_in_use() -> None:
    used = utilization([(0.0, 2.0), (0.0, 4.0), (3.0, 5.0)], permits=2)
    assert used.in_use == pytest.approx(5 / 6)  # of two permits for three seconds; one waited for a second
    assert used.of_greedy == pytest.approx(5 / 4)


def test_permits_that_end_with_nothing_left_to_send_do_not_count_as_idle() -> None:
    used = utilization([(0.0, 1.0), (0.0, 9.0), (1.0, 2.0)], permits=2)
    assert (used.in_use, used.of_greedy) == (1.0, 1.0)


def test_fields_of_a_request_can_be_replaced_and_added(tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1, fields={"max_tokens": 900, "user": "someone"})
    body = json.loads((tmp_path / "in").read_text())["body"]
    assert (body["max_tokens"], body["user"]) == (900, "someone")


def test_the_rate_of_answers_counts_the_intervals_between_them() -> None:
    assert answers_per_second([Call(0.0, at) for at in (12.0, 10.0, 11.0)]) == 1.0
