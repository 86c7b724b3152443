"""Reads the blocks of commands from the operator's pages, and runs them unchanged."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batchwright.starter.embedded_stack.postgres.installation import find_binaries
from batchwright.starter.embedded_stack.temporal_server import find_binary
from tests.e2e.stack import Addresses

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("operations.md", "runbooks.md")
_NEEDS_A_CLUSTER = "needs-a-cluster"
# Of these two, the exit code says how the batch stands: 1 ended another way than completed, 2 goes on.
_TOLD_BY_CODE = """batchwright() {
    command batchwright "$@" || case "$1:$?" in status:[12] | watch:1) ;; *) return 1 ;; esac
}
"""
_PARTS = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|^```sh(?P<mark>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A block of shell commands below a heading of a page.

    The word `needs-a-cluster` after ```` ```sh ```` marks blocks that need a Kubernetes cluster.
    """

    page: str
    heading: str
    text: str
    needs_a_cluster: bool

    @property
    def commands(self) -> list[str]:
        """The commands of the block, without comments and with continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [text for line in lines if (text := re.sub(r"(^|\s)#.*", "", line).strip())]


def blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def block(heading: str) -> Block:
    """Return the first block below a heading that needs no Kubernetes cluster."""
    return next(each for each in blocks() if each.heading == heading and not each.needs_a_cluster)


def run(block: Block, environment: dict[str, str], folder: Path) -> str:
    """Run the commands of the block in a shell, and return the output.

    Raises:
        AssertionError: a command failed.
    """
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _TOLD_BY_CODE + block.text],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment(addresses: Addresses, **more: str) -> dict[str, str]:
    """Return the environment of an operator's shell.

    It contains the settings of a stack, and a PATH with all programs of the guide.
    """
    programs = (Path(sys.executable).parent, find_binaries(), find_binary().parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        "BATCHWRIGHT_URL": addresses.api,
        "BATCHWRIGHT_DATABASE_URL": addresses.postgres,
        "BATCHWRIGHT_TEMPORAL_ADDRESS": addresses.temporal,
        "BATCHWRIGHT_TEMPORAL_NAMESPACE": addresses.namespace,
        "BATCHWRIGHT_STORAGE_DIR": str(addresses.data / "objects"),
        "BATCHWRIGHT_BACKENDS": f'["{addresses.simulator}"]',
        "TEMPORAL_ADDRESS": addresses.temporal,
        "TEMPORAL_NAMESPACE": addresses.namespace,
        **more,
    }


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks of one page. `page` is its path below docs/."""
    heading = ""
    for found in _PARTS.finditer((DOCS / page).read_text()):
        heading = found["heading"] or heading
        if found["text"] is not None:
            yield Block(page, heading, found["text"], found["mark"].strip() == _NEEDS_A_CLUSTER)
