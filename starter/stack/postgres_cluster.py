"""The data directory of the embedded PostgreSQL: made once, whole or not at all."""

import os
import shutil
import subprocess
from pathlib import Path

from starter.stack.errors import StackError
from starter.stack.postgres_home import Runner, prepare_password, reachable


def password_file(root: Path) -> Path:
    return root / "password"


def make_cluster(root: Path, binaries: Path, runner: Runner) -> None:
    """`root`/data, made by `binaries` where it is missing.

    Raises:
        StackError: it cannot be made, or another major version made it.
    """
    data = root / "data"
    if (data / "PG_VERSION").exists():
        _check_version(data, binaries)
        return
    unfinished = root / "data.init"
    shutil.rmtree(unfinished, ignore_errors=True)  # of a start that was killed
    prepare_password(password_file(root), runner)
    with reachable(root, runner) as (named, descriptors):
        done = subprocess.run(
            _initdb(binaries, f"{named}/{unfinished.name}", f"{named}/{password_file(root).name}"),
            capture_output=True,
            text=True,
            env=clean_environment(),
            cwd="/",
            pass_fds=descriptors,
            user=runner.uid,
            group=runner.gid,
            extra_groups=runner.groups,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise StackError(f"PostgreSQL cannot make its data in {data}: {last[0]}.", done.stderr.strip())
    unfinished.rename(data)


def _initdb(binaries: Path, directory: str, password: str) -> list[str]:
    cluster = ["-U", "postgres", "-E", "UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
    access = ["--auth=scram-sha-256", f"--pwfile={password}"]
    return [str(binaries / "initdb"), "-D", directory, *cluster, *access]


def _check_version(data: Path, binaries: Path) -> None:
    asked = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, cwd="/")
    ours = asked.stdout.split()[2].split(".")[0]
    theirs = (data / "PG_VERSION").read_text().strip()
    if ours != theirs:
        raise StackError(
            f"{data} was made by PostgreSQL {theirs}, the binaries are {ours}: "
            "dump with the old, restore with the new."
        )


def clean_environment() -> dict[str, str]:
    """Ours without PG*, which would change what the server's own programs do."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}
