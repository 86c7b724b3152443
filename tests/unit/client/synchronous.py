"""`python -m tests.unit.client.synchronous`: writes the synchronous client from the asynchronous one.

For example, `batches.py` is written from `async_batches.py`.
"""

import re
import subprocess
import sys
from pathlib import Path

import batchwright.client

_PREFIX = "async_"
SOURCES = sorted(Path(batchwright.client.__file__).parent.glob(f"{_PREFIX}*.py"))
# In this order. Each pattern matches whole words.
_REPLACEMENTS = {
    rf"batchwright\.client\.{_PREFIX}": "batchwright.client.",
    r"async (def|with|for)": r"\1",
    r"await (?=\S)": "",
    r"asyncio\.sleep": "time.sleep",
    r"asyncio\.to_thread\(\s*([\w.]+),": r"\1(",
    r"import asyncio": "import time",
    r"asynccontextmanager": "contextmanager",
    r"aclosing": "closing",
    r"anext": "next",
    r"aiter_bytes": "iter_bytes",
    r"Awaitable\[(\w+)\]": r"\1",
    r"Async(?=[A-Z])(\w+)": r"\1",
    r"Asynchronous": "Synchronous",
}


def result_of(source: Path) -> Path:
    """Return the path of the synchronous module that is written from this asynchronous one."""
    return source.with_name(source.name.removeprefix(_PREFIX))


def synchronous(source: Path) -> str:
    """Return the synchronous module for an asynchronous one, formatted."""
    text = f"# Written by `python -m tests.unit.client.synchronous` from {source.name}: change that file.\n"
    text += source.read_text("utf-8")
    for pattern, replacement in _REPLACEMENTS.items():
        text = re.sub(rf"\b{pattern}", replacement, text)
    for arguments in (["check", "--fix", "--unsafe-fixes", "--select=I,F401,UP028"], ["format"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *arguments,
            "--quiet",
            f"--stdin-filename={result_of(source)}",
            "-",
        ]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for path in SOURCES:
        result_of(path).write_text(synchronous(path), "utf-8")
