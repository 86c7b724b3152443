"""What the chart's pods run, how they are told, scaled, replaced and reached."""

import math
from pathlib import Path

import pytest
from pydantic import JsonValue

from batchwright.rules.ids import safe_name
from batchwright.settings import Settings, load, registry_of
from tests.unit.deploy.chart import Resource, Values, at, check, names, notes, one, pods, render, with_least
from tests.unit.deploy.files import image_environment
from tests.unit.deploy.test_chart import POOLS, scaled

pytestmark = pytest.mark.integration


def test_the_spool_is_where_the_image_writes() -> None:
    for pod in pods(render()).values():
        for container in (*pod.init, *pod.containers):
            mounts = at(container.model_extra, "volumeMounts")
            assert mounts == [{"name": "spool", "mountPath": image_environment()["BATCHWRIGHT_SPOOL_DIR"]}]


def test_a_pool_runs_its_roles_models_and_settings() -> None:
    made = pods(render(with_least(workers=POOLS)))
    arguments = {name: pod.containers[0].args for name, pod in made.items() if "worker" in name}
    assert arguments == {
        "batchwright-worker-core": ["worker", "--roles", "control,io"],
        "batchwright-worker-small": ["worker", "--roles", "inference", "--models", "llama_8b,qwen_7b"],
        "batchwright-worker-big": ["worker", "--roles", "inference", "--models", "org/big-70b"],
    }
    variables = made["batchwright-worker-big"].containers[0].variables
    assert variables["BATCHWRIGHT_MODEL_IN_FLIGHT"] == "64"


def test_a_pools_false_and_0_win_over_the_defaults() -> None:
    pool: JsonValue = {
        "name": "all",
        "roles": ["control", "io", "inference"],
        "replicas": 0,
        "podDisruptionBudget": False,
        "settings": {"drain_seconds": 0},
    }
    resources = render(with_least(workers=[pool]))
    assert names(resources, "PodDisruptionBudget") == {"batchwright-api"}
    worker = one(resources, "Deployment", "batchwright-worker-all")
    assert worker.at("spec.replicas") == 0
    assert worker.at("spec.template.spec.terminationGracePeriodSeconds") == 30


def test_settings_reach_the_processes_as_they_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: Values = {
        "max_file_bytes": 536870912,
        "drain_seconds": 12.5,
        "strict_models": True,
        "plan_order": "file",
        "models": {"llama": {"in_flight": 3}},
        "tenant_weights": {"a": 2.5},
        "otel_exporter_otlp_endpoint": "http://collector:4318",
    }
    data = one(render(with_least(settings=chosen)), "ConfigMap", "batchwright").at("data")
    assert isinstance(data, dict)
    for variable, value in data.items():
        monkeypatch.setenv(variable, str(value))
    read = load().model_dump(mode="json", include=set(chosen) | {"backends", "storage"}, exclude_unset=True)
    assert read == {
        **chosen,
        "models": {"llama": {"in_flight": 3}},
        "backends": ["http://vllm.inference:8000"],
        "storage": "s3://batches/production",
    }


def test_a_registry_reaches_api_and_workers_as_a_file_they_can_read(tmp_path: Path) -> None:
    backend: Values = {"url": "http://vllm:8000", "api_key_name": "gateway"}
    config: Values = {"models": {"org/llama:8b": {"backends": [backend]}}}
    values = with_least(
        settings={"backends": []}, registry={"config": config, "existingSecret": "backend-keys"}
    )
    made = render(values)
    data = one(made, "ConfigMap", "batchwright").at("data")
    assert at(data, "BATCHWRIGHT_REGISTRY") == "/etc/batchwright/registry/models.yaml"
    file, keys = tmp_path / "models.yaml", tmp_path / "gateway"
    files = one(made, "ConfigMap", "batchwright-registry").at("data")
    assert isinstance(files, dict)
    file.write_text(str(files["models.yaml"]))
    keys.write_text("secret")
    read = registry_of(load(registry=file, secrets_dir=tmp_path, backends=[]))
    assert read is not None
    assert read.models["org/llama:8b"].backends[0].api_key_name == "gateway"
    for name in names(made, "Deployment"):
        text = str(one(made, "Deployment", name).whole)
        assert "/etc/batchwright/registry" in text
        assert "'secretName': 'backend-keys'" in text


