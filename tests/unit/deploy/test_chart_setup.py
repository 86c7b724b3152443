"""The chart's setup: what it needs, where it runs, whom it reaches."""

import pytest
from pydantic import JsonValue

from tests.unit.deploy.chart import Values, at, check, one, pods, render, with_least
from tests.unit.deploy.test_chart import TLS

pytestmark = pytest.mark.integration


def test_the_setup_needs_nothing_that_comes_after_it() -> None:
    job = one(render(with_least(temporal={"tls": TLS})), "Job", "batchwright-setup")
    assert job.metadata.annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    [pod] = pods([job]).values()
    assert [container.args for container in (*pod.init, *pod.containers)] == [
        ["migrate"],
        ["setup", "temporal"],
    ]
    assert "configMapRef" not in str(job.whole)


def test_the_setup_has_an_account_that_is_there_before_it_and_gone_with_it() -> None:
    role: Values = {"eks.amazonaws.com/role-arn": "arn:x"}
    made = render(with_least(serviceAccount={"annotations": role}))
    job, account = one(made, "Job", "batchwright-setup"), one(made, "ServiceAccount", "batchwright-setup")
    assert job.at("spec.template.spec.serviceAccountName") == "batchwright-setup"
    said = account.metadata.annotations
    assert {name: said[f"helm.sh/{name}"] for name in ("hook", "hook-delete-policy")} == {
        name: job.metadata.annotations[f"helm.sh/{name}"] for name in ("hook", "hook-delete-policy")
    }
    assert int(said["helm.sh/hook-weight"]) < int(job.metadata.annotations.get("helm.sh/hook-weight", 0))
    assert role.items() <= said.items()


@pytest.mark.parametrize(("name", "used"), [("theirs", "theirs"), ("", "default")])
def test_where_no_account_is_made_the_setup_has_that_of_all_pods(name: str, used: str) -> None:
    made = render(with_least(serviceAccount={"create": False, "name": name}))
    job = one(made, "Job", "batchwright-setup")
    assert job.at("spec.template.spec.serviceAccountName") == used


def test_the_setup_runs_where_the_values_say_as_on_a_cluster_of_which_all_nodes_are_tainted() -> None:
    where: Values = {
        "nodeSelector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    }
    job = one(render(with_least(setup=where)), "Job", "batchwright-setup")
    check(job)
    assert {name: job.at(f"spec.template.spec.{name}") for name in where} == where


def test_the_setup_connects_to_no_more_than_the_rest_and_nobody_to_it() -> None:
    database: JsonValue = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 5432}]}
    made = render(with_least(networkPolicy={"egress": [database]}))
    job, policy = one(made, "Job", "batchwright-setup"), one(made, "NetworkPolicy", "batchwright-setup")
    assert policy.at("spec.policyTypes") == ["Ingress", "Egress"]
    assert policy.at("spec.ingress") == []
    assert policy.at("spec.egress") == one(made, "NetworkPolicy", "batchwright-worker").at("spec.egress")
    # It is there before the job whose pods it selects, and gone with it.
    said = policy.metadata.annotations
    assert said["helm.sh/hook"] == job.metadata.annotations["helm.sh/hook"]
    assert int(said["helm.sh/hook-weight"]) < 0
    wanted, labels = policy.at("spec.podSelector.matchLabels"), job.at("spec.template.metadata.labels")
    assert isinstance(wanted, dict)
    assert isinstance(labels, dict)
    assert wanted.items() <= labels.items()


def test_the_setup_has_no_key_of_payloads_or_backends() -> None:
    values = with_least(
        temporal={"tls": TLS},
        payloadKeys={"existingSecret": "payloads", "ids": ["new"]},
        registry={"existingSecret": "backend-keys", "config": {"models": {}}},
        settings={"backends": []},
    )
    made = pods(render(values))
    secrets = {
        name: {str(at(volume, "secret.secretName")) for volume in pod.volumes if "secret" in volume}
        for name, pod in made.items()
    }
    assert secrets.pop("batchwright-setup") == {"tls"}
    assert all(each == {"tls", "payloads", "backend-keys"} for each in secrets.values())
