"""A node with our image, and the release in it, as the guide has it installed."""

import platform
from collections.abc import Generator

import pytest

from tests.cluster.house import House, house, temporary_folder
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
def installed(node: Node) -> Generator[House]:
    """By the how-to's own commands, with an installation's addresses and keys in place of its examples."""
    with temporary_folder() as folder, house(node, folder) as made:
        secrets, install = [block.text for block in blocks_of(PAGE) if block.heading == "Install"][:2]
        example = "postgresql://batchwright:PASSWORD@postgres.example.com:5432/batchwright"
        assert example in secrets
        keys = {example: made.database, "=KEY": f"={made.s3.access_key}", "=SECRET": f"={made.s3.secret_key}"}
        for of_the_page, ours in keys.items():
            secrets = secrets.replace(of_the_page, ours)
        made.shell(secrets)
        made.shell(install.rstrip() + " --wait\n")
        yield made


@pytest.fixture(scope="session")
def key(installed: House) -> str:
    """A tenant's, made as the how-to says."""
    [commands] = [block.text for block in blocks_of(PAGE) if "keys create acme" in block.text]
    return installed.shell(commands).split()[-1]
