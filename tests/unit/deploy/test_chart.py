"""Kubernetes' schemas accept the chart's resources, with every switch on and off."""

from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue

from tests.unit.deploy.chart import Values, at, check, pods, render, with_least

pytestmark = pytest.mark.integration

TLS: Values = {"existingSecret": "tls", "authority": True, "clientCertificate": True}
POOLS: list[JsonValue] = [
    {"name": "core", "roles": ["control", "io"], "podDisruptionBudget": False, "spoolSize": "8Gi"},
    {"name": "small", "roles": ["inference"], "models": ["llama_8b", "qwen_7b"], "replicas": 3},
    {"name": "big", "roles": ["inference"], "models": ["org/big-70b"], "settings": {"model_in_flight": 64}},
]
EVERYWHERE: list[JsonValue] = [{"namespaceSelector": {}}]


def scaled(kind: str, **more: JsonValue) -> list[JsonValue]:
    scaling: JsonValue = {"type": kind, **more}
    return [
        {"name": "core", "roles": ["control", "io"], "autoscaling": scaling},
        {"name": "small", "roles": ["inference"], "models": ["llama_8b"], "autoscaling": scaling},
    ]


@dataclass
class Case:
    """Values of the chart, and the number of resources of each kind that they produce."""

    name: str
    values: Values
    kinds: dict[str, int] = field(default_factory=dict[str, int])


