"""Fixtures: a node with our image, and Batchwright installed there as the guide describes."""

import platform
from collections.abc import Generator

import pytest

from tests.cluster.installation import ClusterInstallation, cluster_installation, temporary_folder
from tests.cluster.node import PROGRAMS, Node
from tests.operations.guide import blocks_of

# As for the chart's other tests: Helm's wheel exists for nothing else.
_THERE = (platform.system(), platform.machine()) == ("Linux", "x86_64")
collect_ignore_glob = [] if _THERE else ["test_*"]
PAGE = "how-to/run-on-kubernetes.md"


@pytest.fixture(scope="session")
def node() -> Generator[Node]:
    with temporary_folder() as folder:
        node = Node(folder)
        with node.started():
            for name in ("pause", "batchwright"):
                node.load(PROGRAMS / f"{name}.tar")
            yield node


@pytest.fixture(scope="session")
def installed(node: Node) -> Generator[ClusterInstallation]:
    """Batchwright, installed with the commands of the how-to page. Only addresses and keys are replaced."""
    with temporary_folder() as folder, cluster_installation(node, folder) as installation:
        secrets, install = [block.text for block in blocks_of(PAGE) if block.heading == "Install"][:2]
        owner = "postgresql://batches_owner:OWNER_PASSWORD@postgres.example.com:5432/batchwright"
        example = "postgresql://batchwright:PASSWORD@postgres.example.com:5432/batchwright"
        assert example in secrets
        assert owner in secrets
        # One role here: tests/integration/database/test_roles.py has both.
        databases = {owner: installation.database, example: installation.database}
        keys = {
            **databases,
            "=KEY": f"={installation.s3.access_key}",
            "=SECRET": f"={installation.s3.secret_key}",
        }
        for of_the_page, ours in keys.items():
            secrets = secrets.replace(of_the_page, ours)
        installation.shell(secrets)
        installation.shell(install.rstrip() + " --wait\n")
        yield installation


@pytest.fixture(scope="session")
def key(installed: ClusterInstallation) -> str:
    """An API key of a tenant, created with the commands of the how-to."""
    [commands] = [block.text for block in blocks_of(PAGE) if "keys create acme" in block.text]
    return installed.shell(commands).split()[-1]
