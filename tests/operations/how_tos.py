"""Runs all shell and Python blocks of each how-to page, one after another, in one shell.

The test's own values replace the placeholders on the page, such as addresses, keys and directories. `NOT_RUN`
lists blocks that cannot run in a test. It identifies a block by words in it, and gives the reason.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.operations.guide import DOCS

_FENCED = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_CLIENT = """from openai import OpenAI
from openai.types import Batch
client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
"""

NOT_RUN = {
    "docker": "Docker: tests/e2e/operation/test_compose.py runs the services without it",
    "kubectl": "a Kubernetes: tests/cluster",
    "helm install": "a Kubernetes: tests/cluster",
    "tcld": "an account at Temporal Cloud",
    "us-east-1.aws.api.temporal.io": "an account at Temporal Cloud",
    "aws s3api": "an account at AWS",
    "my-bucket/batches": "settings of a process: tests/integration/storage/test_s3.py",
    "BATCHWRIGHT_S3_ENDPOINT_URL": "settings of a process: tests/integration/storage/test_s3.py",
    "batchwright worker": "serves until it is stopped: tests/activities/execution/sending/test_hooks.py",
    "batchwright codec-server": "serves until it is stopped: tests/integration/starter/test_codec_server.py",
    "temporal workflow show": "needs that server: tests/integration/starter/test_codec_server.py",
    "make dev": "serves until it is stopped: tests/integration/starter/test_dev.py",
    "batchwright dev": "serves until it is stopped: tests/integration/starter/test_dev.py",
    "s3://my-data/blue/": "settings of a process: tests/activities/ingestion/test_input_copy.py",
    "s3://my-data/results/": "settings of a process: tests/activities/output_copies/test_copy_output.py",
    "vllm serve": "needs vLLM and a GPU",
    "llama-server": "serves until it is stopped: tests/e2e/operation/test_llamacpp.py",
    "curl": "asks the stack of a block that is not run",
    "class Executor": "code of a backend, in parts",
    "BATCHWRIGHT_MODELS='{": "settings of a process: tests/e2e/tenants/test_rates.py",
    "BATCHWRIGHT_REQUESTS_PER_SECOND": "settings of a process: tests/integration/worker/test_rates.py",
    "BATCHWRIGHT_REGISTRY": "settings of a process: tests/unit/settings/test_registry_file.py",
    "BATCHWRIGHT_PASS_HEADERS": "settings of a process: tests/e2e/features/test_passed_headers.py",
    "BATCHWRIGHT_OIDC_ISSUER": "settings of a process, and an issuer: tests/integration/api/test_oidc.py",
    "get_token": "a login",
    "stream=True": "settings of a process: tests/e2e/features/test_calls.py",
    "BATCHWRIGHT_CALLBACK_URL": "settings of a process: tests/e2e/features/test_backend_kinds.py",
}


@dataclass(frozen=True)
class Followed:
    """A how-to page to run.

    Attributes:
        here: replacement for each placeholder of the page.
        python: Python code that runs before each Python block.
        is_held: True if the backend answers no requests, so that the page's commands find batches in
            progress.
    """

    page: str
    here: Mapping[str, str] = field(default_factory=dict[str, str])
    python: str = ""
    is_held: bool = False

    def script(self, here: Mapping[str, str]) -> str:
        """Return a bash script with all blocks of the page.

        `here` contains the replacements that apply to all pages.
        """
        text = "\n".join(_runnable(kind, text, self.python) for kind, text in blocks(self.page))
        for there, ours in {**self.here, **here}.items():
            text = text.replace(there, ours)
        return text


def pages() -> list[str]:
    return sorted(path.name for path in (DOCS / "how-to").glob("*.md"))


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each block that can run: shell, Python, or lines of a `.jsonl` file."""
    for found in _FENCED.finditer((DOCS / "how-to" / page).read_text()):
        kind, text = found["kind"], found["text"]
        is_requests = kind == "json" and text.startswith('{"custom_id"')
        if (kind in ("sh", "python") or is_requests) and not any(words in text for words in NOT_RUN):
            yield kind, text


def python_blocks(page: Path) -> list[str]:
    return [found["text"] for found in _FENCED.finditer(page.read_text()) if found["kind"] == "python"]


def left_out(page: str) -> set[str]:
    """Return the keys of `NOT_RUN` that occur in blocks of the page. These blocks are not run."""
    text = "".join(found["text"] for found in _FENCED.finditer((DOCS / "how-to" / page).read_text()))
    return {words for words in NOT_RUN if words in text}


def _runnable(kind: str, text: str, python: str) -> str:
    if kind == "json":
        return f"cat > requests.jsonl <<'REQUESTS'\n{text}REQUESTS\n"
    if kind == "python":
        return f"python - <<'PYTHON'\n{_CLIENT}{python}{text}PYTHON\n"
    return text
