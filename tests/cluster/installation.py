"""An installation in the cluster, and the servers outside the cluster that it needs."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from openai import AsyncOpenAI
from pydantic import JsonValue

from batchwright.starter.embedded_stack.ports import free_port
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from batchwright.starter.embedded_stack.temporal_server import find_binary
from tests.cluster.charts import older_chart
from tests.cluster.node import PROGRAMS, Node
from tests.cluster.programs import output_of, patiently, running
from tests.fakes.s3 import S3Server, moto_server
from tests.operations.parts import process
from tests.unit.deploy.files import ROOT

NAMESPACE = "batches"
_HELM = '#!/bin/sh\nPYTHONPATH="{root}" exec "{python}" -m tests.cluster.helm "$@"\n'


@dataclass(frozen=True)
class ClusterInstallation:
    """An installation in the cluster.

    Attributes:
        folder: directory in which commands of the guide run. It contains the chart and `values.yaml`.
        simulator: URL of the simulated backend.
        database: URL of the database, as pods can reach it.
        values: values of the chart.
    """

    node: Node
    folder: Path
    simulator: str
    database: str  # as pods reach it
    s3: S3Server
    values: dict[str, JsonValue]

    def shell(self, commands: str) -> str:
        """Run the commands in a shell that finds `helm` and `kubectl`, and return the output.

        Raises:
            AssertionError: a command failed.
        """
        programs = os.pathsep.join([str(self.folder / "bin"), str(PROGRAMS), os.environ["PATH"]])
        environment = {"PATH": programs, "KUBECONFIG": str(self.node.kubeconfig)}
        return output_of(["bash", "-euxo", "pipefail", "-c", commands], environment, cwd=self.folder)

    def kubectl(self, *arguments: str) -> str:
        return self.node.kubectl("--namespace", NAMESPACE, *arguments)

    def set_values(self, **settings: JsonValue) -> None:
        """Write `values.yaml` with these settings in addition to the usual ones."""
        values = {**self.values, "settings": {**_map(self.values["settings"]), **settings}}
        (self.folder / "values.yaml").write_text(yaml.safe_dump(values))

    def pods(self, component: str) -> list[str]:
        """Return the names of the component's pods, except those that are being deleted."""
        found = json.loads(self.kubectl("get", "pods", "--output=json", "--selector", _of(component)))[
            "items"
        ]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def client(self, key: str) -> AsyncOpenAI:
        address = self.kubectl("get", "service", "batchwright-api", "--output=jsonpath={.spec.clusterIP}")
        return AsyncOpenAI(base_url=f"http://{address}/v1", api_key=key, max_retries=10)


@contextmanager
def cluster_installation(node: Node, folder: Path) -> Generator[ClusterInstallation]:
    """Start PostgreSQL, Temporal, S3 and a simulator outside the cluster, and yield an installation for them.

    Nothing is installed in the cluster yet.
    """
    with ExitStack() as parts:
        postgres = EmbeddedPostgres(parts.enter_context(temporary_folder())).start()
        parts.callback(postgres.stop)
        temporal, simulator = free_port(), free_port()
        server = [str(find_binary()), "server", "start-dev", "--headless", "--port", str(temporal)]
        parts.enter_context(running(server, folder / "temporal.log"))
        health = [str(find_binary()), "operator", "cluster", "health", "--address", f"127.0.0.1:{temporal}"]
        patiently(lambda: output_of(health))
        well = f"http://127.0.0.1:{simulator}"
        parts.enter_context(
            process("simulator", "--port", str(simulator), well=f"{well}/healthz", environment={})
        )
        s3 = parts.enter_context(moto_server())
        asyncio.run(s3.make_bucket())

        def lend(port: int) -> str:
            return parts.enter_context(node.lent(port))

        database = postgres.dsn.replace(f"127.0.0.1:{postgres.port}", lend(postgres.port))
        endpoint = f"http://{lend(int(s3.url.rpartition(':')[2]))}"
        values = _values(lend(temporal), f"s3://{s3.bucket}/tests", endpoint, f"http://{lend(simulator)}")
        older_chart(folder)
        _write_helm(folder / "bin")
        installation = ClusterInstallation(node, folder, well, database, s3, values)
        installation.set_values()
        yield installation


def _values(temporal: str, storage: str, endpoint: str, backend: str) -> dict[str, JsonValue]:
    """Return values of the chart that fit one node with two cores."""
    small: JsonValue = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    return {
        "image": {"repository": "localhost/batchwright", "tag": "tests", "pullPolicy": "Never"},
        "temporal": {"address": temporal},
        "database": {
            "existingSecret": "batchwright-database",
            "migrations": {"existingSecret": "batchwright-database-owner"},
        },
        "s3": {"existingSecret": "batchwright-s3"},
        "settings": {
            "storage": storage,
            "s3_endpoint_url": endpoint,
            "s3_path_style": True,
            "backends": [backend],
            "drain_seconds": 5,
            "slice_seconds": 2,
            "heartbeat_timeout_seconds": 10,
        },
        "api": {"resources": small},
        "workerDefaults": {"resources": small, "replicas": 1},
        "setup": {"resources": small},
    }


def _write_helm(folder: Path) -> None:
    folder.mkdir()
    program = folder / "helm"
    program.write_text(_HELM.format(root=ROOT, python=sys.executable))
    program.chmod(0o755)


def _of(component: str) -> str:
    return f"app.kubernetes.io/component={component}"


def _map(value: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(value, dict)
    return value


@contextmanager
def temporary_folder() -> Generator[Path]:
    # Not below pytest's own folder: the server may run as another user, who could not enter it.
    folder = tempfile.mkdtemp(prefix="batchwright-cluster-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
