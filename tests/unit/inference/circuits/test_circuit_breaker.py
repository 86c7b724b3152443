"""The circuit breaker of a model: when it opens, allows probes and closes, and which failures count."""

import pytest

from batchwright.activities.execution.dispatch_loop import MAX_BLOCKED_SECONDS
from batchwright.inference.circuits.circuit_breaker import CircuitAttempt, CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(3, clock=clock)


def fail(circuit: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        circuit.record_failure(circuit.begin(), "503")


def fail_slowly(circuit: CircuitBreaker, clock: Clock, times: int) -> None:
    """Let `times` requests fail after so long a time that waiting for a probe is no longer worthwhile."""
    begun = [circuit.begin() for _ in range(times)]
    clock.now += 2 * MAX_BLOCKED_SECONDS
    for one in begun:
        circuit.record_failure(one, "503")


def test_it_opens_after_failures_in_a_row(circuit: CircuitBreaker) -> None:
    fail(circuit, 2)
    circuit.record_success(circuit.begin())
    fail(circuit, 2)
    assert not circuit.is_open
    fail(circuit)
    assert (circuit.is_open, circuit.reason, circuit.wait_seconds()) == (True, "503", 1.0)


def test_quick_refusals_do_not_open_it_while_most_requests_are_in_progress(circuit: CircuitBreaker) -> None:
    sent = [circuit.begin() for _ in range(20)]
    for begun in sent[:5]:
        circuit.record_failure(begun, "503")
    assert not circuit.is_open
    for begun in sent[5:]:
        circuit.record_success(begun)
    assert not circuit.is_open


def test_a_backend_that_refuses_everything_opens_it_even_with_many_in_flight(circuit: CircuitBreaker) -> None:
    for begun in [circuit.begin() for _ in range(20)][:8]:
        circuit.record_failure(begun, "503")
    assert circuit.is_open


def test_a_request_without_a_verdict_is_no_longer_in_flight(circuit: CircuitBreaker) -> None:
    for begun in [circuit.begin() for _ in range(20)]:
        circuit.record_abort(begun)
    fail(circuit, 3)
    assert circuit.is_open


def test_a_refused_key_opens_it_at_once(circuit: CircuitBreaker) -> None:
    circuit.record_failure(circuit.begin(), "authentication", at_once=True)
    assert (circuit.is_open, circuit.reason) == (True, "authentication")


def test_pauses_double_to_half_a_minute(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    pauses: list[float] = []
    for _ in range(7):
        pauses.append(circuit.wait_seconds())
        clock.now += circuit.wait_seconds()
        fail(circuit)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_one_trial_request_is_sent_and_its_answer_closes_it(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    assert circuit.wait_seconds() == 0
    trial = circuit.begin()
    assert circuit.wait_seconds() > 0
    circuit.record_success(trial)
    assert (circuit.is_open, circuit.wait_seconds(), circuit.reason) == (False, 0, "")


def test_a_trial_that_was_just_sent_is_worth_waiting_for(circuit: CircuitBreaker, clock: Clock) -> None:
    for _ in range(6):
        fail_slowly(circuit, clock, 3)
        clock.now += circuit.wait_seconds()
    trial = circuit.begin()
    assert 0 < circuit.wait_seconds() <= MAX_BLOCKED_SECONDS
    clock.now += 2 * MAX_BLOCKED_SECONDS
    assert circuit.wait_seconds() > MAX_BLOCKED_SECONDS
    circuit.record_success(trial)
    assert circuit.wait_seconds() == 0


def trials(circuit: CircuitBreaker, clock: Clock, count: int) -> tuple[list[CircuitAttempt], list[float]]:
    """Send `count` probes, each as soon as it is allowed. None of them gets a response.

    Return the probes, and the seconds from each probe to the next.
    """
    sent: list[CircuitAttempt] = []
    waits: list[float] = []
    for _ in range(count):
        sent.append(circuit.begin())
        sent_at = clock.now
        while circuit.wait_seconds():
            clock.now += 0.125
        waits.append(clock.now - sent_at)
    return sent, waits


def test_a_slow_trial_after_quick_refusals_is_followed_by_further_trials_sooner_each_time(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    clock.now += 1
    _, waits = trials(circuit, clock, 5)
    assert waits == [3, 1.5, 0.75, 0.375, 0.25]


def test_all_slots_are_used_ten_seconds_after_an_outage_even_if_responses_take_minutes(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    clock.now += 1
    sent_at, in_flight = clock.now, 0
    while in_flight < 64:
        if circuit.wait_seconds():
            clock.now += 0.0625
        else:
            circuit.begin()
            in_flight += 1
    assert clock.now - sent_at <= 10


def test_trials_that_fail_together_lengthen_the_pause_once(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    sent, _ = trials(circuit, clock, 5)
    pauses: list[float] = []
    for trial in sent:
        circuit.record_failure(trial, "503")
        pauses.append(circuit.wait_seconds())
    assert pauses == [2] * 5


def test_a_trial_without_a_verdict_allows_the_next_one(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    circuit.record_abort(circuit.begin())
    assert circuit.wait_seconds() == 0


def test_an_unanswered_trial_is_followed_by_others_at_growing_intervals(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail_slowly(circuit, clock, 3)
    clock.now += 1
    _, waits = trials(circuit, clock, 5)
    assert waits == [30, 60, 120, 120, 120]


def test_an_answer_to_any_trial_closes_it_and_the_other_trials_count_as_normal_requests(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    clock.now += 1
    hanging = circuit.begin()
    clock.now += 30
    circuit.record_success(circuit.begin())
    circuit.record_failure(hanging, "timeout")
    assert not circuit.is_open
    clock.now += 1
    another = circuit.begin()
    fail(circuit, 3)
    circuit.record_success(hanging)
    circuit.record_success(another)
    assert circuit.is_open


def test_requests_from_before_it_opened_neither_close_it_nor_prolong_it(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    before = [circuit.begin() for _ in range(3)]
    fail(circuit, 3)
    circuit.record_success(before[0])
    circuit.record_failure(before[1], "503")
    assert (circuit.is_open, circuit.wait_seconds()) == (True, 1.0)
    clock.now += 1
    trial = circuit.begin()
    circuit.record_abort(before[2])
    assert circuit.wait_seconds() > 0
    circuit.record_success(trial)
    assert not circuit.is_open


def test_a_pause_is_at_least_the_retry_after_of_the_backend(circuit: CircuitBreaker) -> None:
    circuit.record_failure(circuit.begin(), "429", at_once=True, pause=12)
    assert circuit.wait_seconds() == 12


def test_a_backend_that_answers_again_is_tried_without_waiting(circuit: CircuitBreaker) -> None:
    fail(circuit, 3)
    circuit.allow_trial()
    assert (circuit.is_open, circuit.wait_seconds()) == (True, 0)


def test_how_long_it_has_been_open_counts_from_the_first_time(circuit: CircuitBreaker, clock: Clock) -> None:
    fail(circuit, 3)
    clock.now += 1
    fail(circuit)
    clock.now += 2
    assert circuit.open_seconds == 3
    circuit.record_success(circuit.begin())
    assert circuit.open_seconds == 0


def test_a_failure_of_a_single_line_is_attributed_to_the_line(circuit: CircuitBreaker) -> None:
    assert not any(circuit.attribute_to_backend("a", since=0, proved=attempt > 0) for attempt in range(5))


def test_a_failure_is_attributed_to_the_line_if_another_line_was_answered_meanwhile(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    begun = circuit.begin()
    clock.now += 1
    circuit.record_success(circuit.begin())
    assert not circuit.attribute_to_backend("a", since=begun.sent_at, proved=False)


def test_failures_of_few_lines_are_attributed_to_the_lines_and_of_many_to_the_backend(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    blamed = [circuit.attribute_to_backend(name, since=clock.now, proved=False) for name in "aabbc"]
    assert blamed == [False, False, False, False, True]


def test_lines_already_found_at_fault_do_not_count_against_the_backend(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    circuit.record_success(circuit.begin())
    clock.now += 1
    assert not any(circuit.attribute_to_backend(str(n), since=clock.now, proved=True) for n in range(20))


def test_failures_while_the_circuit_is_open_are_attributed_to_the_backend(circuit: CircuitBreaker) -> None:
    fail(circuit, 3)
    assert circuit.attribute_to_backend("a", since=circuit.clock(), proved=True)


def test_failures_of_one_tenant_do_not_open_it_before_a_line_of_another_was_tried(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    for _ in range(20):
        circuit.record_failure(circuit.begin("noisy"), "503", others_wait=True)
    assert not circuit.is_open
    other = circuit.begin("quiet")
    for _ in range(20):
        circuit.record_failure(circuit.begin("noisy"), "503")
    assert not circuit.is_open
    circuit.record_failure(other, "503")
    assert circuit.is_open


def test_failures_of_one_tenant_do_not_count_once_a_line_of_another_tenant_is_answered(
    circuit: CircuitBreaker,
) -> None:
    for _ in range(20):
        circuit.record_failure(circuit.begin("noisy"), "503", others_wait=True)
    circuit.record_success(circuit.begin("quiet"))
    circuit.record_failure(circuit.begin("noisy"), "503")
    assert not circuit.is_open


def test_a_line_of_another_tenant_that_is_never_tried_keeps_it_closed_for_ten_seconds(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    circuit.record_failure(circuit.begin("noisy"), "503", others_wait=True)
    clock.now += 9
    for _ in range(3):
        circuit.record_failure(circuit.begin("noisy"), "503", others_wait=True)
    assert not circuit.is_open
    clock.now += 1
    circuit.record_failure(circuit.begin("noisy"), "503", others_wait=True)
    assert circuit.is_open


def test_after_a_failed_trial_the_next_one_is_for_another_waiting_tenant(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    clock.now += 1
    circuit.record_failure(circuit.begin("noisy"), "503")
    clock.now += 2
    assert circuit.wait_seconds("noisy") == 0
    assert circuit.wait_seconds("quiet") == 0
    assert circuit.wait_seconds("noisy") == 1
    clock.now += 1
    assert circuit.wait_seconds("noisy") == 0


def test_after_a_trial_that_showed_nothing_the_next_one_is_for_another_waiting_tenant(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    assert circuit.wait_seconds("quiet") == 1
    clock.now += 5
    circuit.record_abort(circuit.begin("noisy"))
    assert circuit.wait_seconds("quiet") == 0
    assert circuit.wait_seconds("noisy") == 1
    clock.now += 1
    assert circuit.wait_seconds("noisy") == 0


def test_an_answered_probe_closes_it_and_clears_the_failures_of_the_backend(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    circuit.record_probe_success()
    assert not circuit.is_open
    assert not circuit.attribute_to_backend("a", since=clock.now, proved=False)


def test_pauses_stay_short_while_the_backend_answers_health_checks(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    fail(circuit, 3)
    for _ in range(5):
        clock.now += circuit.wait_seconds()
        circuit.record_failure(circuit.begin(), "500", steady=True)
        assert circuit.wait_seconds() == 1


def test_an_error_text_for_one_tenant_is_not_quoted_to_others(circuit: CircuitBreaker) -> None:
    circuit.remember_error("a", "cannot draw a cat")
    assert (circuit.last_error("a"), circuit.last_error("b")) == ("cannot draw a cat", "")
    for number in range(1000):
        circuit.remember_error(f"t{number}", "no")
    assert sum(bool(circuit.last_error(f"t{number}")) for number in range(1000)) == 256


def test_failures_of_requests_from_before_it_opened_do_not_prolong_it(circuit: CircuitBreaker) -> None:
    before = [circuit.begin() for _ in range(3)]
    fail(circuit, 3)
    for begun in before:
        circuit.record_failure(begun, "503")
    assert (circuit.is_open, circuit.wait_seconds()) == (True, 1.0)


def test_tenants_with_an_answer_after_their_failures_do_not_count(circuit: CircuitBreaker) -> None:
    circuit.record_failure(circuit.begin("quiet"), "503")
    circuit.record_success(circuit.begin("quiet"))
    for _ in range(5):
        circuit.record_failure(circuit.begin("noisy"), "503", others_wait=True)
    assert not circuit.is_open


def test_a_line_of_another_tenant_keeps_it_closed_for_three_seconds_after_it_was_sent(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    circuit.begin("quiet")
    clock.now += 3
    for _ in range(3):
        circuit.record_failure(circuit.begin("noisy"), "503")
    assert circuit.is_open


def test_a_retry_after_of_the_backend_is_capped_at_a_minute(circuit: CircuitBreaker) -> None:
    circuit.record_failure(circuit.begin(), "429", at_once=True, pause=86_400)
    assert circuit.wait_seconds() == 60


def test_while_it_is_open_only_trials_need_a_probe(circuit: CircuitBreaker, clock: Clock) -> None:
    before = circuit.begin()
    fail(circuit, 3)
    clock.now += 1
    trial = circuit.begin()
    in_doubt = [circuit.needs_evidence(one, "a", since=one.sent_at, proved=False) for one in (before, trial)]
    assert in_doubt == [False, True]


def test_lines_that_failed_before_a_normal_answer_do_not_count_against_the_backend(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    for name in "ab":
        circuit.attribute_to_backend(name, since=clock.now, proved=False)
    circuit.record_success(circuit.begin())
    clock.now += 1
    assert not circuit.attribute_to_backend("c", since=clock.now, proved=False)


def test_lines_that_failed_before_keep_their_attempts_while_a_backend_is_probed(
    circuit: CircuitBreaker,
) -> None:
    first, doubted = circuit.begin(), circuit.begin()
    for line in ("a", "b"):
        assert not circuit.needs_evidence(first, line, since=first.sent_at, proved=False)
        assert not circuit.attribute_to_backend(line, since=first.sent_at, proved=False)
    assert circuit.needs_evidence(doubted, "c", since=doubted.sent_at, proved=False)  # its probe begins
    again = circuit.begin()
    assert circuit.needs_evidence(again, "a", since=again.sent_at, proved=True)
    assert circuit.attribute_to_backend("a", since=again.sent_at, proved=True)


def test_busy_refusals_do_not_open_it_while_the_backend_processes_another_request(
    circuit: CircuitBreaker,
) -> None:
    circuit.begin()
    for _ in range(20):
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert not circuit.is_open


def test_busy_refusals_open_it_if_the_requests_in_flight_hang(circuit: CircuitBreaker, clock: Clock) -> None:
    circuit.begin()
    clock.now += 10.0
    circuit.record_success(circuit.begin())
    for _ in range(29):
        clock.now += 1.0
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert not circuit.is_open
    for _ in range(4):
        clock.now += 1.0
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert circuit.is_open


def test_a_busy_backend_whose_responses_take_minutes_counts_as_working_for_three_of_them(
    circuit: CircuitBreaker, clock: Clock
) -> None:
    answered, _hanging = circuit.begin(), circuit.begin()
    clock.now += 120.0
    circuit.record_success(answered)
    for _ in range(5):
        clock.now += 70.0
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert not circuit.is_open
    clock.now += 11.0
    for _ in range(3):
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert circuit.is_open


def test_answered_polls_of_jobs_show_that_a_busy_backend_works(circuit: CircuitBreaker, clock: Clock) -> None:
    circuit.begin()
    for _ in range(60):
        clock.now += 1.0
        circuit.reset_failures()
        for _ in range(3):
            circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert not circuit.is_open


def test_a_backend_that_is_only_busy_is_tried_every_second(circuit: CircuitBreaker, clock: Clock) -> None:
    for _ in range(3):
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    assert circuit.is_open
    for _ in range(10):
        assert circuit.wait_seconds() == 1.0
        clock.now += 1.0
        circuit.record_busy(circuit.begin(), "busy", pause=0.0)
    clock.now += 1.0
    circuit.record_success(circuit.begin())
    assert not circuit.is_open


def test_a_busy_backend_that_names_a_wait_gets_it(circuit: CircuitBreaker) -> None:
    for _ in range(3):
        circuit.record_busy(circuit.begin(), "busy", pause=7.0)
    assert circuit.wait_seconds() == 7.0
