"""The built image, run as `docker run` does: with its health check, without root, and with a
read-only disk.
"""

from collections.abc import Callable, Generator

import pytest

from batchwright.starter.embedded_stack.ports import free_port
from tests.cluster.installation import temporary_folder
from tests.cluster.node import PROGRAMS
from tests.cluster.programs import output_of, patiently

pytestmark = pytest.mark.cluster
IMAGE = "localhost/batchwright:tests"
Podman = Callable[..., str]
_CONFINED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@pytest.fixture(scope="module")
def podman() -> Generator[Podman]:
    with temporary_folder() as folder:
        where = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        how = ("--tmpdir", str(folder / "tmp"), "--cgroup-manager=cgroupfs", "--events-backend=none")

        def run(*arguments: str) -> str:
            return output_of(["podman", *where, *how, "--runtime=runc", *arguments])

        run("load", "--quiet", "--input", str(PROGRAMS / "batchwright.tar"))
        yield run
        run("rm", "--all", "--force", "--time=10")


def started(podman: Podman, *arguments: str, **environment: str) -> str:
    """Start a container, and return its name."""
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    return podman("run", "--detach", "--network=host", *_CONFINED, *variables, IMAGE, *arguments).strip()


def test_a_container_without_a_command_lists_the_commands(podman: Podman) -> None:
    shown = podman("run", "--rm", "--network=host", *_CONFINED, IMAGE)
    assert all(command in shown for command in ("worker", "api", "migrate", "simulator"))


def test_the_health_check_of_the_image_uses_the_configured_port_and_a_signal_ends_the_process(
    podman: Podman,
) -> None:
    port = str(free_port())
    container = started(podman, "simulator", "--port", port, BATCHWRIGHT_API_PORT=port)
    patiently(lambda: podman("healthcheck", "run", container))
    podman("stop", "--time=60", container)
    assert podman("inspect", "--format={{.State.ExitCode}}", container).strip() == "0"


def test_the_health_check_of_the_image_fails_if_nothing_answers_at_that_port(podman: Podman) -> None:
    container = started(podman, "simulator", "--port", str(free_port()))
    with pytest.raises(AssertionError, match="ended with 1"):
        podman("healthcheck", "run", container)
