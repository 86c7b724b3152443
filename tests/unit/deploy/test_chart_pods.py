"""The chart's pods: commands, settings, scaling, replacement and network access."""

import math
from pathlib import Path

import pytest
from pydantic import JsonValue

from batchwright.rules.ids import safe_name
from batchwright.settings import Settings, load, load_registry
from tests.unit.deploy.chart import Resource, Values, at, check, names, notes, one, pods, render, with_least
from tests.unit.deploy.files import ROOT, image_environment
from tests.unit.deploy.test_chart import POOLS, scaled

pytestmark = pytest.mark.integration


def test_the_spool_is_where_the_image_writes() -> None:
    for pod in pods(render()).values():
        for container in (*pod.init, *pod.containers):
            mounts = at(container.model_extra, "volumeMounts")
            assert mounts == [{"name": "spool", "mountPath": image_environment()["BATCHWRIGHT_SPOOL_DIR"]}]


def test_a_pool_runs_its_roles_models_and_settings() -> None:
    rendered = pods(render(with_least(workers=POOLS)))
    arguments = {name: pod.containers[0].args for name, pod in rendered.items() if "worker" in name}
    assert arguments == {
        "batchwright-worker-core": ["worker", "--roles", "control,io"],
        "batchwright-worker-small": ["worker", "--roles", "inference", "--models", "llama_8b,qwen_7b"],
        "batchwright-worker-big": ["worker", "--roles", "inference", "--models", "org/big-70b"],
    }
    variables = rendered["batchwright-worker-big"].containers[0].variables
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
    rendered = render(values)
    data = one(rendered, "ConfigMap", "batchwright").at("data")
    assert at(data, "BATCHWRIGHT_REGISTRY") == "/etc/batchwright/registry/models.yaml"
    file, keys = tmp_path / "models.yaml", tmp_path / "gateway"
    files = one(rendered, "ConfigMap", "batchwright-registry").at("data")
    assert isinstance(files, dict)
    file.write_text(str(files["models.yaml"]))
    keys.write_text("secret")
    read = load_registry(load(registry=file, secrets_dir=tmp_path, backends=[]))
    assert read is not None
    assert read.models["org/llama:8b"].backends[0].api_key_name == "gateway"
    for name in names(rendered, "Deployment"):
        text = str(one(rendered, "Deployment", name).whole)
        assert "/etc/batchwright/registry" in text
        assert "'secretName': 'backend-keys'" in text


def test_a_changed_setting_replaces_the_pods() -> None:
    before = render(with_least(settings={"io_slots": 4}))
    after = render(with_least(settings={"io_slots": 5}))
    for name in names(before, "Deployment"):
        path = "spec.template.metadata.annotations.checksum/config"
        assert one(before, "Deployment", name).at(path) != one(after, "Deployment", name).at(path)


@pytest.mark.parametrize("seconds", [0, 12.5, 30, 300])
def test_a_pod_is_killed_only_after_its_drain(seconds: float) -> None:
    rendered = pods(render(with_least(settings={"drain_seconds": seconds})))
    for name, pod in rendered.items():
        if "worker" in name:
            assert pod.grace >= math.ceil(seconds) + 20  # the worker gives up 15 s after the setting says
    assert rendered["batchwright-api"].grace >= math.ceil(seconds) + 5 + 5


def test_the_default_drain_is_that_of_the_settings() -> None:
    default = Settings.model_fields["drain_seconds"].default
    assert pods(render())["batchwright-worker-io"].grace == default + 30


def test_every_pod_is_under_a_policy() -> None:
    rendered = render(with_least(workers=POOLS))
    policies = [each.at("spec.podSelector.matchLabels") for each in rendered if each.kind == "NetworkPolicy"]
    for each in rendered:
        labels = each.at("spec.template.metadata.labels")
        if isinstance(labels, dict):
            assert any(
                isinstance(wanted, dict) and wanted.items() <= labels.items() for wanted in policies
            ), each.metadata.name


