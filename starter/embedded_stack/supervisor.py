"""Supervisor of the embedded stack for `dev` and `demo`. It starts, restarts and stops the services."""

import asyncio
import os
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

from batchwright.background import BackgroundTasks
from batchwright.starter.embedded_stack import temporal_server
from batchwright.starter.embedded_stack.directory import ProcessIds, StackDirectory, StackInfo
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from batchwright.starter.embedded_stack.postgres.supervised_service import PostgresService, prepare_database
from batchwright.starter.embedded_stack.restart_loop import RestartLoop, Say
from batchwright.starter.embedded_stack.service_commands import (
    Addresses,
    DevOptions,
    api_service,
    choose_addresses,
    environment,
    exports,
    simulator_service,
    temporal_service,
    worker_services,
)
from batchwright.starter.embedded_stack.service_process import ManagedService, ServiceProcess, ServiceSpec

_PATIENCE_SECONDS = 10.0
_POSTGRES_SECONDS = 30.0
_Start = Coroutine[None, None, None]


class Supervisor:
    """A context manager that starts all services of a stack, and stops all of them at the end.

    If a service ends while the block runs, the supervisor restarts the service.

    Args:
        say: function that shows a message to the user, for example about a restart.
    """

    def __init__(self, options: DevOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._directory = StackDirectory(options.data)
        server = EmbeddedPostgres(
            self._directory.postgres, log=self._directory.log("postgres"), start_timeout=60
        )
        self._postgres = PostgresService(server, self._record_processes)
        self._temporal: ServiceProcess | None = None
        self._simulator: ServiceProcess | None = None
        self._api: list[ServiceProcess] = []
        self._workers: list[ServiceProcess] = []
        self._addresses: Addresses | None = None
        self._database_url = ""
        self._restart_loops = BackgroundTasks(
            lambda name, error: self._say(f"Watching {name} failed ({error}); the watch is restarted.")
        )
        self._is_published = False

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def info(self) -> StackInfo:
        """The addresses and process ids of the running stack.

        Raises:
            StackError: the stack is not started.
        """
        addresses, temporal_process = self._addresses, self._temporal
        if addresses is None or temporal_process is None:
            raise StackError("The stack is not started.")
        simulator = self._simulator
        return StackInfo(
            pages=f"{addresses.api}/ui" if self._options.settings.ui else None,
            api=addresses.api,
            temporal=addresses.temporal,
            namespace=temporal_server.NAMESPACE,
            ui=addresses.ui,
            postgres=self._database_url,
            simulator=addresses.simulator,
            data=str(self._directory.path),
            pids=ProcessIds(
                dev=os.getpid(),
                temporal=temporal_process.pid or 0,
                postgres=self._postgres.pid or 0,
                simulator=simulator.pid if simulator else None,
                api=_pids(self._api),
                worker=_pids(self._workers),
            ),
            metrics=addresses.metrics,
        )

    async def stop(self) -> None:
        """Stop the API and the workers. Then stop the services that the API and the workers need.

        These services are Temporal, PostgreSQL and the simulator.
        """
        await self._restart_loops.stop()
        self._is_published = False
        drain = self._options.settings.drain_seconds
        if self._api or self._workers:
            self._say(f"Stopping API and workers; requests in flight have {drain:g} s to finish.")
        await asyncio.gather(
            _stop_all(self._api, _PATIENCE_SECONDS), _stop_all(self._workers, drain + _PATIENCE_SECONDS)
        )
        dependencies = self._dependencies()
        if dependencies:
            others = (
                "PostgreSQL, Temporal and the simulator" if self._simulator else "PostgreSQL and Temporal"
            )
            self._say(f"Stopping {others}.")
        await asyncio.gather(
            _stop_all(dependencies, _PATIENCE_SECONDS), self._postgres.stop(_POSTGRES_SECONDS)
        )
        self._directory.close()

    def kill(self) -> None:
        """Kill all services immediately, except PostgreSQL.

        Only `stop` ends PostgreSQL, with a shutdown that protects the data.
        """
        for service in self._processes():
            service.kill()

    async def _start(self) -> None:
        left = self._directory.open()
        if left:
            self._say(f"Ended the processes that a killed `batchwright dev` left running ({left}).")
        self._addresses = choose_addresses(self._options)
        await _all_at_once(*self._start_dependencies(self._addresses))
        options = self._options
        variables = environment(self._addresses, self._directory, self._database_url, options.auth)
        self._api = [self._process(api_service(self._addresses, variables))]
        workers = worker_services(self._addresses, variables)
        self._workers = [self._process(service) for service in workers]
        await _all_at_once(*(service.start() for service in (*self._api, *self._workers)))
        for service in (self._postgres, *self._processes()):
            self._restart_loops.start(service.name, RestartLoop(service, self._say).run)
        self._is_published = True
        self._directory.write_info(self.info)
        self._directory.write_exports(exports(self._addresses, variables))

    def _start_dependencies(self, addresses: Addresses) -> list[_Start]:
        self._temporal = self._process(temporal_service(addresses, self._directory))
        starts: list[_Start] = [self._start_database(), self._start_temporal(self._temporal, addresses)]
        if addresses.simulator_port is not None:
            service = simulator_service(addresses.simulator_port, self._options.simulator_arguments)
            self._simulator = self._process(service)
            starts.append(self._simulator.start())
        return starts

    async def _start_database(self) -> None:
        await self._postgres.start()
        self._database_url = await prepare_database(self._postgres.dsn)

    async def _start_temporal(self, service: ManagedService, addresses: Addresses) -> None:
        await service.start()
        await temporal_server.prepare_namespace(addresses.temporal_port)

    def _process(self, service: ServiceSpec) -> ServiceProcess:
        return ServiceProcess(service, self._directory.log(service.name), self._record_processes)

    def _processes(self) -> list[ServiceProcess]:
        return [*self._dependencies(), *self._api, *self._workers]

    def _dependencies(self) -> list[ServiceProcess]:
        """Return the Temporal service and the simulator, if they have been created."""
        return [service for service in (self._temporal, self._simulator) if service is not None]

    def _record_processes(self) -> None:
        """Store the ids of the running processes in the data directory.

        If this process is killed, a later `dev` reads the ids and ends the processes.
        """
        try:
            self._directory.record(_pids(self._processes()))
            if self._is_published:
                self._directory.write_info(self.info)
        except OSError as error:
            # A full disk must not end the service that was just restarted.
            self._say(f"{error.filename} cannot be written: {error.strerror}.")


def _pids(services: list[ServiceProcess]) -> list[int]:
    return [service.pid for service in services if service.pid is not None]


async def _stop_all(services: list[ServiceProcess], patience_seconds: float) -> None:
    await asyncio.gather(*(service.stop(patience_seconds) for service in services))


async def _all_at_once(*starts: _Start) -> None:
    """Run the coroutines `starts` at the same time, and wait until all have ended.

    If one of them fails, cancel the others and raise the error of the failed one.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
