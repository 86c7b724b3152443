"""The guide's commands for a cluster fit the resources of the chart. tests/cluster runs them."""

import shlex

import pytest

from tests.operations.guide import blocks
from tests.unit.deploy.chart import Resource, at, render
from tests.unit.deploy.files import ROOT

pytestmark = pytest.mark.integration
RELEASE, NAMESPACE = "batchwright", "batches"
COMMANDS = [command for block in blocks() if block.needs_a_cluster for command in block.commands]
# What Helm and kubectl know; the rest of a command is names of ours.
_HELM = {"upgrade", "rollback", "install"}
_KUBECTL = {"exec", "get", "logs", "rollout", "scale"}
_OF_PODS = {"get", "logs"}
_HAVE_VALUES = {"--namespace", "--selector", "--values"}


@pytest.fixture(scope="module")
def deployments() -> dict[str, Resource]:
    return {each.metadata.name: each for each in render(release=RELEASE) if each.kind == "Deployment"}


def words_of(command: str, program: str) -> tuple[list[str], dict[str, str]]:
    """Parse a command up to ` -- `. Return its words, and its options with their values."""
    ours = shlex.split(command.partition(" -- ")[0])
    assert ours[0] == program
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(ours[1:])
    for word in rest:
        if word in _HAVE_VALUES:
            options[word] = next(rest)
        elif not word.startswith("--"):
            words.append(word)
    return words, options


def selected(resources: dict[str, Resource], selector: str, *, pods: bool) -> list[str]:
    wanted = dict(pair.split("=") for pair in selector.split(","))
    path = "spec.template.metadata.labels" if pods else "metadata.labels"
    labels = {name: at(resource.whole, path) for name, resource in resources.items()}
    return [name for name, has in labels.items() if isinstance(has, dict) and wanted.items() <= has.items()]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("kubectl ")])
def test_the_chart_creates_the_resources_that_kubectl_commands_name(
    command: str, deployments: dict[str, Resource]
) -> None:
    words, options = words_of(command, "kubectl")
    assert words[0] in _KUBECTL
    assert options["--namespace"] == NAMESPACE
    named = [word.partition("/")[2] for word in words if word.startswith("deployment/")]
    assert set(named) <= deployments.keys()
    if selector := options.get("--selector"):
        named += selected(deployments, selector, pods=words[0] in _OF_PODS)
    assert named


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("helm ")])
def test_helm_commands_install_the_chart(command: str) -> None:
    words, options = words_of(command, "helm")
    assert words[0] in _HELM
    assert words[1] == RELEASE
    assert options["--namespace"] == NAMESPACE
    assert all((ROOT / path / "Chart.yaml").exists() for path in words[2:])


def test_every_command_for_a_cluster_is_compared_with_the_chart() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"kubectl", "helm"}