def test_labels_in_the_values_do_not_replace_selector_labels() -> None:
    rendered = render(with_least(podLabels={"app.kubernetes.io/component": "api", "team": "x"}))
    components = {
        each.metadata.name: _component(each) for each in rendered if each.kind in ("Deployment", "Job")
    }
    assert {name for name, component in components.items() if component == "api"} == {"batchwright-api"}


def _component(resource: Resource) -> JsonValue:
    labels = resource.at("spec.template.metadata.labels")
    assert isinstance(labels, dict)
    assert labels["team"] == "x"
    return labels["app.kubernetes.io/component"]


def test_pods_have_the_priority_class_of_the_values() -> None:
    pools: JsonValue = [
        {"name": "io", "roles": ["io", "control"]},
        {"name": "gpu", "roles": ["inference"], "priorityClassName": "low"},
    ]
    values = with_least(
        api={"priorityClassName": "high"}, workerDefaults={"priorityClassName": "middle"}, workers=pools
    )
    rendered = render(values)
    for resource in rendered:
        check(resource)
    found = {
        each.metadata.name: each.at("spec.template.spec.priorityClassName")
        for each in rendered
        if each.kind in ("Deployment", "Job")
    }
    assert found == {
        "batchwright-api": "high",
        "batchwright-worker-io": "middle",
        "batchwright-worker-gpu": "low",
        "batchwright-setup": None,
    }


def test_io_pods_request_ephemeral_storage_unless_the_values_set_it() -> None:
    resources: JsonValue = {"requests": {"ephemeral-storage": "1Gi"}, "limits": {"memory": "1Gi"}}
    pools: JsonValue = [
        {"name": "io", "roles": ["io"], "spoolSize": "8Gi"},
        {"name": "rest", "roles": ["control", "inference"], "spoolSize": "2Gi"},
        {"name": "limited", "roles": ["io"], "resources": resources},
    ]
    rendered = pods(render(with_least(workers=pools)))
    requested = {
        name.removeprefix("batchwright-"): pod.containers[0].resources["requests"]["ephemeral-storage"]
        for name, pod in rendered.items()
    }
    assert requested == {
        "api": "2Gi",
        "setup": "64Mi",
        "worker-io": "8Gi",
        "worker-rest": "64Mi",
        "worker-limited": "1Gi",
    }
    limits = {name: pod.containers[0].resources["limits"] for name, pod in rendered.items()}
    assert limits["batchwright-worker-limited"] == {"memory": "1Gi"}


