"""A real API server accepts the chart's resources for every combination of switches."""

import helm_python
import pytest
import yaml

from tests.cluster.charts import older_chart
from tests.cluster.installation import temporary_folder
from tests.cluster.node import Node
from tests.unit.deploy.chart import with_least
from tests.unit.deploy.test_chart import CASES, Case

pytestmark = pytest.mark.cluster
# Kinds of Kubernetes itself; the others' controllers are not there.
_NATIVE = ("v1", "apps/v1", "batch/v1", "policy/v1beta1", "autoscaling/v2beta2", "networking.k8s.io/v1")
NAMESPACE = "default"


@pytest.fixture(scope="module")
def older() -> helm_python.Chart:
    with temporary_folder() as folder:
        return helm_python.Chart.load(older_chart(folder))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cluster_accepts_every_resource_unchanged(
    case: Case, older: helm_python.Chart, node: Node
) -> None:
    files = older.render(with_least(**case.values), name="batchwright", namespace=NAMESPACE)
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    resources = [each for text in texts for each in yaml.safe_load_all(text) if each]
    native = [each for each in resources if each["apiVersion"] in _NATIVE]
    assert native
    output = node.kubectl(
        *("--namespace", NAMESPACE, "apply", "--dry-run=server", "--validate=true", "--filename=-"),
        given=yaml.safe_dump_all(native),
    )
    assert len(output.splitlines()) == len(native)
