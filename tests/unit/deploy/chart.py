"""Renders the Helm chart, and parses the resources that it produces."""

import json
from functools import cache
from pathlib import Path

import helm_python
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tests.unit.deploy.files import ROOT

CHART = ROOT / "deploy" / "helm" / "batchwright"
NAMESPACE = "production"
# The oldest that the chart names, and the newest whose schemas there are.
KUBERNETES = ("1.30.0", "1.37.0")
Values = dict[str, JsonValue]

LEAST: Values = {
    "temporal": {"address": "temporal-frontend.temporal:7233"},
    "database": {"existingSecret": "batchwright-database"},
    "settings": {"storage": "s3://batches/production", "backends": ["http://vllm.inference:8000"]},
}


class Refused(Exception):
    """Helm's refusal of the chart's values."""


class Meta(BaseModel):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Resource(BaseModel):
    model_config = ConfigDict(extra="allow")
    api_version: str = Field(alias="apiVersion")
    kind: str
    metadata: Meta
    whole: dict[str, JsonValue] = Field(exclude=True)

    def at(self, path: str) -> JsonValue:
        """Return the value at a path such as `spec.replicas`; None if there is no value."""
        return at(self.whole, path)


class EnvVar(BaseModel):
    name: str
    value: str | None = None


class Container(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    image: str
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    resources: dict[str, dict[str, str]]
    security: dict[str, JsonValue] = Field(alias="securityContext")

    @property
    def variables(self) -> dict[str, str | None]:
        return {variable.name: variable.value for variable in self.env}


class Pod(BaseModel):
    model_config = ConfigDict(extra="allow")
    containers: list[Container]
    init: list[Container] = Field([], alias="initContainers")
    grace: int = Field(30, alias="terminationGracePeriodSeconds")
    token: bool = Field(True, alias="automountServiceAccountToken")
    security: dict[str, JsonValue] = Field(alias="securityContext")
    volumes: list[dict[str, JsonValue]]


def with_least(**values: JsonValue) -> Values:
    """Return `values` together with the values that the chart requires in every case."""
    return _put_together(LEAST, values)


def render(values: Values | None = None, release: str = "batchwright") -> list[Resource]:
    """Render the chart, and return its resources without Helm's notes.

    Raises:
        Refused: Helm rejects the values. The message is Helm's own.
    """
    try:
        files = _rendered(json.dumps(with_least() if values is None else values), release)
    except helm_python.HelmError as error:
        raise Refused(str(error)) from None
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    found = [document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    return [Resource(**document, whole=document) for document in found]


def notes(values: Values) -> str:
    return _rendered(json.dumps(values), "batchwright")["batchwright/templates/NOTES.txt"]


def one(resources: list[Resource], kind: str, name: str) -> Resource:
    [found] = [each for each in resources if (each.kind, each.metadata.name) == (kind, name)]
    return found


def names(resources: list[Resource], kind: str) -> set[str]:
    return {each.metadata.name for each in resources if each.kind == kind}


def pods(resources: list[Resource]) -> dict[str, Pod]:
    """Return the pod template of each resource that creates pods, by name of the resource."""
    makers = {"Deployment", "Job", "WorkerDeployment"}
    return {
        each.metadata.name: Pod.model_validate(each.at("spec.template.spec"))
        for each in resources
        if each.kind in makers
    }


def at(value: JsonValue, path: str) -> JsonValue:
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)]
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value


def check(resource: Resource) -> None:
    """Raise an exception if Kubernetes or a resource's controller would reject or ignore the resource."""
    schema = _custom_schemas().get(f"{resource.api_version}/{resource.kind}")
    if schema is None:
        _check_native(json.dumps(resource.whole))
        return
    Draft202012Validator(schema).validate(resource.whole)  # pyright: ignore[reportUnknownMemberType]
    if resource.kind == "WorkerDeployment":
        pod: Values = {"apiVersion": "v1", "kind": "PodTemplate", "template": resource.at("spec.template")}
        _check_native(json.dumps(pod))
    if resource.kind == "WorkerResourceTemplate":
        check(_as_the_controller_makes_it(resource))


def _as_the_controller_makes_it(resource: Resource) -> Resource:
    """Return the resource that the controller creates from a WorkerResourceTemplate.

    The controller fills in its empty fields.
    """
    target: Values = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "made-1"}
    filled: Values = {"metadata": {"name": "made"}, "spec": {"scaleTargetRef": target}}
    combined = _put_together(resource.at("spec.template"), filled)
    return Resource.model_validate({**combined, "whole": combined})


# Most resources are the same in most cases.
@cache
def _check_native(resource: str) -> None:
    for version in KUBERNETES:
        kubernetes_validate.validate(json.loads(resource), version, strict=True)


@cache
def _rendered(values: str, release: str) -> dict[str, str]:
    return _chart().render(json.loads(values), name=release, namespace=NAMESPACE)


def _put_together(first: JsonValue, second: JsonValue) -> Values:
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    whole = dict(first)
    for key, value in second.items():
        old = whole.get(key)
        whole[key] = _put_together(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return whole


@cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


@cache
def _custom_schemas() -> dict[str, dict[str, JsonValue]]:
    return yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text())
