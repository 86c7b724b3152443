"""Routing of a model's requests: choice of the backend, circuit breakers, and fallback models."""

import json
from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.inference.router import ModelRouter
from batchwright.rules.dispatch.retry_policy import RetryPolicy
from tests.fakes.routing import (
    OK,
    URLS,
    Clock,
    Sender,
    backend_at,
    begun,
    config_of,
    fail,
    fail_all,
    home_of,
    plain,
    route_of,
    url_of,
)

PATH = "/v1/chat/completions"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_less_busy_of_two_backends_gets_the_request(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    counts = Counter(url_of(route.select()) for _ in range(100))
    assert counts == {URLS[0]: 50, URLS[1]: 50}


def test_a_full_backend_gets_no_request_while_another_has_room(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    full = {URLS[0]}
    chosen = [url_of(route.select(is_full=full.__contains__)) for _ in range(20)]
    assert set(chosen) == {URLS[1]}
    full.add(URLS[1])
    assert url_of(route.select(is_full=full.__contains__)) == URLS[0]


def test_a_backend_whose_fleet_limit_is_used_up_is_not_chosen_even_if_no_other_can_be(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    one, two = route.upstreams
    used_up = {URLS[0]}
    select = partial(route.select, is_used_up=used_up.__contains__)
    assert {url_of(select()) for _ in range(20)} == {URLS[1]}
    assert {url_of(select(avoid=two)) for _ in range(20)} == {URLS[1]}
    assert select(exclude=[two]) is None
    used_up.add(URLS[1])
    assert select() is None
    only = route_of(clock, plain(URLS[:1]))
    assert only.select(is_used_up=used_up.__contains__) is None
    assert (one.outstanding, only.upstreams[0].outstanding) == (0, 0)


def test_only_available_backends_have_room_for_a_model(clock: Clock) -> None:
    route = route_of(clock, plain())
    fail(route.upstreams[1])
    assert route.urls == [URLS[0], URLS[2]]
    fail_all(route)
    assert route.urls == list(URLS)


def test_the_room_of_fallbacks_counts_while_the_own_backends_are_unavailable(clock: Clock) -> None:
    route, other = route_of(clock, plain(URLS[:1])), route_of(clock, plain(URLS[1:2]), "other")
    route.fallbacks = [other]
    assert route.urls == [URLS[0]]
    fail_all(route)
    assert route.urls == [URLS[1]]


def test_a_lane_with_more_weight_gets_more_requests_at_once(clock: Clock) -> None:
    heavy = BackendConfig(url=URLS[0], weight=3)
    route = route_of(clock, config_of(heavy, BackendConfig(url=URLS[1])))
    counts = Counter(url_of(route.select()) for _ in range(400))
    assert counts == {URLS[0]: 300, URLS[1]: 100}


def test_an_ended_request_is_no_longer_outstanding_and_releases_its_trial(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    fail_all(route)
    clock.now += 1
    trial = begun(route)
    assert (trial.upstream.outstanding, route.select()) == (1, None)
    trial.end()
    assert (trial.upstream.outstanding, route.wait_seconds()) == (0, 0)


def test_equal_prefixes_use_the_same_lane(clock: Clock) -> None:
    route = route_of(clock, plain(load_balancing="prefix-affine"))
    homes = {prefix: home_of(route, prefix) for prefix in range(1, 200)}
    assert set(homes.values()) == set(URLS)
    assert {prefix: home_of(route, prefix) for prefix in homes} == homes


def test_a_prefix_keeps_its_lane_when_another_is_lost(clock: Clock) -> None:
    route = route_of(clock, plain(load_balancing="prefix-affine"))
    before = {prefix: home_of(route, prefix) for prefix in range(1, 200)}
    fail(route.upstreams[0])
    after = {prefix: home_of(route, prefix) for prefix in before}
    assert URLS[0] not in after.values()
    assert {p for p in before if before[p] != after[p]} == {p for p in before if before[p] == URLS[0]}


def test_a_lane_much_busier_than_the_others_loses_its_prefixes_to_them(clock: Clock) -> None:
    route = route_of(clock, plain(load_balancing="prefix-affine"))
    counts = Counter(url_of(route.select(7)) for _ in range(60))
    assert counts.keys() == set(URLS)
    assert max(counts.values()) > min(counts.values())


def test_a_lane_with_an_open_circuit_gets_no_request(clock: Clock) -> None:
    route = route_of(clock, plain())
    fail(route.upstreams[1])
    assert {url_of(route.select()) for _ in range(50)} == {URLS[0], URLS[2]}
    assert (route.all_own_circuits_open, route.wait_seconds()) == (False, 0)


def test_a_lane_whose_backend_does_not_answer_is_chosen_last(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    route.upstreams[0].backend.is_unreachable = True
    assert {home_of(route, 0) for _ in range(50)} == {URLS[1]}
    route.upstreams[1].backend.is_unreachable = True
    assert {home_of(route, 0) for _ in range(50)} == set(URLS[:2])


def test_the_trial_request_of_an_open_lane_is_chosen_first_and_closes_it(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    fail(route.upstreams[0])
    clock.now += 1
    trial = begun(route)
    assert url_of(trial) == URLS[0]
    assert {url_of(route.select()) for _ in range(20)} == {URLS[1]}
    trial.upstream.circuit.record_success(trial.attempt)
    trial.end()
    assert {url_of(route.select()) for _ in range(20)} >= {URLS[0]}


def test_with_all_circuits_open_nothing_is_sent_until_the_first_trial(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    fail_all(route)
    assert (route.all_own_circuits_open, route.wait_seconds(), route.select()) == (True, 1, None)
    clock.now += 1
    assert {url_of(route.select()), url_of(route.select())} == set(URLS[:2])
    assert route.select() is None


def test_the_lane_that_may_be_tried_first_counts_unless_it_is_excluded(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    first, second = route.upstreams
    fail(second)
    assert route.circuit is first.circuit
    assert (route.wait_seconds(), route.wait_seconds(exclude=[first])) == (0, 1)
    clock.now += 0.5
    fail(first)
    assert route.circuit is second.circuit
    assert (route.wait_seconds(), route.wait_seconds(exclude=[second])) == (0.5, 1)


def test_a_retry_prefers_another_lane_than_the_one_that_failed(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    first, other = route.upstreams
    assert {url_of(route.select(avoid=first)) for _ in range(30)} == {URLS[1]}
    fail(other)
    assert url_of(route.select(avoid=first)) == URLS[0]


def test_a_line_is_not_the_trial_request_of_the_lane_where_it_failed(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    fail(route.upstreams[0])
    clock.now += 1
    assert url_of(route.select(avoid=route.upstreams[0])) == URLS[1]
    assert url_of(route.select(avoid=route.upstreams[1])) == URLS[0]


def test_lanes_that_already_refused_a_line_are_not_chosen_again(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    assert {url_of(route.select(exclude=route.upstreams[:1])) for _ in range(30)} == {URLS[1]}
    assert route.select(exclude=route.upstreams) is None


def test_fallbacks_are_used_in_order_only_while_all_own_circuits_are_open(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    first, second = (route_of(clock, plain([f"http://{name}"]), name) for name in ("first", "second"))
    route.fallbacks = [first, second]
    assert url_of(route.select()) == URLS[0]
    assert route.select(exclude=route.upstreams) is None
    fail_all(route)
    assert (route.wait_seconds(), url_of(route.select())) == (0, "http://first")
    fail_all(first)
    assert (route.wait_seconds(), url_of(route.select())) == (0, "http://second")
    fail_all(second)
    assert (route.wait_seconds(), route.select()) == (1, None)


def test_a_line_returns_from_the_fallback_once_its_own_model_may_be_tried(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    route.fallbacks = [route_of(clock, plain(["http://other"]), "other")]
    fail_all(route)
    clock.now += 1
    assert url_of(route.select()) == URLS[0]
    assert url_of(route.select()) == "http://other"


async def test_a_request_uses_the_name_the_backend_has_for_the_model(clock: Clock) -> None:
    route = route_of(clock, config_of(BackendConfig(url=URLS[0], model="up/stream")))
    sender = Sender()
    await route.send(begun(route), sender, PATH, b'{"n": 1.0,  "model":"m"}', "r")
    assert sender.sent == [("http://a" + PATH, b'{"n": 1.0,  "model":"up/stream"}')]


async def test_a_body_is_sent_unchanged_if_the_name_is_the_same(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    sender = Sender()
    body = b' {"model" :"m","seed":1e3}'
    assert await route.send(begun(route), sender, PATH, body, "r") == OK
    assert sender.sent[0][1] is body


async def test_an_alias_is_never_sent_to_a_backend(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1], aliases=["short"]))
    sender = Sender()
    await route.send(begun(route), sender, PATH, b'{"model":"short"}', "r")
    assert sender.sent[0][1] == b'{"model":"m"}'


async def test_each_request_has_the_priority_of_its_backend(clock: Clock) -> None:
    named = BackendConfig(url=URLS[0], model="up/stream", priority=-3)
    route = route_of(clock, config_of(named))
    sender = Sender()
    await route.send(begun(route), sender, PATH, b'{"model":"m","priority":-9}', "r")
    assert sender.sent[0][1] == b'{"model":"up/stream","priority":-3}'


async def test_a_fallback_gets_the_priority_of_its_own_backend(clock: Clock) -> None:
    route = route_of(clock, config_of(BackendConfig(url=URLS[0], priority=1)))
    route.fallbacks = [route_of(clock, config_of(BackendConfig(url=URLS[1], priority=2)), "other")]
    fail_all(route)
    sender = Sender()
    await route.send(begun(route), sender, PATH, b'{"model":"m"}', "r")
    assert json.loads(sender.sent[0][1]) == {"model": "other", "priority": 2}


async def test_a_changed_priority_reaches_the_next_request_and_keeps_the_state_of_its_lane(
    clock: Clock,
) -> None:
    route = route_of(clock, plain(URLS[:1]))
    [lane] = route.upstreams
    changed = config_of(BackendConfig(url=URLS[0], priority=0))
    route.update(changed, [lane.backend], RetryPolicy())
    assert route.upstreams == [lane]
    sender = Sender()
    await route.send(begun(route), sender, PATH, b"{}", "r")
    route.update(plain(URLS[:1]), [lane.backend], RetryPolicy())
    await route.send(begun(route), sender, PATH, b"{}", "r")
    assert [body for _, body in sender.sent] == [b'{"priority": 0}', b"{}"]


@pytest.mark.parametrize(
    ("answered", "named"),
    [
        (b'{"id":"1"}', "other"),
        (b'{"model":"its-own","id":"1"}', "its-own"),
        (b'{"usage":{"model":"nested"}}', "other"),
    ],
)
async def test_the_answer_of_a_fallback_names_the_model_that_answered(
    clock: Clock, answered: bytes, named: str
) -> None:
    route = route_of(clock, plain(URLS[:1]))
    route.fallbacks = [route_of(clock, plain(URLS[1:2]), "other")]
    fail_all(route)
    sender = Sender(replace(OK, body=answered))
    outcome = await route.send(begun(route), sender, PATH, b'{"model":"m"}', "r")
    assert json.loads(sender.sent[0][1]) == {"model": "other"}
    assert json.loads(outcome.body)["model"] == named


async def test_the_refusal_of_a_fallback_is_not_rewritten(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    route.fallbacks = [route_of(clock, plain(URLS[1:2]), "other")]
    fail_all(route)
    refusal = replace(OK, status=400)
    assert await route.send(begun(route), Sender(refusal), PATH, b'{"model":"m"}', "r") == refusal


def test_unchanged_lanes_keep_their_state_and_removed_ones_are_dropped(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    stays, goes = route.upstreams
    fail(stays)
    stays.outstanding = 3
    heavier = config_of(BackendConfig(url=URLS[2]), BackendConfig(url=URLS[0], weight=4))
    route.update(heavier, [backend_at(URLS[2]), stays.backend], RetryPolicy(max_attempts=9))
    new, same = route.upstreams
    assert (same, same.weight, same.outstanding, same.circuit.is_open) == (stays, 4, 3, True)
    assert (url_of(route.select()), new.circuit.is_open, route.retries.max_attempts) == (URLS[2], False, 9)
    assert goes not in route.upstreams


def test_a_backend_with_two_names_for_a_model_has_two_lanes(clock: Clock) -> None:
    backend = backend_at(URLS[0])
    route = ModelRouter("m", RetryPolicy(), 1, clock)
    config = config_of(*(BackendConfig(url=URLS[0], model=name) for name in ("x", "y")))
    route.update(config, [backend, backend], RetryPolicy())
    fail(route.upstreams[0])
    assert {sending.upstream.upstream_model for _ in range(5) if (sending := route.select())} == {"y"}


def test_a_job_polled_again_while_the_circuit_is_open_is_not_a_trial(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1], kind="poll", jobs={"poll_endpoint_template": "/jobs/{id}"}))
    [lane] = route.upstreams
    fail(lane)
    resumed = route.resume(lane.key)
    assert resumed is not None
    lane.circuit.record_success(resumed.attempt)
    assert route.all_own_circuits_open


def test_a_job_resumes_only_at_its_own_lane_and_is_in_flight_there(clock: Clock) -> None:
    jobs = {"poll_endpoint_template": "/jobs/{id}"}
    route = route_of(clock, plain(URLS[:2], kind="poll", jobs=jobs))
    first, second = route.upstreams
    resumed = route.resume(second.key)
    assert resumed is not None
    assert (resumed.upstream, first.outstanding, second.outstanding) == (second, 0, 1)
    resumed.end()
    assert second.outstanding == 0
    route.update(plain(URLS[:2]), [first.backend, second.backend], RetryPolicy())
    assert route.resume(second.key) is None  # it runs no jobs any longer


def test_of_two_lanes_that_may_be_tried_the_first_is_tried_even_if_it_is_busier(clock: Clock) -> None:
    route = route_of(clock, plain(URLS))
    busy, idle, _ = route.upstreams
    fail(busy)
    fail(idle)
    clock.now += 1
    busy.outstanding = 5
    assert [url_of(route.select()) for _ in range(3)] == list(URLS)


def test_a_lane_whose_backend_does_not_answer_is_not_tried(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    open_lane, closed_lane = route.upstreams
    fail(open_lane)
    clock.now += 1
    open_lane.backend.is_unreachable = closed_lane.backend.is_unreachable = True
    open_lane.outstanding = 5
    assert url_of(route.select()) == URLS[1]
