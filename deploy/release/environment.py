"""The environment that the image has: the locked packages, without extras and groups."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def run(command: list[str | Path], root: Path, **variables: str) -> int:
    """Run a command in the repository, with `variables` in its environment, and return its exit code."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | variables
    return subprocess.run(command, cwd=root, env=environment).returncode


def uv(root: Path) -> Path:
    """Return the path of the program uv: the one in the PATH, or the one that `make install` has
    installed.
    """
    return Path(shutil.which("uv") or root / ".venv" / ".tools" / "bin" / "uv")


def tool(root: Path, name: str) -> Path:
    """Return the path of the release tool `name`, which `make` installs from the dependency group
    `release`.
    """
    return root / ".venv" / ".tools" / "release" / "bin" / name


def install_locked(root: Path) -> Path:
    """Install the locked dependencies of the container image, but not the project itself.

    Return the directory of the environment.

    Raises:
        SystemExit: uv has failed, and has printed why.
    """
    folder = root / "build" / "locked"
    command: list[str | Path] = [uv(root), "sync", "--quiet", "--locked", "--no-default-groups"]
    command += ["--no-install-project", "--python", sys.executable]
    if code := run(command, root, UV_PROJECT_ENVIRONMENT=str(folder)):
        raise SystemExit(code)
    return folder
