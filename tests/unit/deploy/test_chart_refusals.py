"""The chart rejects wrong values, and says why."""

from dataclasses import dataclass

import helm_python
import pytest
from pydantic import JsonValue

from tests.unit.deploy.chart import CHART, LEAST, Refused, Values, one, render, with_least

pytestmark = pytest.mark.integration


def pool(**values: JsonValue) -> Values:
    """Return a pool with all roles, merged with `values`."""
    whole: JsonValue = {"name": "all", "roles": ["control", "io", "inference"], **values}
    return {"workers": [whole]}


GATEWAY: JsonValue = {"podSelector": {"matchLabels": {"app": "gateway"}}}
EVERYONE: list[JsonValue] = [
    {"podSelector": {}},
    {"podSelector": {"matchLabels": {}}},
    {"namespaceSelector": {}},
    {"podSelector": {"matchExpressions": []}, "namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0"}},
    {"ipBlock": {"cidr": "::/0"}},
]


def believing(**policy: JsonValue) -> Values:
    """Return values for an API behind a gateway. `policy` states who else may reach the API."""
    return {"api": {"auth": "trusted_header"}, "networkPolicy": {"apiFrom": [GATEWAY], **policy}}


@dataclass
class Case:
    message: str
    values: Values


CASES = [
    # Keys and types
    Case("additional properties 'setings' not allowed", {"setings": {}}),
    Case("additional properties 'replica' not allowed", {"api": {"replica": 3}}),
    Case("additional properties 'slots' not allowed", {"settings": {"slots": 3}}),
    Case("additional properties 'database_url' not allowed", {"settings": {"database_url": "postgresql://"}}),
    Case("additional properties 'backend_api_key' not allowed", {"settings": {"backend_api_key": "sk"}}),
    Case("additional properties 'api_host' not allowed", {"settings": {"api_host": "0.0.0.0"}}),
    Case("at '/settings/io_slots': minimum: got 0, want 1", {"settings": {"io_slots": 0}}),
    Case("at '/settings/plan_order'", {"settings": {"plan_order": "random"}}),
    Case("at '/settings/drain_seconds': got string, want number", {"settings": {"drain_seconds": "30"}}),
    Case("at '/temporal/address'", {"temporal": {"address": "temporal"}}),
    Case("at '/image/digest'", {"image": {"digest": "latest"}}),
    Case("at '/monitoring/interval'", {"monitoring": {"interval": "often"}}),
    Case("at '/networkPolicy/apiFrom/0'", {"networkPolicy": {"apiFrom": [{}]}}),
    Case("at '/extraEnv/0'", {"extraEnv": [{"name": "A"}]}),
    # Pools
    Case("at '/workers/0/name'", pool(name="Big_Models")),
    Case("at '/workers/0/roles/0'", pool(roles=["everything"])),
    Case("at '/workers/0/spoolSize'", pool(spoolSize="lots")),
    Case("at '/workers/0/autoscaling/type'", pool(autoscaling={"type": "magic"})),
    Case("at '/workers/0/autoscaling/minReplicas'", pool(autoscaling={"type": "cpu", "minReplicas": 0})),
    Case("no pool has the role io", pool(roles=["control", "inference"])),
    Case(
        "the pool has models but not the role inference",
        {"workers": [{"name": "a", "roles": ["io"], "models": ["m"]}]},
    ),
    Case(
        'there are two pools named "a"',
        {"workers": [{"name": "a", "roles": ["io", "control"]}, {"name": "a", "roles": ["inference"]}]},
    ),
    # Scaling
    Case("minReplicas (9) is more than maxReplicas (8)", pool(autoscaling={"type": "cpu", "minReplicas": 9})),
    Case("autoscaling by backlog needs task queues", pool(autoscaling={"type": "backlog"})),
    Case(
        'the task queue of model "org/big-70b" has a digest',
        pool(models=["org/big-70b"], autoscaling={"type": "backlog"}),
    ),
    Case("at '/workers/0/autoscaling/queues/0'", pool(autoscaling={"type": "backlog", "queues": ["other"]})),
    Case("at '/keda/prometheus/address'", {"keda": {"prometheus": {"address": "prometheus:9090"}}}),
    Case("at '/keda/prometheus/window'", {"keda": {"prometheus": {"window": "half an hour"}}}),
    Case("at '/keda/prometheus/matchers'", {"keda": {"prometheus": {"matchers": '{namespace="a"}'}}}),
    Case("at '/keda/prometheus/authModes'", {"keda": {"prometheus": {"authModes": "password"}}}),
    Case("at '/workers/0/autoscaling/targetInFlight'", pool(autoscaling={"targetInFlight": 0})),
    Case(
        "each version of a pool would get the pods that all lines need. Unset keda.prometheus.address",
        {
            "versioning": {"enabled": True},
            "keda": {"prometheus": {"address": "http://prometheus:9090"}},
            **pool(models=["a"], autoscaling={"type": "backlog"}),
        },
    ),
    # Drains
    Case(
        'workers "all": terminationGracePeriodSeconds is 40, but its drain needs at least 50 s',
        pool(terminationGracePeriodSeconds=40),
    ),
    Case(
        'workers "all": terminationGracePeriodSeconds is 60, but its drain needs at least 80 s',
        pool(terminationGracePeriodSeconds=60, settings={"drain_seconds": 60}),
    ),
    Case("api: terminationGracePeriodSeconds is 30", {"api": {"terminationGracePeriodSeconds": 30}}),
    # An API that believes a header, and is open to others than the gateway
    Case("networkPolicy.apiFrom must not select all pods", {"api": {"auth": "trusted_header"}}),
    Case("set networkPolicy.enabled", believing(enabled=False)),
    *(Case("networkPolicy.apiFrom must not", believing(apiFrom=[GATEWAY, peer])) for peer in EVERYONE),
    *(Case("networkPolicy.metricsFrom must not", believing(metricsFrom=[peer])) for peer in EVERYONE),
    # What is missing
    Case("at '/api/auth': value must be one of 'api_key', 'trusted_header'", {"api": {"auth": "none"}}),
    Case("database.existingSecret is empty: set it to the Secret", {"database": {"existingSecret": ""}}),
    Case("temporal.address is empty: set it to host:port", {"temporal": {"address": ""}}),
    Case("no backends are set: list their URLs in settings.backends", {"settings": {"backends": []}}),
    Case("are both set: unset one", {"registry": {"config": {"models": {"a": {}}}}}),
    Case('settings.storage is "", but pods do not share a disk', {"settings": {"storage": ""}}),
    Case("set it to s3://bucket/prefix", {"settings": {"storage": "file:///objects"}}),
    Case("set it to the Secret with the certificates", {"temporal": {"tls": {"authority": True}}}),
    Case("so nothing would be encrypted", {"payloadKeys": {"ids": ["2026-11"]}}),
    Case("settings.callback_url is empty", {"callbacks": {"existingSecret": "callbacks"}}),
    Case('workers "all": settings.storage is set for one pool', pool(settings={"storage": "s3://b/other"})),
    Case("payloadKeys.ids is empty", {"payloadKeys": {"existingSecret": "keys"}}),
    Case(
        "versioning.rollout.steps is empty",
        {"versioning": {"enabled": True, "rollout": {"strategy": "Progressive"}}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.message}" for number, case in enumerate(CASES)])
def test_a_wrong_value_is_refused_with_a_clear_message(case: Case) -> None:
    with pytest.raises(Refused) as refused:
        render(with_least(**case.values))
    assert case.message in str(refused.value)


@pytest.mark.parametrize(
    "peers",
    [
        [GATEWAY],
        [{**GATEWAY, "namespaceSelector": {}}],
        [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateway"}},
                "podSelector": {},
            }
        ],
        [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["gateway"]}]}}],
        [{"ipBlock": {"cidr": "10.0.0.7/32"}}],
        [],
    ],
)
def test_a_trusted_header_api_accepts_connections_only_from_the_configured_peers(
    peers: list[JsonValue],
) -> None:
    resources = render(with_least(**believing(apiFrom=peers)))
    ingress = one(resources, "NetworkPolicy", "batchwright-api").at("spec.ingress")
    assert ingress == ([{"from": peers, "ports": [{"port": "http"}]}] if peers else [])


@pytest.mark.parametrize("name", LEAST)
def test_each_required_value_is_needed(name: str) -> None:
    with pytest.raises(Refused):
        render({key: value for key, value in LEAST.items() if key != name})


def test_a_release_with_a_long_name_is_refused_before_names_are_cut() -> None:
    with pytest.raises(Refused, match="set fullnameOverride"):
        render(release="the-batch-inference-of-the-research-department")


def test_a_versioned_name_that_temporal_would_refuse_is_refused() -> None:
    long = "a" * 20
    values = with_least(
        versioning={"enabled": True},
        fullnameOverride="b" * 30,
        workers=[{"name": long, "roles": ["control", "io", "inference"]}],
    )
    with pytest.raises(Refused, match="more than 63 characters"):
        render(values)


def test_the_linter_reports_only_the_missing_icon() -> None:
    report = helm_python.lint(CHART, with_least(), strict=True)
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