def test_a_changed_setting_replaces_the_pods() -> None:
    before = render(with_least(settings={"slots_per_model": 4}))
    after = render(with_least(settings={"slots_per_model": 5}))
    for name in names(before, "Deployment"):
        path = "spec.template.metadata.annotations.checksum/config"
        assert one(before, "Deployment", name).at(path) != one(after, "Deployment", name).at(path)


@pytest.mark.parametrize("seconds", [0, 12.5, 30, 300])
def test_a_pod_is_killed_only_after_its_drain(seconds: float) -> None:
    made = pods(render(with_least(settings={"drain_seconds": seconds})))
    for name, pod in made.items():
        if "worker" in name:
            assert pod.grace >= math.ceil(seconds) + 20  # the worker gives up 15 s after the setting says
    assert made["batchwright-api"].grace >= math.ceil(seconds) + 5 + 5


def test_the_drain_that_nobody_set_is_the_settings_own() -> None:
    default = Settings.model_fields["drain_seconds"].default
    assert pods(render())["batchwright-worker-io"].grace == default + 30


def test_every_pod_is_under_a_policy() -> None:
    made = render(with_least(workers=POOLS))
    policies = [each.at("spec.podSelector.matchLabels") for each in made if each.kind == "NetworkPolicy"]
    for each in made:
        labels = each.at("spec.template.metadata.labels")
        if isinstance(labels, dict):
            assert any(
                isinstance(wanted, dict) and wanted.items() <= labels.items() for wanted in policies
            ), each.metadata.name


def test_labels_of_the_values_do_not_stand_for_those_that_select_pods() -> None:
    made = render(with_least(podLabels={"app.kubernetes.io/component": "api", "team": "x"}))
    components = {each.metadata.name: _component(each) for each in made if each.kind in ("Deployment", "Job")}
    assert {name for name, component in components.items() if component == "api"} == {"batchwright-api"}


def _component(resource: Resource) -> JsonValue:
    labels = resource.at("spec.template.metadata.labels")
    assert isinstance(labels, dict)
    assert labels["team"] == "x"
    return labels["app.kubernetes.io/component"]


def test_pods_come_before_whom_the_values_say() -> None:
    pools: JsonValue = [
        {"name": "io", "roles": ["io", "control"]},
        {"name": "gpu", "roles": ["inference"], "priorityClassName": "low"},
    ]
    values = with_least(
        api={"priorityClassName": "high"}, workerDefaults={"priorityClassName": "middle"}, workers=pools
    )
    made = render(values)
    for resource in made:
        check(resource)
    found = {
        each.metadata.name: each.at("spec.template.spec.priorityClassName")
        for each in made
        if each.kind in ("Deployment", "Job")
    }
    assert found == {
        "batchwright-api": "high",
        "batchwright-worker-io": "middle",
        "batchwright-worker-gpu": "low",
        "batchwright-setup": None,
    }


def test_a_node_is_asked_for_the_disk_of_pods_that_do_io_unless_the_values_say() -> None:
    resources: JsonValue = {"requests": {"ephemeral-storage": "1Gi"}, "limits": {"memory": "1Gi"}}
    pools: JsonValue = [
        {"name": "io", "roles": ["io"], "spoolSize": "8Gi"},
        {"name": "rest", "roles": ["control", "inference"], "spoolSize": "2Gi"},
        {"name": "told", "roles": ["io"], "resources": resources},
    ]
    made = pods(render(with_least(workers=pools)))
    asked = {
        name.removeprefix("batchwright-"): pod.containers[0].resources["requests"]["ephemeral-storage"]
        for name, pod in made.items()
    }
    assert asked == {
        "api": "64Mi",
        "setup": "64Mi",
        "worker-io": "8Gi",
        "worker-rest": "64Mi",
        "worker-told": "1Gi",
    }
    limits = {name: pod.containers[0].resources["limits"] for name, pod in made.items()}
    assert limits["batchwright-worker-told"] == {"memory": "1Gi"}


