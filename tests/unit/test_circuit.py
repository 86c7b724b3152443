"""When a model's circuit opens, tries and closes, and whose fault a failure is."""

import pytest

from activities.slices.gate import PATIENCE_SECONDS
from batchwright.inference.circuit import Circuit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> Circuit:
    return Circuit(3, clock=clock)


def fail(circuit: Circuit, times: int = 1) -> None:
    for _ in range(times):
        circuit.failed(circuit.begin(), "503")


def test_it_opens_after_failures_in_a_row(circuit: Circuit) -> None:
    fail(circuit, 2)
    circuit.succeeded(circuit.begin())
    fail(circuit, 2)
    assert not circuit.is_open
    fail(circuit)
    assert (circuit.is_open, circuit.reason, circuit.wait()) == (True, "503", 1.0)


def test_quick_refusals_of_some_do_not_open_it_while_most_are_being_answered(circuit: Circuit) -> None:
    sent = [circuit.begin() for _ in range(20)]
    for begun in sent[:5]:
        circuit.failed(begun, "503")
    assert not circuit.is_open
    for begun in sent[5:]:
        circuit.succeeded(begun)
    assert not circuit.is_open


def test_a_backend_that_refuses_all_opens_it_though_many_are_under_way(circuit: Circuit) -> None:
    for begun in [circuit.begin() for _ in range(20)][:8]:
        circuit.failed(begun, "503")
    assert circuit.is_open


def test_what_told_nothing_is_no_longer_under_way(circuit: Circuit) -> None:
    for begun in [circuit.begin() for _ in range(20)]:
        circuit.aborted(begun)
    fail(circuit, 3)
    assert circuit.is_open


def test_a_refused_key_opens_it_at_once(circuit: Circuit) -> None:
    circuit.failed(circuit.begin(), "authentication", at_once=True)
    assert (circuit.is_open, circuit.reason) == (True, "authentication")


def test_pauses_double_to_half_a_minute(circuit: Circuit, clock: Clock) -> None:
    fail(circuit, 3)
    pauses: list[float] = []
    for _ in range(7):
        pauses.append(circuit.wait())
        clock.now += circuit.wait()
        fail(circuit)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_one_trial_goes_out_and_its_answer_closes(circuit: Circuit, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    assert circuit.wait() == 0
    trial = circuit.begin()
    assert circuit.wait() > 0
    circuit.succeeded(trial)
    assert (circuit.is_open, circuit.wait(), circuit.reason) == (False, 0, "")


def test_a_trial_that_was_just_sent_is_worth_waiting_for(circuit: Circuit, clock: Clock) -> None:
    for _ in range(6):
        fail(circuit, 3)
        clock.now += circuit.wait()
    trial = circuit.begin()
    assert 0 < circuit.wait() <= PATIENCE_SECONDS
    clock.now += 2 * PATIENCE_SECONDS
    assert circuit.wait() > PATIENCE_SECONDS
    circuit.succeeded(trial)
    assert circuit.wait() == 0


def test_a_trial_that_told_nothing_makes_room_for_the_next(circuit: Circuit, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    circuit.aborted(circuit.begin())
    assert circuit.wait() == 0


def test_a_trial_that_is_never_answered_is_followed_by_others_ever_more_rarely(
    circuit: Circuit, clock: Clock
) -> None:
    fail(circuit, 3)
    clock.now += 1
    waits: list[float] = []
    for _ in range(5):
        circuit.begin()
        sent_at = clock.now
        while circuit.wait():
            clock.now += 1
        waits.append(clock.now - sent_at)
    assert waits == [30, 60, 120, 120, 120]


def test_an_answer_to_any_trial_closes_it_and_what_comes_of_the_others_is_as_of_other_requests(
    circuit: Circuit, clock: Clock
) -> None:
    fail(circuit, 3)
    clock.now += 1
    hanging = circuit.begin()
    clock.now += 30
    circuit.succeeded(circuit.begin())
    circuit.failed(hanging, "timeout")
    assert not circuit.is_open
    clock.now += 1
    another = circuit.begin()
    fail(circuit, 3)
    circuit.succeeded(hanging)
    circuit.succeeded(another)
    assert circuit.is_open


def test_requests_from_before_it_opened_neither_close_it_nor_prolong_it(
    circuit: Circuit, clock: Clock
) -> None:
    before = [circuit.begin() for _ in range(3)]
    fail(circuit, 3)
    circuit.succeeded(before[0])
    circuit.failed(before[1], "503")
    assert (circuit.is_open, circuit.wait()) == (True, 1.0)
    clock.now += 1
    trial = circuit.begin()
    circuit.aborted(before[2])
    assert circuit.wait() > 0
    circuit.succeeded(trial)
    assert not circuit.is_open


def test_a_pause_is_at_least_what_the_backend_asked_for(circuit: Circuit) -> None:
    circuit.failed(circuit.begin(), "429", at_once=True, pause=12)
    assert circuit.wait() == 12


def test_a_backend_that_is_back_is_tried_without_waiting(circuit: Circuit) -> None:
    fail(circuit, 3)
    circuit.try_now()
    assert (circuit.is_open, circuit.wait()) == (True, 0)


def test_how_long_it_has_been_open_counts_from_the_first_time(circuit: Circuit, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    fail(circuit)
    clock.now += 2
    assert circuit.open_seconds == 3
    circuit.succeeded(circuit.begin())
    assert circuit.open_seconds == 0


def test_a_line_that_fails_alone_is_at_fault_itself(circuit: Circuit) -> None:
    assert not any(circuit.blames_backend("a", since=0, proved=attempt > 0) for attempt in range(5))


def test_a_failure_is_the_lines_when_another_line_was_answered_meanwhile(
    circuit: Circuit, clock: Clock
) -> None:
    begun = circuit.begin()
    clock.now += 1
    circuit.succeeded(circuit.begin())
    assert not circuit.blames_backend("a", since=begun.sent_at, proved=False)


def test_few_failing_lines_are_at_fault_themselves_many_are_not(circuit: Circuit, clock: Clock) -> None:
    blamed = [circuit.blames_backend(name, since=clock.now, proved=False) for name in "aabbc"]
    assert blamed == [False, False, False, False, True]


def test_lines_proved_at_fault_before_say_nothing_about_the_backend(circuit: Circuit, clock: Clock) -> None:
    circuit.succeeded(circuit.begin())
    clock.now += 1
    assert not any(circuit.blames_backend(str(n), since=clock.now, proved=True) for n in range(20))


def test_an_open_circuit_is_the_backends_fault_whatever_was_proved(circuit: Circuit) -> None:
    fail(circuit, 3)
    assert circuit.blames_backend("a", since=circuit.clock(), proved=True)
