"""Runs Batchwright's services of docker-compose.yml as plain processes, with their commands and settings.

Containers find PostgreSQL, Temporal and S3 by names. Here, addresses of this machine replace these names.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from batchwright.starter.embedded_stack.ports import free_port
from tests.guard import guard_environment
from tests.unit.deploy.files import ROOT, Service, compose, image_environment

_UNSET = re.compile(r"\$\{\w+:-([^}]*)\}")  # a variable of the environment of compose, and its default
_HEALTHCHECK = "/opt/batchwright/healthcheck.py"


@dataclass(frozen=True)
class Container:
    """A service of docker-compose.yml that runs as a process on this machine."""

    service: str
    command: list[str]
    healthcheck: list[str]
    environment: dict[str, str]
    patience_seconds: int

    def is_well(self, *, by_the_image: bool = False) -> bool:
        """Run the health check, and return True if it succeeds.

        Args:
            by_the_image: True to run the image's check, which has no arguments, instead of the service's
                check.
        """
        check = self.healthcheck[:2] if by_the_image else self.healthcheck
        return subprocess.run(check, env=self.environment, timeout=60).returncode == 0


@dataclass
class Machine:
    """The addresses and directories of this machine.

    `hosts` maps names such as `temporal:7233` to local addresses.
    """

    hosts: dict[str, str]
    folder: Path
    simulator_port: int = field(default_factory=free_port)

    def containers(self, name: str, service: Service) -> Iterator[Container]:
        for replica in range(service.deploy.replicas):
            ports = {"8000": free_port(), "9090": free_port(), "9000": self.simulator_port}
            spool = self.folder / f"{name}-{replica}"
            spool.mkdir(exist_ok=True)
            yield self._container(name, service, ports, spool)

    def _container(self, name: str, service: Service, ports: dict[str, int], spool: Path) -> Container:
        image = image_environment()
        hosts = {**self.hosts, "simulator:9000": f"127.0.0.1:{self.simulator_port}", "0.0.0.0": "127.0.0.1"}
        hosts[image["BATCHWRIGHT_SPOOL_DIR"]] = str(spool)

        def here(text: str) -> str:
            text = _UNSET.sub(r"\1", text)
            port, slash, path = text.partition("/")
            if port in ports:
                return f"{ports[port]}{slash}{path}"
            for there, address in hosts.items():
                text = text.replace(there, address)
            return text

        variables = {**image, "PATH": os.environ["PATH"], **service.environment, **guard_environment()}
        check = service.healthcheck.test[1:] if service.healthcheck else []
        programs = {"python": sys.executable, _HEALTHCHECK: str(ROOT / "deploy" / "image" / "healthcheck.py")}
        return Container(
            service=name,
            command=[sys.executable, "-P", "-m", "batchwright.starter", *map(here, service.command)],
            healthcheck=[programs.get(word, here(word)) for word in check],
            environment={name: here(value) for name, value in variables.items()},
            patience_seconds=int(service.stop_grace_period.removesuffix("s")),
        )


class Running:
    """A context manager that starts all services in the order of `depends_on`, and kills them at the end.

    It waits for services that run only once, such as the migration, to end with the exit code 0.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._started: list[tuple[Container, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> "Running":
        try:
            for name, service in _in_order():
                self._bring_up(name, service)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    @property
    def api(self) -> str:
        [container] = self.of("api")
        return f"http://127.0.0.1:{container.environment['BATCHWRIGHT_API_PORT']}"

    def of(self, service: str) -> list[Container]:
        return [container for container, _ in self._started if container.service == service]

    def run(self, service: str, *command: str) -> str:
        """Run a command of `batchwright` in the environment of a service, as `docker compose exec` does.

        Return its output.
        """
        container = self.of(service)[0]
        program = [*container.command[:4], *command]
        ended = subprocess.run(
            program, env=container.environment, cwd=self._machine.folder, capture_output=True, timeout=240
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.decode().strip()

    def stop(self) -> dict[str, set[int]]:
        """Send SIGTERM to all services in reverse order, as `docker compose stop` does.

        Return their exit codes by service.
        """
        codes: dict[str, set[int]] = {}
        for container, process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
            codes.setdefault(container.service, set()).add(process.wait(container.patience_seconds))
        return codes

    def run_once(self) -> None:
        """Run the services that end by themselves, such as the migration, once more."""
        for name, service in _in_order():
            if service.restart == "no":
                self._bring_up(name, service)

    def _bring_up(self, name: str, service: Service) -> None:
        for container in self._machine.containers(name, service):
            if service.restart == "no":
                ended = subprocess.run(
                    container.command, env=container.environment, cwd=self._machine.folder, timeout=240
                )
                assert ended.returncode == 0, name
            else:
                self._start(container)

    def _start(self, container: Container) -> None:
        process = subprocess.Popen(
            container.command, env=container.environment, cwd=self._machine.folder, stdin=subprocess.DEVNULL
        )
        self._started.append((container, process))
        end = time.monotonic() + 240
        while not container.is_well():
            assert process.poll() is None, f"{container.service} ended with {process.returncode}"
            assert time.monotonic() < end, f"{container.service} is not well"
            time.sleep(0.2)

    def _kill(self) -> None:
        for _, process in self._started:
            process.kill()
            process.wait(60)


def _in_order() -> Iterator[tuple[str, Service]]:
    """Yield Batchwright's services with their names. Each comes after the services that it depends on."""
    services = compose().services
    done = {name for name, service in services.items() if not service.ours}
    waiting = [name for name in services if name not in done]
    while waiting:
        name = next(name for name in waiting if services[name].depends_on.keys() <= done)
        yield name, services[name]
        waiting.remove(name)
        done.add(name)