def test_a_backlog_is_read_from_the_queues_that_the_pool_polls() -> None:
    resources = render(with_least(workers=scaled("backlog")))
    core = one(resources, "ScaledObject", "batchwright-worker-core").at("spec.triggers")
    small = one(resources, "ScaledObject", "batchwright-worker-small").at("spec.triggers")
    assert isinstance(core, list)
    assert isinstance(small, list)
    read = [at(trigger, "metadata") for trigger in (*core, *small)]
    assert [(at(each, "taskQueue"), at(each, "queueTypes")) for each in read] == [
        ("control", "workflow,activity"),
        ("io", "activity"),
        ("outputs", "activity"),
        ("webhooks", "activity"),
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


def demand_triggers(workers: list[JsonValue], **prometheus: JsonValue) -> dict[str, list[JsonValue]]:
    """Return the autoscaling triggers that query Prometheus, by worker pool."""
    keda: JsonValue = {"prometheus": {"address": "http://prometheus:9090", **prometheus}}
    found: dict[str, list[JsonValue]] = {}
    for scaler in render(with_least(workers=workers, keda=keda)):
        if scaler.kind == "ScaledObject":
            triggers = scaler.at("spec.triggers")
            assert isinstance(triggers, list)
            pool = scaler.metadata.name.removeprefix("batchwright-worker-")
            found[pool] = [each for each in triggers if at(each, "type") == "prometheus"]
    return found


def test_pools_that_send_requests_scale_by_demand_if_prometheus_has_an_address() -> None:
    [trigger] = (found := demand_triggers(scaled("backlog", targetInFlight=51)))["small"]
    assert at(trigger, "metadata.serverAddress") == "http://prometheus:9090"
    assert at(trigger, "metadata.threshold") == "51"
    assert (at(trigger, "metadata.authModes"), at(trigger, "authenticationRef")) == (None, None)
    assert found["core"] == []


def test_without_an_address_of_prometheus_pools_scale_by_backlog_only() -> None:
    assert demand_triggers(scaled("backlog"), address="")["small"] == []


def test_the_demand_is_that_of_the_pools_models_in_the_namespace_of_the_release() -> None:
    [trigger] = demand_triggers(scaled("backlog"))["small"]
    query = str(at(trigger, "metadata.query"))
    assert query.count('{namespace="production",model=~"llama_8b"}') == 3
    assert query.count("[30m]") == 2


def test_the_demand_of_a_pool_without_models_is_that_of_all_models() -> None:
    pool: JsonValue = {
        "name": "all",
        "roles": ["control", "io", "inference"],
        "autoscaling": {"type": "backlog", "queues": ["dispatch"]},
    }
    [trigger] = demand_triggers([pool], matchers='cluster="a"', window="2h")["all"]
    query = str(at(trigger, "metadata.query"))
    assert query.count('{cluster="a"}') == 3
    assert query.count("[2h]") == 2


def test_a_pod_is_planned_with_four_fifths_of_its_requests_in_flight() -> None:
    [trigger] = demand_triggers(scaled("backlog"))["small"]
    assert at(trigger, "metadata.threshold") == str(Settings.model_fields["model_in_flight"].default * 4 // 5)


def test_with_an_autoscaler_the_chart_sets_no_replicas() -> None:
    for kind in ("cpu", "backlog"):
        resources = render(with_least(workers=scaled(kind)))
        assert one(resources, "Deployment", "batchwright-worker-core").at("spec.replicas") is None


def test_a_versioned_worker_gets_its_version_from_the_controller() -> None:
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


def test_network_policies_block_workers_and_allow_chosen_clients_to_the_api() -> None:
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


def test_jobs_have_names_that_the_alert_for_missing_processes_selects_whatever_the_release_is_called() -> (
    None
):
    resources = render(with_least(fullnameOverride="bw", monitoring={"monitors": True}))
    api = one(resources, "ServiceMonitor", "bw-api").at("spec.endpoints.0.relabelings")
    worker = one(resources, "PodMonitor", "bw-worker").at("spec.podMetricsEndpoints.0.relabelings")
    assert api == [{"targetLabel": "job", "replacement": "batchwright-api"}]
    assert worker == [{"targetLabel": "job", "replacement": "batchwright-worker"}]
    assert 'up{job=~".*batchwright.*"}' in (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()


def test_every_secret_is_only_referred_to() -> None:
    resources = render(
        with_least(
            backends={"existingSecret": "k"},
            callbacks={"existingSecret": "c"},
            settings={"callback_url": "https://batches.example.com"},
            s3={"existingSecret": "s"},
        )
    )
    assert names(resources, "Secret") == set()
    for pod in pods(resources).values():
        for container in pod.containers:
            hidden = {"BATCHWRIGHT_DATABASE_URL", "BATCHWRIGHT_BACKEND_API_KEY", "AWS_SECRET_ACCESS_KEY"}
            hidden.add("BATCHWRIGHT_CALLBACK_SECRET")
            assert {container.variables.get(name) for name in hidden} == {None}


def test_the_notes_have_the_address_of_the_api() -> None:
    text = notes(with_least(api={"service": {"port": 8080}}))
    assert "http://batchwright-api.production.svc:8080/v1" in text
