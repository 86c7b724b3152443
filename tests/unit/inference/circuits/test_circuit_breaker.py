"""The circuit breaker of a model: when it opens, how long it pauses, and how trial requests close it."""

from batchwright.activities.execution.dispatch_loop import MAX_BLOCKED_SECONDS
from batchwright.inference.circuits.circuit_breaker import CircuitAttempt, CircuitBreaker
from tests.unit.inference.circuits.failing_requests import Clock, fail


def fail_slowly(circuit: CircuitBreaker, clock: Clock, times: int) -> None:
    """Let `times` requests fail after a long time. A slice does not wait for a trial request that may take as
    long.
    """
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
    """Send `count` trial requests, each as soon as the circuit breaker allows it. None of them gets a
    response.

    Return the trial requests, and the seconds from each one to the next.
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
        circuit.record_failure(circuit.begin(), "500", short_pauses=True)
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


def test_a_retry_after_of_the_backend_is_capped_at_a_minute(circuit: CircuitBreaker) -> None:
    circuit.record_failure(circuit.begin(), "429", at_once=True, pause=86_400)
    assert circuit.wait_seconds() == 60


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