CASES = [
    Case(
        "least", {}, {"Deployment": 4, "Job": 1, "NetworkPolicy": 3, "PodDisruptionBudget": 4, "Service": 1}
    ),
    Case("pools", {"workers": POOLS}, {"Deployment": 4, "PodDisruptionBudget": 3}),
    Case("no setup", {"setup": {"enabled": False}}, {"Job": 0}),
    Case("account of others", {"serviceAccount": {"create": False, "name": "theirs"}}, {"ServiceAccount": 0}),
    Case("account with a role", {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:x"}}}),
    Case(
        "api by cpu",
        {"api": {"autoscaling": {"type": "cpu"}, "podDisruptionBudget": False}},
        {"HorizontalPodAutoscaler": 1, "PodDisruptionBudget": 3},
    ),
    Case("workers by cpu", {"workers": scaled("cpu")}, {"HorizontalPodAutoscaler": 2}),
    Case(
        "workers by backlog", {"workers": scaled("backlog")}, {"ScaledObject": 2, "TriggerAuthentication": 0}
    ),
    Case(
        "backlog behind TLS",
        {"workers": scaled("backlog"), "temporal": {"tls": TLS}},
        {"ScaledObject": 2, "TriggerAuthentication": 1},
    ),
    Case(
        "backlog with a key of theirs",
        {
            "workers": scaled("backlog"),
            "temporal": {"apiKey": {"existingSecret": "cloud"}},
            "keda": {"authenticationRef": "theirs"},
        },
        {"TriggerAuthentication": 0},
    ),
    Case(
        "workers by demand",
        {
            "workers": scaled("backlog", targetInFlight=51),
            "keda": {
                "prometheus": {
                    "address": "https://prometheus.example.com/prefix",
                    "matchers": 'namespace="batches",cluster=~"a|b"',
                    "window": "2h",
                    "authenticationRef": "theirs",
                    "authModes": "bearer,tls",
                }
            },
        },
        {"ScaledObject": 2, "TriggerAuthentication": 0},
    ),
    Case(
        "versioned",
        {"versioning": {"enabled": True}},
        {"Deployment": 1, "WorkerDeployment": 3, "Connection": 1, "PodDisruptionBudget": 4},
    ),
    Case(
        "versioned and scaled",
        {"versioning": {"enabled": True, "connection": "theirs"}, "workers": scaled("backlog")},
        {"WorkerDeployment": 2, "Connection": 0, "WorkerResourceTemplate": 2, "ScaledObject": 0},
    ),
    Case(
        "versioned and scaled by cpu",
        {"versioning": {"enabled": True}, "workers": scaled("cpu"), "temporal": {"tls": TLS}},
        {"WorkerResourceTemplate": 2, "HorizontalPodAutoscaler": 0},
    ),
    Case(
        "versioned in steps",
        {
            "versioning": {
                "enabled": True,
                "rollout": {
                    "strategy": "Progressive",
                    "steps": [{"rampPercentage": 10, "pauseDuration": "5m"}],
                },
            },
            "temporal": {"apiKey": {"existingSecret": "cloud"}, "tls": {**TLS, "clientCertificate": False}},
        },
    ),
    Case("no policies", {"networkPolicy": {"enabled": False}}, {"NetworkPolicy": 0}),
    Case(
        "policies",
        {
            "networkPolicy": {
                "apiFrom": [{"podSelector": {"matchLabels": {"app": "gateway"}}}],
                "metricsFrom": EVERYWHERE,
                "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 5432}]}],
            }
        },
        {"NetworkPolicy": 3},
    ),
    Case(
        "monitored",
        {
            "monitoring": {
                "monitors": True,
                "rules": True,
                "dashboards": True,
                "labels": {"release": "prom"},
                "apiKey": {"existingSecret": "scrapes"},
            }
        },
        {"ServiceMonitor": 1, "PodMonitor": 1, "ConfigMap": 2},
    ),
    Case(
        "everything about pods",
        {
            "image": {"digest": "sha256:" + "a" * 64, "pullSecrets": ["registry"]},
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "x"},
            "extraEnv": [
                {"name": "A", "value": "b"},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            "backends": {"existingSecret": "keys"},
            "s3": {"existingSecret": "s3"},
            "payloadKeys": {"existingSecret": "payloads", "ids": ["new", "old"]},
            "temporal": {"tls": TLS, "uiUrl": "https://temporal.example.com"},
            "api": {
                "nodeSelector": {"pool": "web"},
                "priorityClassName": "high",
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"podAntiAffinity": {}},
                "service": {"type": "LoadBalancer", "annotations": {"internal": "true"}},
            },
            "workerDefaults": {
                "nodeSelector": {"pool": "batch"},
                "priorityClassName": "low",
                "tolerations": [{"operator": "Exists"}],
            },
            "setup": {
                "nodeSelector": {"pool": "batch"},
                "priorityClassName": "low",
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"podAntiAffinity": {}},
            },
        },
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kubernetes_accepts_every_resource(case: Case) -> None:
    resources = render(with_least(**case.values))
    for resource in resources:
        check(resource)
    found = [resource.kind for resource in resources]
    assert {kind: found.count(kind) for kind in case.kinds} == case.kinds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_two_resources_have_the_same_name(case: Case) -> None:
    resources = render(with_least(**case.values))
    keys = [(resource.kind, resource.metadata.name) for resource in resources]
    assert len(set(keys)) == len(keys)
    assert all(resource.metadata.name.startswith("batchwright") for resource in resources)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_pod_has_more_rights_than_it_needs(case: Case) -> None:
    for name, pod in pods(render(with_least(**case.values))).items():
        assert not pod.token, name
        assert (pod.security["runAsNonRoot"], pod.security["runAsUser"]) == (True, 10001)
        assert pod.security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.init, *pod.containers):
            assert container.security == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container.resources) == {"requests", "limits"}
        disks = [volume["emptyDir"] for volume in pod.volumes if "emptyDir" in volume]
        assert disks
        assert all(at(disk, "sizeLimit") for disk in disks)


def test_two_releases_share_no_name() -> None:
    monitored = with_least(monitoring={"monitors": True, "rules": True, "dashboards": True}, workers=POOLS)
    rendered = [
        {(each.kind, each.metadata.name) for each in render(monitored, name)} for name in ("one", "two")
    ]
    assert rendered[0].isdisjoint(rendered[1])
