"""Where a model's requests go: the choice among its lanes, their circuits, the models it falls back on."""

import json
from collections import Counter

import pytest
from msgspec.structs import replace

from batchwright.contracts.registry import BackendConfig
from batchwright.inference.routes import Route
from batchwright.rules.retries import Retries
from tests.unit.routing import (
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


def test_of_two_the_one_with_less_to_do_gets_the_request(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    counts = Counter(url_of(route.begin()) for _ in range(100))
    assert counts == {URLS[0]: 50, URLS[1]: 50}


def test_a_backend_that_is_full_gets_nothing_while_another_is_not(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    full = {URLS[0]}
    chosen = [url_of(route.begin(is_full=full.__contains__)) for _ in range(20)]
    assert set(chosen) == {URLS[1]}
    full.add(URLS[1])
    assert url_of(route.begin(is_full=full.__contains__)) == URLS[0]


def test_only_backends_that_may_be_asked_have_room_for_a_model(clock: Clock) -> None:
    route = route_of(clock, plain())
    fail(route.lanes[1])
    assert route.urls == [URLS[0], URLS[2]]
    fail_all(route)
    assert route.urls == list(URLS)


def test_the_room_of_fallbacks_counts_while_a_models_own_backends_are_away(clock: Clock) -> None:
    route, other = route_of(clock, plain(URLS[:1])), route_of(clock, plain(URLS[1:2]), "other")
    route.fallbacks = [other]
    assert route.urls == [URLS[0]]
    fail_all(route)
    assert route.urls == [URLS[1]]


def test_a_lane_with_more_weight_bears_more_at_once(clock: Clock) -> None:
    heavy = BackendConfig(url=URLS[0], weight=3)
    route = route_of(clock, config_of(heavy, BackendConfig(url=URLS[1])))
    counts = Counter(url_of(route.begin()) for _ in range(400))
    assert counts == {URLS[0]: 300, URLS[1]: 100}


def test_an_ended_request_is_no_longer_outstanding_and_leaves_its_trial_free(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    fail_all(route)
    clock.now += 1
    trial = begun(route)
    assert (trial.lane.outstanding, route.begin()) == (1, None)
    trial.end()
    assert (trial.lane.outstanding, route.wait()) == (0, 0)


def test_equal_prefixes_go_to_the_same_lane(clock: Clock) -> None:
    route = route_of(clock, plain(choice="prefix-affine"))
    homes = {prefix: home_of(route, prefix) for prefix in range(1, 200)}
    assert set(homes.values()) == set(URLS)
    assert {prefix: home_of(route, prefix) for prefix in homes} == homes


def test_a_prefix_keeps_its_lane_when_another_is_lost(clock: Clock) -> None:
    route = route_of(clock, plain(choice="prefix-affine"))
    before = {prefix: home_of(route, prefix) for prefix in range(1, 200)}
    fail(route.lanes[0])
    after = {prefix: home_of(route, prefix) for prefix in before}
    assert URLS[0] not in after.values()
    assert {p for p in before if before[p] != after[p]} == {p for p in before if before[p] == URLS[0]}


def test_a_lane_far_busier_than_the_others_loses_its_prefixes_to_them(clock: Clock) -> None:
    route = route_of(clock, plain(choice="prefix-affine"))
    counts = Counter(url_of(route.begin(7)) for _ in range(60))
    assert counts.keys() == set(URLS)
    assert max(counts.values()) > min(counts.values())


def test_an_open_circuit_takes_its_lane_out(clock: Clock) -> None:
    route = route_of(clock, plain())
    fail(route.lanes[1])
    assert {url_of(route.begin()) for _ in range(50)} == {URLS[0], URLS[2]}
    assert (route.is_open, route.wait()) == (False, 0)


def test_a_lane_whose_backend_does_not_answer_is_the_last_to_be_asked(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    route.lanes[0].backend.is_away = True
    assert {home_of(route, 0) for _ in range(50)} == {URLS[1]}
    route.lanes[1].backend.is_away = True
    assert {home_of(route, 0) for _ in range(50)} == set(URLS[:2])


def test_the_one_trial_of_an_open_lane_goes_before_all_else_and_closes_it(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    fail(route.lanes[0])
    clock.now += 1
    trial = begun(route)
    assert url_of(trial) == URLS[0]
    assert {url_of(route.begin()) for _ in range(20)} == {URLS[1]}
    trial.lane.circuit.succeeded(trial.begun)
    trial.end()
    assert {url_of(route.begin()) for _ in range(20)} >= {URLS[0]}


def test_with_all_lanes_open_nothing_goes_out_until_the_first_may_be_tried(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    fail_all(route)
    assert (route.is_open, route.wait(), route.begin()) == (True, 1, None)
    clock.now += 1
    assert {url_of(route.begin()), url_of(route.begin())} == set(URLS[:2])
    assert route.begin() is None


def test_a_line_goes_rather_not_where_it_failed_last_if_there_is_another(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    first, other = route.lanes
    assert {url_of(route.begin(rather_not=first)) for _ in range(30)} == {URLS[1]}
    fail(other)
    assert url_of(route.begin(rather_not=first)) == URLS[0]


def test_a_line_is_not_the_trial_of_the_lane_where_it_failed_last(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    fail(route.lanes[0])
    clock.now += 1
    assert url_of(route.begin(rather_not=route.lanes[0])) == URLS[1]
    assert url_of(route.begin(rather_not=route.lanes[1])) == URLS[0]


def test_lanes_that_refused_already_are_not_asked_again(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    assert {url_of(route.begin(without=route.lanes[:1])) for _ in range(30)} == {URLS[1]}
    assert route.begin(without=route.lanes) is None


def test_fallbacks_answer_in_their_order_only_while_all_own_lanes_are_open(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    first, second = (route_of(clock, plain([f"http://{name}"]), name) for name in ("first", "second"))
    route.fallbacks = [first, second]
    assert url_of(route.begin()) == URLS[0]
    assert route.begin(without=route.lanes) is None
    fail_all(route)
    assert (route.wait(), url_of(route.begin())) == (0, "http://first")
    fail_all(first)
    assert (route.wait(), url_of(route.begin())) == (0, "http://second")
    fail_all(second)
    assert (route.wait(), route.begin()) == (1, None)


def test_a_fallback_goes_back_to_the_model_itself_once_that_may_be_tried(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    route.fallbacks = [route_of(clock, plain(["http://other"]), "other")]
    fail_all(route)
    clock.now += 1
    assert url_of(route.begin()) == URLS[0]
    assert url_of(route.begin()) == "http://other"


async def test_a_backend_is_asked_by_the_name_it_knows_the_model_by(clock: Clock) -> None:
    route = route_of(clock, config_of(BackendConfig(url=URLS[0], model="up/stream")))
    sender = Sender()
    await route.send(begun(route), sender, PATH, b'{"n": 1.0,  "model":"m"}', "r")
    assert sender.sent == [("http://a" + PATH, b'{"n": 1.0,  "model":"up/stream"}')]


async def test_a_body_goes_out_as_it_is_where_the_name_is_the_same(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    sender = Sender()
    body = b' {"model" :"m","seed":1e3}'
    assert await route.send(begun(route), sender, PATH, body, "r") == OK
    assert sender.sent[0][1] is body


async def test_an_alias_is_no_name_to_a_backend(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1], aliases=["short"]))
    sender = Sender()
    await route.send(begun(route), sender, PATH, b'{"model":"short"}', "r")
    assert sender.sent[0][1] == b'{"model":"m"}'


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


async def test_the_refusal_of_a_fallback_stays_as_it_came(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:1]))
    route.fallbacks = [route_of(clock, plain(URLS[1:2]), "other")]
    fail_all(route)
    refusal = replace(OK, status=400)
    assert await route.send(begun(route), Sender(refusal), PATH, b'{"model":"m"}', "r") == refusal


def test_lanes_that_stay_keep_their_state_and_those_that_go_are_gone(clock: Clock) -> None:
    route = route_of(clock, plain(URLS[:2]))
    stays, goes = route.lanes
    fail(stays)
    stays.outstanding = 3
    heavier = config_of(BackendConfig(url=URLS[2]), BackendConfig(url=URLS[0], weight=4))
    route.follow(heavier, [backend_at(URLS[2]), stays.backend], Retries(max_attempts=9))
    new, kept = route.lanes
    assert (kept, kept.weight, kept.outstanding, kept.circuit.is_open) == (stays, 4, 3, True)
    assert (url_of(route.begin()), new.circuit.is_open, route.retries.max_attempts) == (URLS[2], False, 9)
    assert goes not in route.lanes


def test_a_backend_with_two_names_for_a_model_has_two_lanes(clock: Clock) -> None:
    backend = backend_at(URLS[0])
    route = Route("m", Retries(), 1, clock)
    config = config_of(*(BackendConfig(url=URLS[0], model=name) for name in ("x", "y")))
    route.follow(config, [backend, backend], Retries())
    fail(route.lanes[0])
    assert {sending.lane.upstream for _ in range(5) if (sending := route.begin())} == {"y"}
