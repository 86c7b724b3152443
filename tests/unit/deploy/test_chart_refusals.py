"""Values that the chart refuses, and that it says why."""

from dataclasses import dataclass

import helm_python
import pytest
from pydantic import JsonValue

from tests.unit.deploy.chart import CHART, LEAST, Refused, Values, render, with_least

pytestmark = pytest.mark.integration


def pool(**values: JsonValue) -> Values:
    """One pool with all the roles, and `values`."""
    whole: JsonValue = {"name": "all", "roles": ["control", "io", "inference"], **values}
    return {"workers": [whole]}


@dataclass
class Case:
    says: str
    values: Values


CASES = [
    # Keys and types
    Case("additional properties 'setings' not allowed", {"setings": {}}),
    Case("additional properties 'replica' not allowed", {"api": {"replica": 3}}),
    Case("additional properties 'slots' not allowed", {"settings": {"slots": 3}}),
    Case("additional properties 'database_url' not allowed", {"settings": {"database_url": "postgresql://"}}),
    Case("additional properties 'backend_api_key' not allowed", {"settings": {"backend_api_key": "sk"}}),
    Case("additional properties 'api_host' not allowed", {"settings": {"api_host": "0.0.0.0"}}),
    Case("at '/settings/slots_per_model': minimum: got 0, want 1", {"settings": {"slots_per_model": 0}}),
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
    Case("models are of the role inference", {"workers": [{"name": "a", "roles": ["io"], "models": ["m"]}]}),
    Case(
        'there are two pools named "a"',
        {"workers": [{"name": "a", "roles": ["io", "control"]}, {"name": "a", "roles": ["inference"]}]},
    ),
    # Scaling
    Case("minReplicas (9) is more than maxReplicas (8)", pool(autoscaling={"type": "cpu", "minReplicas": 9})),
    Case("autoscaling by backlog needs the models", pool(autoscaling={"type": "backlog"})),
    Case("has a name with a digest", pool(models=["org/big-70b"], autoscaling={"type": "backlog"})),
    Case("at '/workers/0/autoscaling/queues/0'", pool(autoscaling={"type": "backlog", "queues": ["other"]})),
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
    # What is missing
    Case("at '/api/auth': value must be one of 'api_key', 'trusted_header'", {"api": {"auth": "none"}}),
    Case("database.existingSecret names the Secret", {"database": {"existingSecret": ""}}),
    Case("temporal.address is host:port", {"temporal": {"address": ""}}),
    Case("settings.backends lists", {"settings": {"backends": []}}),
    Case("are both set: take one", {"registry": {"config": {"models": {"a": {}}}}}),
    Case('settings.storage is "", but pods do not share a disk', {"settings": {"storage": ""}}),
    Case("it has to be s3://bucket/prefix", {"settings": {"storage": "file:///objects"}}),
    Case("temporal.tls.existingSecret names", {"temporal": {"tls": {"authority": True}}}),
    Case("payloadKeys.ids lists", {"payloadKeys": {"existingSecret": "keys"}}),
    Case("which needs steps", {"versioning": {"enabled": True, "rollout": {"strategy": "Progressive"}}}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_a_wrong_value_is_refused_in_words(case: Case) -> None:
    with pytest.raises(Refused) as refused:
        render(with_least(**case.values))
    assert case.says in str(refused.value)


@pytest.mark.parametrize("name", LEAST)
def test_each_part_of_the_least_is_needed(name: str) -> None:
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


def test_the_linter_has_nothing_to_say_but_that_there_is_no_icon() -> None:
    report = helm_python.lint(CHART, with_least(), strict=True)
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
