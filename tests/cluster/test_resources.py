"""What the chart makes by every switch, before a real API server: validation, defaults and admission."""

import helm_python
import pytest
import yaml

from tests.cluster.charts import older_chart
from tests.cluster.house import temporary_folder
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
def test_the_server_takes_every_resource_as_it_is(case: Case, older: helm_python.Chart, node: Node) -> None:
    files = older.render(with_least(**case.values), name="batchwright", namespace=NAMESPACE)
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    made = [each for text in texts for each in yaml.safe_load_all(text) if each]
    native = [each for each in made if each["apiVersion"] in _NATIVE]
    assert native
    said = node.kubectl(
        *("--namespace", NAMESPACE, "apply", "--dry-run=server", "--validate=true", "--filename=-"),
        given=yaml.safe_dump_all(native),
    )
    assert len(said.splitlines()) == len(native)
