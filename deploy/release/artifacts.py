"""Builds the files of a release into one folder. The same sources always give the same packages."""

import hashlib
import subprocess
from pathlib import Path

from deploy.release.checks import project_version
from deploy.release.environment import install_locked, run, tool, uv

CHECKSUMS = "SHA256SUMS"


def build_release(root: Path, folder: Path) -> list[Path]:
    """Build all files of a release, and return their paths.

    The wheel is built from the source distribution. All files in these two archives have the time of the last
    commit, so that a repeated build gives the same archives.

    Raises:
        SystemExit: a program has failed, and has printed why.
    """
    import helm_python  # only on x86_64 Linux

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("batchwright-*"):
        old.unlink()
    command: list[str | Path] = [uv(root), "build", "--quiet", "--out-dir", folder.resolve()]
    _check(run(command, root, SOURCE_DATE_EPOCH=_commit_time(root)))
    helm_python.Chart.load(root / "deploy" / "helm" / "batchwright").save(folder)
    write_sbom(root, folder)
    made = sorted(folder.glob("batchwright-*"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (folder / CHECKSUMS).write_text("".join(lines))
    return [*made, folder / CHECKSUMS]


def write_sbom(root: Path, folder: Path) -> Path:
    """Write a CycloneDX document with every package that the image installs, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"batchwright-{project_version(root)}.cdx.json"
    command: list[str | Path] = [tool(root, "cyclonedx-py"), "environment", install_locked(root)]
    command += ["--pyproject", "pyproject.toml", "--mc-type", "application"]
    command += ["--output-reproducible", "--no-validate", "--output-format", "JSON"]
    _check(run([*command, "--output-file", path.resolve()], root))
    return path


def _commit_time(root: Path) -> str:
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def _check(code: int) -> None:
    if code:
        raise SystemExit(code)