def test_a_backlog_is_read_from_the_queues_that_the_pool_polls() -> None:
    resources = render(with_least(workers=scaled("backlog")))
    core = one(resources, "ScaledObject", "batchwright-worker-core").at("spec.triggers")
    small = one(resources, "ScaledObject", "batchwright-worker-small").at("spec.triggers")
    read = [at(triggers, f"{place}.metadata") for triggers in (core, small) for place in (0, 1)]
    assert [(at(each, "taskQueue"), at(each, "queueTypes")) for each in read] == [
        ("control", "workflow,activity"),
        ("io", "activity"),
        ("dispatch", "activity"),
        (f"inference.{safe_name('llama_8b')}", "activity"),
    ]


def test_queues_of_models_with_other_names_are_listed() -> None:
    queue = f"inference.{safe_name('org/big-70b')}"
    pool: JsonValue = {
        "name": "all",
        "roles": ["control", "io", "inference"],
        "models": ["org/big-70b"],
        "autoscaling": {"type": "backlog", "queues": [queue, "io"]},
    }
    scaler = one(render(with_least(workers=[pool])), "ScaledObject", "batchwright-worker-all")
    triggers = scaler.at("spec.triggers")
    assert [at(triggers, f"{place}.metadata.taskQueue") for place in (0, 1)] == [queue, "io"]


def test_an_autoscaler_has_the_replicas_to_itself() -> None:
    for kind in ("cpu", "backlog"):
        resources = render(with_least(workers=scaled(kind)))
        assert one(resources, "Deployment", "batchwright-worker-core").at("spec.replicas") is None


def test_a_versioned_worker_is_told_its_version_by_the_controller() -> None:
    resources = render(with_least(versioning={"enabled": True}))
    [container] = pods([one(resources, "WorkerDeployment", "batchwright-worker-io")])[
        "batchwright-worker-io"
    ].containers
    assert container.command == [
        "env",
        "BATCHWRIGHT_DEPLOYMENT_NAME=$(TEMPORAL_DEPLOYMENT_NAME)",
        "BATCHWRIGHT_BUILD_ID=$(TEMPORAL_WORKER_BUILD_ID)",
        "batchwright",
    ]


def test_nobody_reaches_a_worker_and_only_the_chosen_reach_the_api() -> None:
    gateway: JsonValue = {"podSelector": {"matchLabels": {"app": "gateway"}}}
    resources = render(with_least(networkPolicy={"apiFrom": [gateway]}))
    assert one(resources, "NetworkPolicy", "batchwright-worker").at("spec.ingress") == []
    api = one(resources, "NetworkPolicy", "batchwright-api").at("spec.ingress")
    assert api == [{"from": [gateway], "ports": [{"port": "http"}]}]


def test_monitors_and_policies_select_the_pods_there_are() -> None:
    resources = render(with_least(monitoring={"monitors": True}, workers=POOLS))
    labels = {
        name: one(resources, "Deployment", name).at("spec.template.metadata.labels")
        for name in names(resources, "Deployment")
    }
    for kind, name in (("PodMonitor", "batchwright-worker"), ("NetworkPolicy", "batchwright-worker")):
        selector = one(resources, kind, name).at("spec")
        wanted = at(selector, "selector.matchLabels") or at(selector, "podSelector.matchLabels")
        assert isinstance(wanted, dict)
        selected = {
            pod for pod, has in labels.items() if isinstance(has, dict) and wanted.items() <= has.items()
        }
        assert selected == {name for name in labels if "worker" in name}


def test_every_secret_is_only_referred_to() -> None:
    resources = render(
        with_least(
            backends={"existingSecret": "k"},
            callbacks={"existingSecret": "c"},
            s3={"existingSecret": "s"},
        )
    )
    assert names(resources, "Secret") == set()
    for pod in pods(resources).values():
        for container in pod.containers:
            hidden = {"BATCHWRIGHT_DATABASE_URL", "BATCHWRIGHT_BACKEND_API_KEY", "AWS_SECRET_ACCESS_KEY"}
            hidden.add("BATCHWRIGHT_CALLBACK_SECRET")
            assert {container.variables.get(name) for name in hidden} == {None}


def test_the_notes_say_how_to_reach_it() -> None:
    said = notes(with_least(api={"service": {"port": 8080}}))
    assert "http://batchwright-api.production.svc:8080/v1" in said
