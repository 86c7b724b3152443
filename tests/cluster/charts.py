"""A copy of the Helm chart for the tests' Kubernetes, which is older than the chart requires."""

import shutil
from pathlib import Path

from tests.unit.deploy.files import ROOT

# What the chart has and that server knows by another name, or not at all: nothing else is changed.
_OLDER = {
    'kubeVersion: ">=1.30.0-0"': 'kubeVersion: ">=1.20.0-0"',
    "apiVersion: policy/v1\n": "apiVersion: policy/v1beta1\n",
    "  unhealthyPodEvictionPolicy: AlwaysAllow\n": "",
    "apiVersion: autoscaling/v2\n": "apiVersion: autoscaling/v2beta2\n",
    "sleep: {seconds: {{ .Values.api.leaveSeconds }}}": (
        'exec: {command: [sleep, "{{ .Values.api.leaveSeconds }}"]}'
    ),
}


def older_chart(folder: Path) -> Path:
    """Copy the chart to `deploy/helm/batchwright` below `folder`, adapted to the older Kubernetes.

    Return the path of the copy. The commands of the guide expect the chart there.
    """
    chart = Path("deploy", "helm", "batchwright")
    copy = folder / chart
    shutil.copytree(ROOT / chart, copy)
    unused = set(_OLDER)
    for path in [copy / "Chart.yaml", *copy.glob("templates/*.yaml")]:
        text = path.read_text()
        unused -= {part for part in _OLDER if part in text}
        for part, older in _OLDER.items():
            text = text.replace(part, older)
        path.write_text(text)
    assert not unused, f"the chart no longer has {unused}"
    return copy
