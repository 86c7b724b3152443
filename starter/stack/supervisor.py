"""The embedded stack of `dev` and `demo`: started in order, kept running, stopped in order."""

import asyncio
import os
from collections.abc import Coroutine
from types import TracebackType
from typing import Never, Self

from starter.stack import plan, temporal
from starter.stack.directory import StackDirectory
from starter.stack.errors import StackError
from starter.stack.keeper import Keeper, Say
from starter.stack.part import Kept, Part, PartProcess
from starter.stack.postgres import EmbeddedPostgres
from starter.stack.postgres_part import PostgresPart
from starter.stack.schema import prepare_database
from starter.stack.state import Pids, StackInfo

_PATIENCE_SECONDS = 10.0
_POSTGRES_SECONDS = 30.0
_Start = Coroutine[None, None, None]


class Supervisor:
    """Used as a context manager: inside, the stack is ready; afterwards, all of it is stopped.

    `say` is called with what happens to the parts meanwhile, a sentence each.
    """

    def __init__(self, options: plan.DevOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._directory = StackDirectory(options.data)
        server = EmbeddedPostgres(
            self._directory.postgres, log=self._directory.log("postgres"), start_timeout=60
        )
        self._postgres = PostgresPart(server, self._changed)
        self._temporal: PartProcess | None = None
        self._simulator: PartProcess | None = None
        self._api: list[PartProcess] = []
        self._workers: list[PartProcess] = []
        self._addresses: plan.Addresses | None = None
        self._database_url = ""
        self._keepers: list[asyncio.Task[Never]] = []

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
        """As it is now."""
        addresses, temporal_process = self._addresses, self._temporal
        if addresses is None or temporal_process is None:
            raise StackError("The stack is not started.")
        simulator = self._simulator
        return StackInfo(
            api=addresses.api,
            temporal=addresses.temporal,
            namespace=temporal.NAMESPACE,
            ui=addresses.ui,
            postgres=self._database_url,
            simulator=addresses.simulator,
            data=str(self._directory.path),
            pids=Pids(
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
        """API and workers, then what they need; what has not started is left out."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        drain = self._options.settings.drain_seconds
        if self._api or self._workers:
            self._say(f"Stopping API and workers; requests in flight have at most {drain:g} s to end.")
        await asyncio.gather(
            _stop_all(self._api, _PATIENCE_SECONDS), _stop_all(self._workers, drain + _PATIENCE_SECONDS)
        )
        needed = self._needed()
        if needed:
            others = (
                "PostgreSQL, Temporal and the simulator" if self._simulator else "PostgreSQL and Temporal"
            )
            self._say(f"Stopping {others}.")
        await asyncio.gather(_stop_all(needed, _PATIENCE_SECONDS), self._postgres.stop(_POSTGRES_SECONDS))
        self._directory.close()

    def hurry(self) -> None:
        """No more patience; PostgreSQL still closes its files."""
        for part in self._processes():
            part.kill()

    async def _start(self) -> None:
        left = self._directory.open()
        if left:
            self._say(f"Ended {left} processes that a killed `batchwright dev` had left running.")
        self._addresses = plan.choose_addresses(self._options)
        await _together(*self._foundations(self._addresses))
        told = plan.environment(self._addresses, self._directory, self._database_url, self._options.auth)
        await _together(*self._entry_points(self._addresses, told))
        self._keepers = [
            asyncio.create_task(Keeper(part, self._say).keep())
            for part in (self._postgres, *self._processes())
        ]
        self._directory.publish(self.info)
        self._directory.publish_exports(plan.exports(self._addresses, told))

    def _foundations(self, addresses: plan.Addresses) -> list[_Start]:
        self._temporal = self._process(plan.temporal_part(addresses, self._directory))
        starts: list[_Start] = [self._start_database(), self._start_temporal(self._temporal, addresses)]
        if addresses.simulator_port is not None:
            part = plan.simulator_part(addresses.simulator_port, self._options.simulator_arguments)
            self._simulator = self._process(part)
            starts.append(self._simulator.start())
        return starts

    def _entry_points(self, addresses: plan.Addresses, told: dict[str, str]) -> list[_Start]:
        self._api = [self._process(plan.api_part(addresses, told))]
        self._workers = [self._process(part) for part in plan.worker_parts(addresses, told)]
        return [part.start() for part in (*self._api, *self._workers)]

    async def _start_database(self) -> None:
        await self._postgres.start()
        self._database_url = await prepare_database(self._postgres.dsn)

    async def _start_temporal(self, part: Kept, addresses: plan.Addresses) -> None:
        await part.start()
        await temporal.prepare_namespace(addresses.temporal_port)

    def _process(self, part: Part) -> PartProcess:
        return PartProcess(part, self._directory.log(part.name), self._changed)

    def _processes(self) -> list[PartProcess]:
        return [*self._needed(), *self._api, *self._workers]

    def _needed(self) -> list[PartProcess]:
        """What API and workers ask, besides PostgreSQL."""
        return [part for part in (self._temporal, self._simulator) if part is not None]

    def _changed(self) -> None:
        """A part has a new process: noted before anything else can happen."""
        try:
            self._directory.note(_pids(self._processes()))
            if self._keepers:
                self._directory.publish(self.info)
        except OSError as error:
            # A full disk must not end the part that was just started again.
            self._say(f"{error.filename} cannot be written: {error.strerror}.")


def _pids(parts: list[PartProcess]) -> list[int]:
    return [part.pid for part in parts if part.pid is not None]


async def _stop_all(parts: list[PartProcess], patience_seconds: float) -> None:
    await asyncio.gather(*(part.stop(patience_seconds) for part in parts))


async def _together(*starts: _Start) -> None:
    """All of them; the first failure ends the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
