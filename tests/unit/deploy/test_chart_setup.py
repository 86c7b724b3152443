"""The chart's setup job: what it needs, where it runs, and what it connects to."""

import pytest
from pydantic import JsonValue

from tests.unit.deploy.chart import Values, at, check, one, pods, render, with_least
from tests.unit.deploy.test_chart import TLS

pytestmark = pytest.mark.integration


def test_the_setup_job_needs_no_resource_created_after_it() -> None:
    job = one(render(with_least(temporal={"tls": TLS})), "Job", "batchwright-setup")
    assert job.metadata.annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    [pod] = pods([job]).values()
    assert [container.args for container in (*pod.init, *pod.containers)] == [
        ["migrate"],
        ["setup", "temporal"],
    ]
    assert "configMapRef" not in str(job.whole)


def test_only_the_migrations_have_the_role_that_owns_the_tables() -> None:
    owner: Values = {"migrations": {"existingSecret": "owner", "key": "dsn"}}
    resources = [each for each in render(with_least(database=owner)) if each.kind in ("Deployment", "Job")]
    secrets = {
        each.metadata.name: [
            at(variable, "valueFrom.secretKeyRef")
            for containers in ("initContainers", "containers")
            for container in listed(each.at(f"spec.template.spec.{containers}"))
            for variable in listed(at(container, "env"))
            if at(variable, "name") == "BATCHWRIGHT_DATABASE_URL"
        ]
        for each in resources
    }
    assert secrets.pop("batchwright-setup") == [{"name": "owner", "key": "dsn"}]
    assert len(secrets) > 1
    assert all(found == [{"name": "batchwright-database", "key": "url"}] for found in secrets.values())


def listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def test_the_service_account_of_the_setup_job_lives_as_long_as_the_job() -> None:
    role: Values = {"eks.amazonaws.com/role-arn": "arn:x"}
    rendered = render(with_least(serviceAccount={"annotations": role}))
    job, account = (
        one(rendered, "Job", "batchwright-setup"),
        one(rendered, "ServiceAccount", "batchwright-setup"),
    )
    assert job.at("spec.template.spec.serviceAccountName") == "batchwright-setup"
    annotations = account.metadata.annotations
    assert {name: annotations[f"helm.sh/{name}"] for name in ("hook", "hook-delete-policy")} == {
        name: job.metadata.annotations[f"helm.sh/{name}"] for name in ("hook", "hook-delete-policy")
    }
    assert int(annotations["helm.sh/hook-weight"]) < int(
        job.metadata.annotations.get("helm.sh/hook-weight", 0)
    )
    assert role.items() <= annotations.items()


@pytest.mark.parametrize(("name", "used"), [("theirs", "theirs"), ("", "default")])
def test_without_an_own_service_account_the_setup_job_uses_that_of_the_pods(name: str, used: str) -> None:
    rendered = render(with_least(serviceAccount={"create": False, "name": name}))
    job = one(rendered, "Job", "batchwright-setup")
    assert job.at("spec.template.spec.serviceAccountName") == used


def test_the_setup_job_has_the_tolerations_and_node_selector_of_the_values() -> None:
    where: Values = {
        "nodeSelector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    }
    job = one(render(with_least(setup=where)), "Job", "batchwright-setup")
    check(job)
    assert {name: job.at(f"spec.template.spec.{name}") for name in where} == where


def test_the_network_policy_of_the_setup_job_allows_no_ingress_and_the_usual_egress() -> None:
    database: JsonValue = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 5432}]}
    rendered = render(with_least(networkPolicy={"egress": [database]}))
    job, policy = (
        one(rendered, "Job", "batchwright-setup"),
        one(rendered, "NetworkPolicy", "batchwright-setup"),
    )
    assert policy.at("spec.policyTypes") == ["Ingress", "Egress"]
    assert policy.at("spec.ingress") == []
    assert policy.at("spec.egress") == one(rendered, "NetworkPolicy", "batchwright-worker").at("spec.egress")
    # It is there before the job whose pods it selects, and gone with it.
    annotations = policy.metadata.annotations
    assert annotations["helm.sh/hook"] == job.metadata.annotations["helm.sh/hook"]
    assert int(annotations["helm.sh/hook-weight"]) < 0
    wanted, labels = policy.at("spec.podSelector.matchLabels"), job.at("spec.template.metadata.labels")
    assert isinstance(wanted, dict)
    assert isinstance(labels, dict)
    assert wanted.items() <= labels.items()


def test_the_setup_job_has_no_keys_of_payloads_or_backends() -> None:
    values = with_least(
        temporal={"tls": TLS},
        payloadKeys={"existingSecret": "payloads", "ids": ["new"]},
        registry={"existingSecret": "backend-keys", "config": {"models": {}}},
        settings={"backends": []},
    )
    rendered = pods(render(values))
    secrets = {
        name: {str(at(volume, "secret.secretName")) for volume in pod.volumes if "secret" in volume}
        for name, pod in rendered.items()
    }
    assert secrets.pop("batchwright-setup") == {"tls"}
    assert all(each == {"tls", "payloads", "backend-keys"} for each in secrets.values())
