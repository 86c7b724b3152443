"""Which failures count against a backend and open its circuit breaker, and which are the fault of a line."""

from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from tests.unit.inference.circuits.failing_requests import Clock, fail


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


def test_while_it_is_open_only_trials_need_a_probe(circuit: CircuitBreaker, clock: Clock) -> None:
    before = circuit.begin()
    fail(circuit, 3)
    clock.now += 1
    trial = circuit.begin()
    in_doubt = [circuit.record_suspect(one, "a", since=one.sent_at, proved=False) for one in (before, trial)]
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
        assert not circuit.record_suspect(first, line, since=first.sent_at, proved=False)
        assert not circuit.attribute_to_backend(line, since=first.sent_at, proved=False)
    assert circuit.record_suspect(doubted, "c", since=doubted.sent_at, proved=False)  # its probe begins
    again = circuit.begin()
    assert circuit.record_suspect(again, "a", since=again.sent_at, proved=True)
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
