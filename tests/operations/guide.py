"""The operator's pages as the tests read them: blocks of commands, run as they stand there."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starter.stack.postgres_home import find_binaries
from starter.stack.temporal import find_binary
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
    """Commands below a heading. Those that need a cluster are marked so behind ```` ```sh ````."""

    page: str
    heading: str
    text: str
    needs_a_cluster: bool

    @property
    def commands(self) -> list[str]:
        """One each, without comments, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [text for line in lines if (text := re.sub(r"(^|\s)#.*", "", line).strip())]


def blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def block(heading: str, place: int = 0) -> Block:
    """The one below a heading that can be run anywhere."""
    return [each for each in blocks() if each.heading == heading and not each.needs_a_cluster][place]


def run(block: Block, environment: dict[str, str], folder: Path) -> str:
    """What its commands print, in order. Fails where one of them fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _TOLD_BY_CODE + block.text],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment(addresses: Addresses, **more: str) -> dict[str, str]:
    """An operator's shell before a stack: its settings, and the programs that the guide names."""
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
    """Those of one page, its path below docs/."""
    heading = ""
    for found in _PARTS.finditer((DOCS / page).read_text()):
        heading = found["heading"] or heading
        if found["text"] is not None:
            yield Block(page, heading, found["text"], found["mark"].strip() == _NEEDS_A_CLUSTER)
